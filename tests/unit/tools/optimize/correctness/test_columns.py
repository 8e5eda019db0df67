"""Scales of columns and of tails, what all samples of a column have in common, and classes that tie."""

import numpy as np
import pytest

from naiad.tools.optimize.candidate import Candidate, Precision
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.labels import LabelObserver
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner
from naiad.tools.optimize.correctness.sample_comparison import CandidateComparison
from naiad.tools.optimize.correctness.scores.scales import ScaleObserver
from naiad.tools.optimize.correctness.source_reference import SourceAnswers
from naiad.tools.optimize.optimize_source import Format

ROWS = np.random.default_rng(0).normal(size=(64, 3)) * [4e4, 5, 0.3] + [1e5, 30, 0.5]
ROWS = ROWS.astype(np.float32)


def scales(answers):
    observer = ScaleObserver()
    for answer in answers:
        observer.add(np.asarray(answer))
    return observer.scales()


def compared(expected, found, precision=Precision.FP32, form=Format.ONNX):
    source = SourceAnswers(CallableRunner(dict), Settings())
    for answer in expected:
        source.observe(answer)
    source.finish()
    comparison = CandidateComparison(Settings(), Candidate("c", form, precision, ""), source.outputs)
    for sample, pair in enumerate(zip(expected, found, strict=True)):
        comparison.add(sample, *pair)
    return comparison


def table(rows, found, precision=Precision.FP32):
    pair = [[{"Y": np.asarray(row)[None]} for row in each] for each in (rows, found)]
    return compared(*pair, precision)


def checks(comparison):
    return [(each.check, *each.index) for each in comparison.failures()]


def test_columns_of_different_size_have_own_scales():
    found = scales(row[None] for row in ROWS)
    assert list(found.groups) == [0, 1, 2]
    assert found.sizes == pytest.approx(np.sqrt(np.square(ROWS.astype(float)).mean(0)), rel=1e-5)


def test_columns_within_a_factor_share_a_scale():
    found = scales(np.random.default_rng(1).normal(size=(40, 1, 4)) * [1, 2, 4, 8])
    assert set(found.groups) == {0}
    assert len(set(found.sizes)) == 1


def test_columns_may_be_along_another_axis():
    planes = np.random.default_rng(2).normal(size=(10, 1, 3, 50)) * np.array([300, 1, 0.01])[:, None]
    found = scales(planes)
    assert found.axis == -2
    assert found.columns == 3
    assert found.of(planes[0]).shape == (1, 3, 1)


def test_features_of_a_vector_are_not_taken_apart():
    """Many columns of all sizes are features of one vector: only a gap between sizes makes groups."""
    sizes = np.geomspace(1, 1000, 64)
    assert set(scales(np.random.default_rng(3).normal(size=(40, 1, 64)) * sizes).groups) == {0}
    sizes[32:] *= 1e5
    assert set(scales(np.random.default_rng(3).normal(size=(40, 1, 64)) * sizes).groups) == {0, 1}


def test_huge_values_do_not_make_small_ones_free():
    amounts = np.geomspace(1, 3e6, 40)
    found = scales(amounts.reshape(-1, 1, 1))
    assert found.sizes[0] < np.median(amounts) / 10
    even = scales(np.linspace(50, 100, 40).reshape(-1, 1, 1))
    assert even.sizes[0] == pytest.approx(76.3, abs=1)


@pytest.mark.parametrize(
    ("column", "change"),
    [
        (2, lambda values: -values),
        (2, lambda values: values * 0),
        (2, lambda values: values.mean() + values * 0),
        (1, lambda values: values + 1),
        (0, lambda values: values * 1.001),
    ],
)
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.INT8])
def test_destroyed_column_is_named(column, change, precision):
    found = ROWS.copy()
    found[:, column] = change(found[:, column])
    is_small = (column, precision) in [(1, Precision.INT8), (0, Precision.FP16), (0, Precision.INT8)]
    failures = table(ROWS, found, precision).failures()
    if is_small and column == 0:
        assert not failures  # 0.1 % is rounding in half precision.
    else:
        assert failures
        assert failures[0].index[-1:] in ((column,), ())  # A shift may be of all columns together.


def test_wrong_gain_or_shift_is_rejected_in_int8():
    rows = np.random.default_rng(4).normal(size=(64, 5)).astype(np.float32)
    assert checks(table(rows, rows * np.float32(0.95), Precision.INT8)) == []
    assert {check for check, *_ in checks(table(rows, rows * np.float32(0.7), Precision.INT8))} == {"column", "gain"}
    assert {check for check, *_ in checks(table(rows, rows + np.float32(0.12), Precision.INT8))} == {"bias"}
    assert checks(table(rows, rows + np.float32(0.03), Precision.INT8)) == []


def test_summary_names_the_worst_column():
    noise = np.random.default_rng(5).normal(size=ROWS.shape) * [100, 0.1, 0.02]
    comparison = table(ROWS, (ROWS + noise).astype(np.float32), Precision.INT8)
    assert not comparison.failures()
    assert comparison.summary().startswith("within the tolerances of int8 (worst: Y, column 2, R2 0.99")
    assert table(ROWS, ROWS, Precision.INT8).summary() == "no difference in any answer"


def test_few_rows_say_nothing_about_a_column():
    assert checks(table(ROWS[:5], ROWS[:5] * np.float32(0.9), Precision.INT8)) == []


# --- FP64 -----------------------------------------------------------------------------------------------------------


def moments(found, form=Format.ONNX):
    stamps = [np.array([[1.7e9 + second]]) for second in range(16)]
    return compared([{"Y": each} for each in stamps], [{"Y": found(each)} for each in stamps], form=form)


def test_doubles_have_the_digits_of_doubles():
    assert checks(moments(lambda values: values)) == []
    assert checks(moments(lambda values: values + 63))[0][0] == "values"
    assert checks(moments(lambda values: values.astype(np.float32)))[0][0] == "datatype"


def test_format_of_single_precision_is_judged_as_such():
    comparison = moments(lambda values: values.astype(np.float32), Format.TREELITE)
    assert checks(comparison) == []
    assert comparison.notes() == ["output 'Y' is FP32 in place of FP64, and judged as FP32"]
    inside = moments(lambda values: values.astype(np.float32).astype(np.float64), Format.OPENVINO)
    assert "computed in FP32" in inside.notes()[0]


# --- classes --------------------------------------------------------------------------------------------------------

SCORES = np.array([[0.5, 0.3, 0.2], [0.1, 0.7, 0.2], [0.2, 0.2, 0.6], [0.40000001, 0.4, 0.19999999]])


def classified(labels, found, scores=SCORES, precision=Precision.FP32):
    def answers(values):
        pairs = zip(scores.astype(np.float32), values, strict=True)
        return [{"P": row[None], "C": np.array([label])} for row, label in pairs]

    return compared(answers(labels), answers(found), precision)


def test_class_that_ties_may_be_another_one():
    assert checks(classified([0, 1, 2, 0], [0, 1, 2, 1])) == []
    assert checks(classified([0, 1, 2, 0], [0, 1, 2, 2]))[0][0] == "values"
    assert checks(classified([0, 1, 2, 0], [0, 1, 1, 0]))[0][0] == "values"
    assert checks(classified([0, 1, 2, 0], [0, 1, 2, 17]))[0][0] == "values"


def test_integers_of_their_own_are_exact():
    assert checks(classified([5, 5, 6, 7], [5, 5, 6, 8], precision=Precision.INT8))[0][0] == "values"


def test_names_of_classes_follow_their_scores():
    observer = LabelObserver()
    names = [b"cat", b"dog", b"\xff"]
    for row in SCORES[:3]:
        observer.add(np.array([names[row.argmax()]], object), {"P": row[None]})
    relation = observer.relation()
    assert relation.scores == "P"
    assert relation.lacks(np.array([b"dog"], object), SCORES[:1])[0] == pytest.approx(0.2)
    assert relation.lacks(np.array([b"cow"], object), SCORES[:1])[0] == np.inf


def test_threshold_of_one_score_is_found():
    observer = LabelObserver()
    for score in (0.1, 0.4, 0.6, 0.9):
        observer.add(np.array([score > 0.5]), {"P": np.array([[score]])})
    relation = observer.relation()
    assert relation.threshold == 0.5
    assert relation.lacks(np.array([True]), np.array([[0.45]]))[0] == pytest.approx(0.05)


def test_label_against_its_scores_is_no_relation():
    observer = LabelObserver()
    for row, label in zip(SCORES[:3], (0, 0, 0), strict=True):
        observer.add(np.array([label]), {"P": row[None]})
    assert observer.relation() is None


# --- bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [b"\xfe", "\ufffd".encode(), b"", b"\xff "])
def test_bytes_are_compared_as_bytes(other):
    def answer(value):
        return {"Y": np.array([value], object)}

    assert checks(compared([answer(b"\xff")], [answer(b"\xff")])) == []
    (failure,) = compared([answer(b"\xff")], [answer(other)]).failures()
    assert failure.expected == r"\xff"


def probabilities(scores):
    powers = np.exp(scores)
    return (powers / powers.sum(-1, keepdims=True)).astype(np.float32)


def test_class_that_is_rarely_likely_keeps_its_rows():
    random = np.random.default_rng(5)
    scores = random.normal(size=(100, 60)) * 0.5
    scores[np.arange(100), random.integers(2, 60, 100)] += 5
    rounded = probabilities(scores + 0.02 * random.normal(size=scores.shape))
    rows = probabilities(scores)
    assert checks(table(rows, rounded, Precision.INT8)) == []
    scores[:, 1] += np.where(np.arange(100) % 3, 0, 2)
    rows, rounded = probabilities(scores), probabilities(scores + 0.02 * random.normal(size=scores.shape))
    swapped = rounded[:, [1, 0, *range(2, 60)]]
    assert checks(table(rows, rounded, Precision.INT8)) == []
    ((check, column),) = checks(table(rows, swapped, Precision.INT8))
    assert check == "column"
    assert column in (0, 1)
    constant = np.where(np.arange(60) == 1, rows.mean(0), rounded).astype(np.float32)
    assert checks(table(rows, constant, Precision.INT8)) == [("column", 1)]


def test_classes_that_no_sample_shows_are_named():
    rows = probabilities(np.random.default_rng(7).normal(size=(20, 3)) - [0, 0, 9])
    assert table(rows, rows, Precision.INT8).gaps() == [
        "classes of 'Y' that are less likely than 1% in all samples: 1 of 3"
    ]
    assert table(rows, rows).gaps() == []
    assert table(ROWS, ROWS, Precision.INT8).gaps() == []


@pytest.mark.parametrize(("levels", "is_found"), [(3, True), (4, True), (7, True), (256, False)])
def test_int8_column_with_few_numbers_is_named(levels, is_found):
    rows = np.random.default_rng(8).uniform(3, 5, size=(64, 3)).astype(np.float32)
    found = rows.copy()
    found[:, 1] = (np.floor((rows[:, 1] - 3) / 2 * levels) + 0.5) / levels * 2 + 3
    assert bool({("levels", 1), ("column", 1)} & set(checks(table(rows, found, Precision.INT8)))) is is_found
    assert (("levels", 1) in checks(table(rows, found, Precision.INT8))) is is_found


def test_huge_values_of_int8_leave_few_numbers():
    rows = np.random.default_rng(9).uniform(0, 5, size=(64, 1)).astype(np.float32)
    rows[7] = 1000
    found = np.round(rows / 4) * 4
    assert "levels" not in {check for check, *_ in checks(table(rows, found, Precision.INT8))}


def test_few_numbers_of_the_source_are_right():
    rows = np.random.default_rng(10).integers(0, 4, size=(64, 2)).astype(np.float32)
    assert checks(table(rows, rows * np.float32(1.001), Precision.INT8)) == []

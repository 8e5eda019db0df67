"""The comparison of two outputs: tolerances, kinds, infinities, zeros, strings and ties."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from naiad.tools.optimize.candidate import Candidate, Precision
from naiad.tools.optimize.correctness.judgement_settings import Settings, parse_max_drop
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner
from naiad.tools.optimize.correctness.sample_comparison import CandidateComparison
from naiad.tools.optimize.correctness.scores.elements import agrees_on_first, compare_output, cosine_distance
from naiad.tools.optimize.correctness.scores.tolerances import Kind, default_tolerance, detect_kind
from naiad.tools.optimize.correctness.source_reference import SourceAnswers
from naiad.tools.optimize.optimize_source import Format
from naiad.tools.optimize.results.verdict import Tolerance

FLOATS = arrays(np.float32, array_shapes(max_dims=3, max_side=5), elements=st.floats(width=32))
FINITE = arrays(np.float64, array_shapes(max_dims=3, max_side=5), elements=st.floats(-1e300, 1e300))
TOLERANCE = Tolerance(0.0, 1e-4)


def compared(expected, found, precision=Precision.FP32, settings=Settings(), form=Format.ONNX):  # noqa: B008 - frozen
    """Return the comparison of answers, each a mapping by output."""
    source = SourceAnswers(CallableRunner(dict), settings)
    for answer in expected:
        source.observe(answer)
    source.finish()
    comparison = CandidateComparison(settings, Candidate("c", form, precision, ""), source.outputs)
    for sample, pair in enumerate(zip(expected, found, strict=True)):
        comparison.add(sample, *pair)
    return comparison


def worst(expected, found, kind=Kind.NUMBERS, tolerance=TOLERANCE):
    return compare_output(np.asarray(expected), np.asarray(found), kind, tolerance)


@given(FLOATS)
def test_an_output_equals_itself(output):
    for precision in Precision:
        kind = detect_kind(output)
        assert compare_output(output, output.copy(), kind, default_tolerance(precision, kind)).is_within


@given(FINITE, st.data())
def test_a_misplaced_infinity_is_found(output, data):
    index = tuple(data.draw(st.integers(0, size - 1)) for size in output.shape)
    changed = output.copy()
    changed[index] = data.draw(st.sampled_from([np.inf, -np.inf, np.nan]))
    for pair in ((output, changed), (changed, output)):
        difference = compare_output(*pair, Kind.NUMBERS, Tolerance(1e300, 1e300))
        assert not difference.is_within
        assert difference.worst.check == "inf/nan"
        assert difference.worst.index == index


@given(FINITE, st.data())
def test_the_changed_element_is_the_worst(output, data):
    index = tuple(data.draw(st.integers(0, size - 1)) for size in output.shape)
    changed = output.copy()
    changed[index] = output[index] / 2 if abs(output[index]) > 1 else output[index] + 1
    difference = compare_output(output, changed, Kind.NUMBERS, Tolerance(0.0, 0.0))
    assert not difference.is_within
    assert difference.worst.index == index


@given(FINITE, st.floats(1e-9, 0.1))
def test_limit_scales_with_the_output(output, relative):
    within = output * (1 + relative / 2)
    tolerance = Tolerance(1e-300, relative)
    assert compare_output(output, within, Kind.NUMBERS, tolerance).is_within


def test_elements_near_zero_use_the_scale():
    assert worst([0.0, 1.0], [1e-5, 1.0]).is_within
    assert not worst([0.0, 1e-3], [1e-5, 1e-3]).is_within
    assert not worst([0.0, 0.0], [1e-9, 0.0]).is_within


def test_columns_of_detections_have_own_scales():
    expected = np.array([[600.0, 0.5], [300.0, 0.25]])
    found = expected + np.array([[0.0, 0.01], [0.0, 0.0]])
    assert worst(expected, found, tolerance=Tolerance(0, 1e-3)).is_within
    assert not worst(expected, found, Kind.DETECTIONS, Tolerance(0, 1e-3)).is_within


def test_infinities_at_the_same_place_are_equal():
    output = [np.inf, -np.inf, np.nan, 2.0]
    assert worst(output, output).is_within
    assert not worst(output, [-np.inf, np.inf, np.nan, 2.0]).is_within
    assert not worst(output, [np.inf, -np.inf, np.nan, 2.1]).is_within


def test_shape_and_datatype_are_equal():
    assert worst(np.zeros((2, 3)), np.zeros((3, 2))).worst.check == "shape"
    assert worst(np.zeros(2), np.zeros(2, np.float32)).worst.check == "datatype"


def test_integers_and_strings_are_exact():
    big = 2**62
    assert worst([big], [big + 1], Kind.INTEGERS, default_tolerance(Precision.INT8, Kind.INTEGERS)).worst.index == (
        0,
    )
    strings = default_tolerance(Precision.INT8, Kind.STRINGS)
    assert worst(np.array([b"cat"], object), np.array(["cat"]), Kind.STRINGS, strings).is_within
    other = worst(np.array([b"cat", b"dog"], object), np.array([b"cat", b"fox"], object), Kind.STRINGS, strings)
    assert (other.worst.index, other.worst.expected, other.worst.found) == ((1,), "dog", "fox")
    newer = np.array(["cat"], np.dtypes.StringDType())
    assert detect_kind(newer) is Kind.STRINGS
    assert worst(newer, np.array([b"cat"], object), Kind.STRINGS, strings).is_within


def test_cosine_of_opposite_and_zero_vectors():
    vector = np.array([1.0, 2.0, 3.0])
    assert cosine_distance(vector, vector * 7) == pytest.approx(0, abs=1e-15)
    assert cosine_distance(vector, -vector) == pytest.approx(2)
    assert cosine_distance(vector, vector * 0) == 1
    assert cosine_distance(vector * 0, vector * 0) == 0


def test_tied_classes_agree():
    assert agrees_on_first(np.array([[0.4, 0.4, 0.2]]), np.array([[0.3, 0.5, 0.2]])) == (1, 1)
    assert agrees_on_first(np.array([[0.5, 0.4, 0.1]]), np.array([[0.4, 0.5, 0.1]])) == (0, 1)


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (np.array([[0.1, 0.9]], np.float32), Kind.PROBABILITIES),
        (np.eye(32)[:2] * -1, Kind.EMBEDDING),
        (np.array([[3.0, -1.0]]), Kind.NUMBERS),
        (np.array([1, 2]), Kind.INTEGERS),
        (np.array([True]), Kind.INTEGERS),
        (np.array([b"x"], object), Kind.STRINGS),
        (np.float32(3), Kind.NUMBERS),
    ],
)
def test_kinds_come_from_values(output, kind):
    assert detect_kind(np.asarray(output)) is kind


def test_message_names_output_sample_element_values():
    right, wrong = {"Y": np.array([[1.0, 2.0]])}, {"Y": np.array([[1.0, 2.5]])}
    comparison = compared([right, right], [right, wrong])
    (failure,) = comparison.failures()
    assert (failure.output, failure.check, failure.sample, failure.index) == ("Y", "values", 1, (0, 1))
    assert "output 'Y' of sample 1, element [0, 1]: the candidate has 2.5, the source 2;" in failure.message
    assert comparison.outputs["Y"].worst_absolute == 0.5


def test_disagreement_on_classes_is_counted():
    settings = Settings(tolerances={"Y": Tolerance(1.0, 0, top1_agreement=0.9)})
    right, wrong = {"Y": np.array([[0.6, 0.4]])}, {"Y": np.array([[0.4, 0.6]])}
    found = [wrong if sample in (3, 7) else right for sample in range(10)]
    comparison = compared([right] * 10, found, Precision.INT8, settings)
    (failure,) = comparison.failures()
    assert (failure.check, failure.sample) == ("top1", 3)
    assert "in 2 of 10 rows" in failure.message


def test_max_drop_is_a_share_or_percentage():
    assert parse_max_drop("0.5%") == parse_max_drop("0.005") == 0.005
    for text in ("-1%", "half", "1.5", "nan"):
        with pytest.raises(ValueError, match="max-drop is"):
            parse_max_drop(text)


def single_numbers(expected, found):
    pair = [[{"y": np.array([[value]], np.float32)} for value in values] for values in (expected, found)]
    return [failure.check for failure in compared(*pair).failures()]


def test_single_numbers_share_the_scale_of_all_samples():
    assert single_numbers([1.032919e-4, 0.6, 0.9], [1.033545e-4, 0.6, 0.9]) == []
    assert single_numbers([1.032919e-4, 1e-4, 1e-4], [1.033545e-4, 1e-4, 1e-4]) == ["values"]
    assert single_numbers([0.5, 0.6, 0.9], [0.5, 0.6001, 0.9]) == ["values"]


@pytest.mark.parametrize(("error", "is_within"), [(2.6e-5, True), (3.8e-4, False)])
def test_probability_may_differ_by_rounded_scores(error, is_within):
    expected = np.full((1, 1000), 0.5 / 999)
    expected[0, 0] = 0.5
    found = expected.copy()
    found[0, 0] += error
    tolerance = default_tolerance(Precision.FP32, Kind.PROBABILITIES)
    assert worst(expected, found, Kind.PROBABILITIES, tolerance).is_within == is_within


def of_datatype(datatype, change):
    """Compare answers in a short datatype, computed from numbers that are changed before they are rounded."""
    rows = np.random.default_rng(5).normal(size=(30, 1, 4)) * 3 + 40
    return compared(
        *([{"Y": values.astype(datatype)} for values in each] for each in (rows, change(rows)))
    ).failures()


@pytest.mark.parametrize("datatype", ["float16", ml_dtypes.bfloat16])
def test_short_datatypes_may_round_to_a_neighbour(datatype):
    assert of_datatype(datatype, lambda rows: rows * (1 + 1e-5)) == []
    assert of_datatype(datatype, lambda rows: rows * 1.03)
    assert of_datatype(datatype, lambda rows: np.full_like(rows, 40.0))


@pytest.mark.parametrize("other", [2**60 + 2, -(2**63)])
def test_distance_of_large_integers_is_exact(other):
    found = compared([{"Y": np.array([2**60 + 1])}], [{"Y": np.array([other])}])
    assert found.outputs["Y"].worst_absolute == float(2**60 + 1 - other if other < 0 else 1)
    assert [(each.expected, each.found) for each in found.failures()] == [(2**60 + 1, other)]


def test_output_that_one_side_lacks_is_a_difference():
    both, one = {"A": np.ones(2), "B": np.ones(2)}, {"A": np.ones(2)}
    for expected, found in (([both, both], [both, one]), ([both, one], [both, both])):
        (failure,) = compared(expected, found).failures()
        assert (failure.output, failure.check, failure.sample) == ("B", "missing", 1)

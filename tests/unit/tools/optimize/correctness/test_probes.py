"""What samples cannot show, the probes that show it, and the batches that are tried."""

import numpy as np
import pytest

from naiad.tools.optimize.candidate import Candidate, Precision
from naiad.tools.optimize.correctness.behaviour import batch_sizes, in_ranges, rows_of
from naiad.tools.optimize.correctness.coverage import Coverage, variable_lengths
from naiad.tools.optimize.correctness.gate import judge
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.probes import lengths, perturbed, special
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner
from naiad.tools.optimize.optimize_source import Format

RANDOM = np.random.default_rng(0)


def coverage(samples):
    found = Coverage()
    for sample in samples:
        found.add(sample)
    return found


def kinds(samples, precision=Precision.FP32, *, has_exact=False):
    return [probe.what for probe in special(coverage(samples), precision, has_exact=has_exact)]


def test_mask_of_ones_gets_zeros():
    samples = [{"mask": np.ones(6, np.int64)}] * 3
    made = list(special(coverage(samples), Precision.INT8, has_exact=False))
    assert [each.what for each in made] == ["zeros in 'mask'"] * 2
    assert made[0].sample["mask"].tolist() == [1, 1, 1, 0, 0, 0]
    samples[2] = {"mask": np.array([1, 1, 1, 1, 1, 0])}
    assert kinds(samples, Precision.INT8) == []


def test_equal_channels_get_different_ones():
    grey = np.repeat(RANDOM.uniform(size=(1, 4, 4)), 3, 0)
    (probe,) = special(coverage([{"x": grey}]), Precision.INT8, has_exact=False)
    assert not np.array_equal(probe.sample["x"][0], probe.sample["x"][1])
    assert kinds([{"x": RANDOM.uniform(size=(3, 4, 4))}], Precision.INT8) == []


def test_range_is_left_where_the_precision_allows():
    samples = [{"x": RANDOM.normal(size=4).astype(np.float32)}]
    assert "values beyond the range of the samples" in kinds(samples)
    assert kinds(samples, Precision.INT8) == kinds(samples, Precision.FP16) == []


def test_ties_are_tried_for_outputs_of_integers():
    samples = [{"x": RANDOM.normal(size=4).astype(np.float32)}]
    assert "equal elements, which tie" in kinds(samples, has_exact=True)
    assert "equal elements, which tie" not in kinds(samples)


def test_other_lengths_change_all_inputs_of_that_length():
    samples = [{"ids": np.arange(6), "mask": np.ones(6, np.int64), "x": np.zeros(3)}] * 2
    found = coverage(samples)
    assert variable_lengths(found, {}) == {(6, 6): [("ids", 0), ("mask", 0)]}
    assert [len(probe.sample["ids"]) for probe in lengths(found, {})] == [3, 12]
    assert [len(probe.sample["mask"]) for probe in lengths(found, {})] == [3, 12]
    assert variable_lengths(found, {"ids": [], "x": [0]}) == {(3, 3): [("x", 0)]}


def test_several_lengths_get_shorter_and_longer_ones():
    samples = [{"ids": np.arange(length), "mask": np.ones(length, np.int64)} for length in (7, 4, 9, 5)]
    made = list(lengths(coverage(samples), {}))
    assert {probe.what for probe in made} == {"other lengths of 'ids', 'mask' than 4 to 9"}
    assert [(len(probe.sample["ids"]), len(probe.sample["mask"])) for probe in made] == [(2, 2), (18, 18)]
    assert list(lengths(coverage([{"ids": np.arange(1)}]), {})) == []


def test_rows_near_samples_differ_and_stay_in_range():
    samples = [{"x": RANDOM.uniform(0, 1, 5).astype(np.float32), "ids": RANDOM.integers(3, 9, 4)} for _ in range(4)]
    made = [probe.sample for probe in perturbed(coverage(samples))]
    assert len({each["x"].tobytes() for each in made}) == len(made)
    assert all(each["x"].min() >= 0 and each["x"].max() <= 1 and each["x"].dtype == np.float32 for each in made)
    assert all(each["ids"].min() >= 3 and each["ids"].max() < 9 for each in made)
    one = [probe.sample["x"] for probe in perturbed(coverage(samples[:1]))]
    assert len({each.tobytes() for each in one}) == len(one)


@pytest.mark.parametrize(
    ("samples", "gap"),
    [
        ([{"x": np.ones(3)}], "a single sample"),
        ([{"x": np.arange(3.0)}] * 9, "the 9 samples are equal"),
        ([{"x": np.arange(3.0) + number} for number in range(4)], "4 are too few"),
        ([{"ids": np.array([number, 7])} for number in range(9)], "not among the 9 values"),
        ([{"t": np.array([b"a"]), "x": np.array([number])} for number in range(9)], "other strings of 't'"),
        ([{"c": np.full(3, 7.0), "x": np.array([number])} for number in range(9)], "other values of 'c' than 7"),
    ],
)
def test_gap_of_the_samples_is_named(samples, gap):
    assert any(gap in each for each in coverage(samples).gaps())


def test_plain_samples_have_no_gap():
    assert list(coverage([{"x": row} for row in RANDOM.normal(size=(9, 3))]).gaps()) == []


@pytest.mark.parametrize(
    ("most", "sizes"), [(0, [1, 2, 3, 4, 5, 8, 16, 32]), (6, [1, 2, 3, 4, 5, 6]), (4, [1, 2, 3, 4]), (1, [1])]
)
def test_all_batches_up_to_the_greatest_are_tried(most, sizes):
    assert batch_sizes((1, 2, 3, 4, 5, 8, 16), most) == sizes


def test_repeated_rows_have_other_places():
    order = rows_of(range(8), 32)
    assert set(order) == set(range(8))
    for period in (8, 16):
        assert order[period : 2 * period] != order[:period]


# --- verdicts -------------------------------------------------------------------------------------------------------


def verdict(source, candidate, samples, precision=Precision.FP32, **settings):
    runners = CallableRunner(source), CallableRunner(candidate)
    return judge(*runners, samples, Candidate("c", Format.ONNX, precision, ""), Settings(**settings))


def masked(inputs):
    return {"Y": (inputs["x"] * inputs["mask"]).sum(-1, keepdims=True)}


def test_ignored_mask_is_shown_by_a_probe():
    samples = [{"x": row, "mask": np.ones(6)} for row in RANDOM.normal(size=(9, 6))]
    found = verdict(masked, lambda inputs: {"Y": inputs["x"].sum(-1, keepdims=True)}, samples)
    assert [failure.check for failure in found.failures] == ["probe"]
    assert "a probe with zeros in 'mask'" in found.failures[0].message
    assert verdict(masked, masked, samples).is_accepted


def test_probe_that_the_source_refuses_is_named():
    def strict(inputs):
        if not inputs["mask"].all():
            raise ValueError("a mask of ones only")
        return masked(inputs)

    samples = [{"x": row, "mask": np.ones(6)} for row in RANDOM.normal(size=(9, 6))]
    found = verdict(strict, masked, samples)
    assert found.is_accepted
    assert "zeros in 'mask': the source does not take them" in found.not_shown


def test_candidate_of_one_length_is_served_for_it():
    def of_six(inputs):
        if inputs["ids"].shape[1] != 6:
            raise ValueError("six tokens only")
        return {"Y": inputs["ids"].astype(np.float32).mean(1, keepdims=True)}

    samples = [{"ids": row} for row in RANDOM.integers(0, 9, size=(9, 6))]
    found = verdict(lambda inputs: {"Y": inputs["ids"].astype(np.float32).mean(1, keepdims=True)}, of_six, samples)
    assert found.is_accepted
    assert any("other lengths of 'ids' than 6: c does not take them" in each for each in found.not_shown)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8, 13, 16, 27, 31, 32])
def test_fault_of_one_batch_size_is_rejected(size):
    def source(inputs):
        return {"Y": inputs["x"] * 2}

    def wrong(inputs):
        return {"Y": source(inputs)["Y"][::-1] if len(inputs["x"]) == size else source(inputs)["Y"]}

    for samples in ([{"x": row} for row in RANDOM.normal(size=(9, 3))], [{"x": RANDOM.normal(size=3)}]):
        assert {failure.check for failure in verdict(source, wrong, samples).failures} == {"batched"}


def doubled(inputs):
    return {"Y": inputs["x"] * 2}


def test_sizes_without_time_are_named():
    samples = [{"x": row} for row in RANDOM.normal(size=(9, 3))]
    found = verdict(doubled, doubled, samples, other_batches_s=0)
    (text,) = (each for each in found.not_shown if "no time" in each)
    assert text.startswith("batches of 6, 7, 9 to 15, 17 to 31: ")
    assert not any("no time" in each for each in verdict(doubled, doubled, samples).not_shown)


def test_rows_of_batches_come_from_all_samples():
    """Data is often in order of class: a fault in a batch that shows for the last class only."""
    samples = [{"x": np.full(2, float(number // 50))} for number in range(100)]

    def wrong(inputs):
        is_last = (inputs["x"] == 1) & (np.arange(len(inputs["x"])) > 0)[:, None]
        return {"Y": np.where(is_last, 9.0, inputs["x"] * 2)}

    (failure,) = verdict(doubled, wrong, samples, are_probed=False).failures
    assert failure.check == "batched"
    assert failure.sample >= 50


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 100, 1000])
def test_held_samples_are_few_and_spread(count):
    found = coverage([{"x": np.full(2, float(number))} for number in range(count)])
    places = found.places
    assert len(places) == min(count, 8)
    assert [each["x"][0] for each in found.kept] == places
    assert places[0] == 0
    assert count < 9 or places[-1] >= 0.8 * count
    assert len(found._held) < 16


def imputed(inputs):
    return {"Y": np.where(np.isnan(inputs["x"]), 7.0, inputs["x"])}


def test_missing_values_spoil_no_other_row():
    samples = [{"x": row} for row in RANDOM.normal(size=(60, 3))]
    samples[41]["x"][1] = np.nan

    def wrong(inputs):
        spoilt = np.isnan(inputs["x"]).any() and len(inputs["x"]) > 1
        return {"Y": imputed(inputs)["Y"] + spoilt}

    assert {each.check for each in verdict(imputed, wrong, samples).failures} == {"batched"}
    assert verdict(imputed, imputed, samples).is_accepted


def test_missing_values_of_no_sample_are_named():
    samples = [{"x": row} for row in RANDOM.normal(size=(9, 3))]
    found = verdict(imputed, lambda inputs: {"Y": np.nan_to_num(inputs["x"])}, samples)
    assert found.is_accepted
    assert "missing values (NaN) in 'x': c answers them otherwise than the source" in found.not_shown
    for source in (doubled, imputed):  # NaN has no answer, or the right one.
        assert not any("NaN" in each for each in verdict(source, source, samples).not_shown)


def test_longer_strings_are_tried_and_named():
    def upper(inputs):
        return {"Y": np.array([[each.upper() for each in row] for row in inputs["x"]], object)}

    def cut(inputs):
        return {"Y": np.array([[each.upper()[:12] for each in row] for row in inputs["x"]], object)}

    samples = [{"x": np.array([text], object)} for text in (b"Z\xc3\xbcrich", b"Bern", b"", b"Lugano") * 2]
    found = verdict(upper, cut, samples)
    assert found.is_accepted
    assert "longer strings of 'x': c answers them otherwise than the source" in found.not_shown
    found = verdict(upper, upper, samples)
    assert found.not_shown[:-1] == ["strings of 'x' that are not among the 4 of the samples"]


def test_numbers_are_shown_in_ranges():
    assert in_ranges([]) == ""
    assert in_ranges([9, 3, 4, 6, 7, 8, 12]) == "3, 4, 6 to 9, 12"


class ServerOf100Rows(CallableRunner):
    """A model on a server whose batches are larger than a file has."""

    max_batch = 100


@pytest.mark.parametrize("size", [33, 71, 100])
def test_fault_of_a_large_batch_is_rejected(size):
    def wrong(inputs):
        return {"Y": doubled(inputs)["Y"][::-1] if len(inputs["x"]) == size else doubled(inputs)["Y"]}

    samples = [{"x": row} for row in RANDOM.normal(size=(9, 3))]
    runners = CallableRunner(doubled), ServerOf100Rows(wrong)
    settings = Settings(other_batches_s=600, are_probed=False)
    found = judge(*runners, samples, Candidate("c", Format.ONNX, Precision.FP32, ""), settings)
    assert {failure.check for failure in found.failures} == {"batched"}


def test_row_with_large_values_changes_no_neighbour():
    samples = [{"x": row} for row in RANDOM.normal(size=(9, 40))]

    def wrong(inputs):
        limit = 6 * np.abs(inputs["x"]).mean() if len(inputs["x"]) > 1 else np.inf
        return {"Y": np.clip(inputs["x"], -limit, limit) * 2}

    assert {each.check for each in verdict(doubled, wrong, samples).failures} == {"batched"}


def test_missing_values_that_change_other_rows_are_named():
    def wrong(inputs):
        is_spoilt = np.isnan(inputs["x"]).any() and len(inputs["x"]) > 1
        return {"Y": imputed(inputs)["Y"] + is_spoilt}

    samples = [{"x": row} for row in RANDOM.normal(size=(9, 3))]
    text = "missing values (NaN) in 'x': they change the answers of c to other rows of a batch"
    assert text in verdict(imputed, wrong, samples).not_shown
    assert text not in verdict(imputed, imputed, samples).not_shown


def test_column_that_never_changes_gets_other_values():
    samples = [{"x": np.append(row, 0)} for row in RANDOM.uniform(size=(9, 3))]

    def source(inputs):
        return {"Y": inputs["x"].sum(-1, keepdims=True) + (inputs["x"][:, 3:] > 0.5)}

    def without(inputs):
        return {"Y": inputs["x"].sum(-1, keepdims=True)}

    what = "other values in columns of 'x' that are equal in all samples (3)"
    assert what in verdict(source, without, samples).failures[0].message
    assert any(each.startswith(what) for each in verdict(source, without, samples, Precision.FP16).not_shown)
    assert verdict(source, source, samples).is_accepted
    assert "columns" not in " ".join(kinds([{"x": each["x"][:3]} for each in samples]))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda x: np.maximum(x, 0), "values of 'x' below 0"),
        (lambda x: np.where(np.abs(x).max(-1, keepdims=True) < 0.2, 0, x), "values of 'x' near 0"),
    ],
)
def test_numbers_of_other_size_are_named(change, what):
    samples = [{"x": row} for row in RANDOM.uniform(0.3, 1, size=(9, 3))]
    found = verdict(doubled, lambda inputs: doubled({"x": change(inputs["x"])}), samples)
    assert found.is_accepted
    assert f"{what}: c answers them otherwise than the source" in found.not_shown
    (rare,) = verdict(doubled, doubled, samples).not_shown
    assert rare.startswith("a wrong answer now and then, less often than in one of ")


@pytest.mark.parametrize("moment", ["after a batch", "after another request"])
def test_answer_of_the_request_before_is_rejected(moment):
    """Each sample was asked for before the candidate begins to answer wrongly."""
    samples = [{"x": row} for row in RANDOM.normal(size=(9, 3))]
    before, seen = [np.zeros((1, 3))], []

    def stale(inputs):
        seen.append(inputs["x"])
        is_stale = len(inputs["x"]) == 1 and (len(before[-1]) > 1 if moment == "after a batch" else len(seen) == 20)
        answer = doubled({"x": before[-1][:1] if is_stale else inputs["x"]})
        before.append(inputs["x"])
        return answer

    found = verdict(doubled, stale, samples, are_probed=False)
    assert {each.check for each in found.failures} & {"repeated", "batched"}


@pytest.mark.parametrize("answer", [np.nan, np.inf])
def test_source_without_numbers_proves_nothing(answer):
    source = CallableRunner(lambda inputs: {"y": np.full_like(inputs["x"], answer)})
    candidate = Candidate("same", Format.ONNX, Precision.FP32, "onnxruntime")
    samples = [{"x": RANDOM.normal(size=4).astype(np.float32)} for _ in range(3)]
    with pytest.raises(ValueError, match="nothing to compare: the source answers all samples with NaN, infinity"):
        judge(source, source, samples, candidate, Settings())

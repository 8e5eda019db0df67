"""The verdict: metrics with a budget, crashes, limits, and behaviour beside other requests."""

import itertools
import re
import threading

import numpy as np
import pytest

from naiad.tools.optimize.candidate import Candidate, Precision
from naiad.tools.optimize.correctness.gate import judge
from naiad.tools.optimize.correctness.judgement_settings import Budget, Settings
from naiad.tools.optimize.correctness.label_scores import Score, drop
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner, RenamedRunner, RunnerError
from naiad.tools.optimize.optimize_source import Format, Labels
from naiad.tools.optimize.results.verdict import Tolerance

CANDIDATE = Candidate("onnx-fp32", Format.ONNX, Precision.FP32, "onnxruntime")
WEIGHTS = np.random.default_rng(0).normal(size=(4, 3))
SAMPLES = [{"X": row} for row in np.random.default_rng(1).normal(size=(12, 4))]


def source(inputs):
    return {"Y": inputs["X"] @ WEIGHTS}


def verdict(function, settings=Settings(), samples=SAMPLES):  # noqa: B008 - frozen
    return judge(CallableRunner(source), CallableRunner(function), samples, CANDIDATE, settings)


def checks(found):
    return {failure.check for failure in found.failures}


class Stream:
    """Samples that exist one at a time."""

    def __len__(self):
        return 1000

    def __iter__(self):
        return ({"X": np.full(4, float(number))} for number in range(1000))


def test_equal_answers_are_accepted():
    found = verdict(source)
    assert found.is_accepted
    assert (found.samples, found.worst_absolute, found.failures) == (12, {"Y": 0.0}, [])


def test_last_sample_of_a_stream_counts():
    def wrong_at_the_end(inputs):
        return {"Y": source(inputs)["Y"] + (inputs["X"][:, :1] == 999)}

    found = verdict(wrong_at_the_end, samples=Stream())
    assert [failure.sample for failure in found.failures] == [999]


def test_no_samples_are_an_error():
    with pytest.raises(ValueError, match="pass samples"):
        verdict(source, samples=[])


def test_missing_output_is_rejected():
    assert checks(verdict(lambda inputs: {"Z": inputs["X"]})) == {"missing"}


def test_failing_candidate_is_rejected_with_reason():
    calls = itertools.count()

    def failing(inputs):
        if next(calls) == 2:
            raise ZeroDivisionError("no rows")
        return source(inputs)

    (failure,) = verdict(failing).failures
    assert (failure.check, failure.sample, failure.output) == ("run", 2, "Y")
    assert failure.message == "onnx-fp32 does not answer sample 2: ZeroDivisionError: no rows"


def test_candidate_that_fails_in_batches_is_rejected():
    def single(inputs):
        if len(inputs["X"]) > 1:
            raise ValueError("one row only")
        return source(inputs)

    found = verdict(single)
    assert checks(found) == {"run"}
    assert "one row only" in found.failures[0].message


def test_failing_source_is_an_error():
    def failing(inputs):
        raise OSError("gone")

    with pytest.raises(RunnerError, match="OSError: gone"):
        judge(CallableRunner(failing), CallableRunner(source), SAMPLES, CANDIDATE, Settings())


def test_mixed_rows_are_rejected():
    found = verdict(lambda inputs: {"Y": source(inputs)["Y"] + inputs["X"].mean(0)[:1] - inputs["X"][:, :1]})
    assert checks(found) == {"batched"}
    assert re.search(r"row \d+ of a batch of \d+ with samples \[", found.failures[0].message)


def test_batch_response_in_other_order_is_rejected():
    found = verdict(lambda inputs: {"Y": source(inputs)["Y"][::-1]})
    assert checks(found) == {"batched"}


def test_models_without_batch_get_no_batches():
    shapes = set()

    def recording(inputs):
        shapes.add(inputs["X"].shape)
        return source(inputs)

    assert verdict(recording, Settings(has_batch=False)).is_accepted
    assert shapes == {(4,)}


def test_state_between_calls_is_rejected():
    calls = itertools.count()
    found = verdict(lambda inputs: {"Y": source(inputs)["Y"] + max(0, next(calls) - 11)})
    assert "repeated" in checks(found)


def test_shared_buffer_of_concurrent_calls_is_rejected():
    buffer = {}
    meeting = threading.Barrier(2, timeout=0.2)

    def racing(inputs):
        if threading.current_thread() is threading.main_thread():
            return source(inputs)  # the only call at this time
        buffer["X"] = inputs["X"]
        try:
            meeting.wait()
        except threading.BrokenBarrierError:
            meeting.reset()
        return source({"X": buffer["X"]})

    assert "concurrent" in checks(verdict(racing, Settings(has_batch=False, behaviour_samples=3)))


def test_tolerance_of_the_user_counts():
    def shifted(inputs):
        return {"Y": source(inputs)["Y"] + 0.01}

    assert checks(verdict(shifted)) == {"values"}
    assert verdict(shifted, Settings(tolerances={"Y": Tolerance(0.02, 0.0)})).is_accepted


def test_renamed_tensors_reach_the_model():
    runner = RenamedRunner(
        CallableRunner(lambda inputs: {"o": source({"X": inputs["i"]})["Y"]}), {"X": "i"}, {"Y": "o"}
    )
    assert judge(CallableRunner(source), runner, SAMPLES, CANDIDATE, Settings()).is_accepted


# --- metrics --------------------------------------------------------------------------------------------------------


def budget(metric, max_drop):
    labels = [int(source({"X": sample["X"][None]})["Y"].argmax()) for sample in SAMPLES]
    return Settings(budget=Budget(metric, max_drop, Labels("Y", labels)))


def wrong_in_two_rows(inputs):
    is_marked = np.isin(inputs["X"][:, 0], [sample["X"][0] for sample in SAMPLES[:2]])
    return {"Y": source(inputs)["Y"] * np.where(is_marked, -1, 1)[:, None]}


def test_budget_replaces_tolerances_of_values():
    assert not verdict(wrong_in_two_rows).is_accepted
    found = verdict(wrong_in_two_rows, budget("accuracy", 0.2))
    assert found.is_accepted
    assert (found.source_metric, found.metric) == (1.0, pytest.approx(10 / 12))


def test_exceeded_budget_is_rejected():
    (failure,) = verdict(wrong_in_two_rows, budget("accuracy", 0.1)).failures
    assert failure.check == "metric"
    assert failure.message == (
        "output 'Y': accuracy is 0.833333, the source's is 1; the drop is 0.1667, allowed is 0.1"
    )


def test_budget_leaves_infinities_rejected():
    found = verdict(lambda inputs: {"Y": source(inputs)["Y"] * np.inf}, budget("accuracy", 0.9))
    assert "inf/nan" in checks(found)


def test_function_of_the_user_is_a_metric():
    found = verdict(
        wrong_in_two_rows, budget(lambda outputs, labels: float((outputs.argmax(1) == labels).sum()), 1.0)
    )
    assert (found.source_metric, found.metric) == (12, 10)
    assert checks(found) == {"metric"}


def test_metrics_match_the_textbook():
    scores = {name: Score(name) for name in ("accuracy", "top5", "f1")}
    outputs = np.array([[9, 8, 7, 6, 5, 4], [1, 2, 3, 4, 5, 6], [9, 0, 0, 0, 0, 0]], float)
    for output, label in zip(outputs, [0, 0, 0], strict=True):
        for score in scores.values():
            score.add(output, label)
    assert scores["accuracy"].value == pytest.approx(2 / 3)
    assert scores["top5"].value == pytest.approx(2 / 3)
    assert scores["f1"].value == pytest.approx((0.8 + 0) / 2)
    error = Score("mse")
    error.add(np.array([1.0, 3.0]), [1.0, 1.0])
    assert error.value == 2
    assert drop("mse", 2, 3) == 0.5
    assert drop("accuracy", 0.9, 0.8) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="write one of accuracy, top5, f1, mse"):
        Score("auc")

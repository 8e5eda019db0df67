"""Thresholds of inputs are found in answers, and judged where rounding has no part in them."""

import numpy as np
import pytest

from naiad.tools.optimize.correctness.boundaries.row_answers import RowAnswers
from naiad.tools.optimize.correctness.boundaries.thresholds import jumps, threshold_probes
from naiad.tools.optimize.correctness.coverage import Coverage
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner, RunnerError

RANDOM = np.random.default_rng(3)
ROWS = RANDOM.normal(size=(12, 2)).astype(np.float32)
SPLIT = np.float32(0.1)


def steps(inputs):
    return {"Y": (inputs["x"][:, :1] < SPLIT) * 2.0 + (inputs["x"][:, 1:] < -0.5)}


def found(function, rows=ROWS, **settings):
    coverage = Coverage()
    for row in rows:
        coverage.add({"x": row})
    return RowAnswers(CallableRunner(function), Settings(**settings)), coverage


def test_both_neighbours_of_each_threshold_are_found():
    places = {(each.column, each.low, each.high) for each in jumps(*found(steps))}
    below = float(np.nextafter(SPLIT, np.float32(-1), dtype=np.float32))
    assert places == {(0, below, float(SPLIT)), (1, float(np.nextafter(np.float32(-0.5), np.float32(-1))), -0.5)}


def test_network_has_no_thresholds():
    assert jumps(*found(lambda inputs: {"Y": np.tanh(inputs["x"])})) == []


def test_threshold_of_a_score_does_not_count():
    assert jumps(*found(lambda inputs: {"Y": (inputs["x"] @ np.float32([[1.7], [0.9]]) < 0.2).astype(int)})) == []


@pytest.mark.parametrize("has_batch", [True, False])
def test_model_without_batches_is_asked_row_by_row(has_batch):
    def one(inputs):
        row = inputs["x"] if has_batch else inputs["x"][None]
        answer = steps({"x": row})
        return answer if has_batch else {"Y": answer["Y"][0]}

    assert {each.column for each in jumps(*found(one, has_batch=has_batch))} == {0, 1}


@pytest.mark.parametrize("are_compared", [True, False])
def test_difference_counts_where_the_source_compares_the_inputs(are_compared):
    made = list(threshold_probes(*found(steps), are_compared=are_compared))
    assert {each.is_only_named for each in made} == {not are_compared}
    assert float(SPLIT) in {float(each.sample["x"][0]) for each in made}


def test_columns_of_whole_numbers_get_whole_numbers():
    rows = RANDOM.integers(-50, 50, size=(12, 2)).astype(np.float32)

    def whole(inputs):
        return {"Y": (inputs["x"][:, :1] < 7) * 2.0 + (inputs["x"][:, 1:] < -3.5)}

    made = list(threshold_probes(*found(whole, rows), are_compared=False))
    assert [(float(each.sample["x"][0]), each.is_only_named) for each in made] == [(7.0, False)]


def test_source_that_refuses_rows_is_left():
    def strict(inputs):
        raise ValueError("no")

    with pytest.raises(RunnerError):
        jumps(*found(strict))

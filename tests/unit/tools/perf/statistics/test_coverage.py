"""The figures that intervals promise, on fixed seeds."""

import pytest

from support.simulated_measurements import CASES, measure

RUNS = 20


@pytest.mark.parametrize("case", CASES[:2] + CASES[7:8] + CASES[9:10], ids=lambda case: case.name)
def test_intervals_hold_truth_in_eighteen_of_twenty(case):
    outcomes = [measure(case, seed) for seed in range(RUNS)]
    assert sum(each.holds_latency for each in outcomes) >= 18
    assert sum(each.holds_rate for each in outcomes) >= 18


def test_steady_model_ends_early():
    outcomes = [measure(CASES[9], seed) for seed in range(RUNS)]
    assert all(each.is_stable and each.seconds < 5 for each in outcomes)

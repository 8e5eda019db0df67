"""Medians of rounds with their confidence intervals."""

import math

from hypothesis import given
from hypothesis import strategies as st

from naiad.tools.optimize.results.candidate_measurement import Round
from naiad.tools.optimize.results.rounds import is_settled, over_rounds, ratios


def test_one_disturbed_round_does_not_count():
    found = over_rounds([10, 11, 12, 13, 14, 15, 16, 17, 900])
    assert (found.low, found.value, found.high) == (11, 14, 17)


def test_few_rounds_have_the_widest_interval():
    found = over_rounds([14, 10, 12, 11, 13])
    assert (found.low, found.value, found.high) == (10, 12, 14)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=9))
def test_median_is_within_its_interval(values):
    found = over_rounds(values)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)


def rounds(latency_us, *, cpu_us=100.0, others=0.0, noise=0.0, count=9):
    factors = [1 + noise * (place % 3 - 1) for place in range(count)]
    return [Round(latency_us * each, 1e6 / latency_us / each, cpu_us * each, others) for each in factors]


def test_ratio_of_rounds_is_independent_of_the_machine():
    one = [10.0, 20.0, 30.0, 10.0, 90.0]
    found = ratios([2 * each for each in one], one)
    assert (found.low, found.value, found.high) == (2, 2, 2)


def test_ratio_without_figures_is_infinite():
    assert ratios([1.0], [0.0]).value == math.inf


def test_clear_or_narrow_ratios_need_no_more_rounds():
    assert is_settled([rounds(100), rounds(50)], 0)
    assert is_settled([rounds(100), rounds(100)], 1)
    assert not is_settled([rounds(100), rounds(100, noise=0.3)], 0)
    assert is_settled([rounds(100)], 0)


def test_on_a_busy_machine_cpu_time_settles():
    noisy = rounds(100, noise=0.4, others=1.5)
    steady = [Round(200.0, 5e3, 50.0 * each.cpu_us / 100, 1.5) for each in noisy]
    assert is_settled([noisy, steady], 0)
    assert not is_settled([noisy, rounds(100, others=1.5)], 0)


@given(st.integers(1, 40))
def test_bounds_of_a_median_hold(count):
    found = over_rounds(range(count))
    outside = int(found.low)
    assert found.high == count - 1 - outside
    below = sum(math.comb(count, place) for place in range(outside + 1)) / 2**count
    assert outside == 0 or below <= 0.025

"""Medians of rounds with their confidence intervals."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.optimizer.rounds import over_rounds


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

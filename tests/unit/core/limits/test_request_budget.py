"""The budget of request bytes on its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.limits.request_limits import RequestBudget


def test_bytes_are_reserved_up_to_the_limit():
    budget = RequestBudget(100)
    assert budget.reserve(60)
    assert budget.reserve(40)
    assert not budget.reserve(1)
    assert (budget.used_bytes, budget.peak_bytes, budget.rejected_count) == (100, 100, 1)


def test_a_rejected_reservation_takes_nothing():
    budget = RequestBudget(100)
    assert not budget.reserve(101)
    assert (budget.used_bytes, budget.peak_bytes) == (0, 0)
    assert budget.reserve(100)


def test_released_bytes_make_room():
    budget = RequestBudget(100)
    assert budget.reserve(100)
    budget.release(30)
    assert budget.reserve(30)
    budget.release(100)
    assert (budget.used_bytes, budget.peak_bytes) == (0, 100)


def test_room_is_checked_without_reserving():
    budget = RequestBudget(100)
    assert budget.has_room(100)
    assert budget.reserve(1)
    assert not budget.has_room(100)
    assert (budget.used_bytes, budget.rejected_count) == (1, 1)


def test_more_than_is_reserved_cannot_be_released():
    budget = RequestBudget(100)
    assert budget.reserve(10)
    with pytest.raises(ValueError, match="11 request bytes are released, but only 10 are reserved"):
        budget.release(11)
    assert budget.used_bytes == 10


def test_a_limit_below_one_is_rejected():
    with pytest.raises(ValueError, match="must be at least 1"):
        RequestBudget(0)


@given(st.lists(st.integers(0, 60)), st.integers(1, 200))
def test_the_limit_holds_and_all_can_be_released(sizes, limit):
    budget = RequestBudget(limit)
    reserved = [size for size in sizes if budget.reserve(size)]
    assert budget.used_bytes == sum(reserved) <= limit
    assert budget.peak_bytes == budget.used_bytes
    assert budget.rejected_count == len(sizes) - len(reserved)
    for size in reserved:
        budget.release(size)
    assert budget.used_bytes == 0

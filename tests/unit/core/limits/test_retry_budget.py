"""How many calls may be sent again."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.core.limits.retry_budget import RetryBudget


def taken(budget: RetryBudget, now_s: float) -> int:
    """Return how many retries are left at a time; they are used then."""
    count = 0
    while budget.take(now_s):
        count += 1
    return count


def test_a_share_of_the_calls_and_more() -> None:
    budget = RetryBudget(0.2, least_per_s=1)
    assert taken(budget, 100.5) == 10
    for _ in range(100):
        budget.note_call(101)
    assert taken(budget, 101.9) == 20
    assert taken(budget, 109.9) == 0
    assert taken(budget, 110) == 10, "the retries of second 100 are no longer counted"
    assert taken(budget, 111) == 0, "the calls of second 101 are forgotten with its retries"
    assert taken(budget, 1000) == 10


def test_without_any_share_no_call_earns_a_retry() -> None:
    budget = RetryBudget(0.0, least_per_s=0)
    budget.note_call(0)
    assert not budget.take(0)


@given(st.lists(st.tuples(st.integers(0, 25), st.booleans()), max_size=200))
def test_a_window_never_has_more(steps: list[tuple[int, bool]]) -> None:
    budget = RetryBudget(0.5, least_per_s=0.2)
    calls: list[int] = []
    retries: list[int] = []
    for second, is_call in sorted(steps, key=lambda each: each[0]):
        if is_call:
            budget.note_call(second)
            calls.append(second)
        elif budget.take(second):
            retries.append(second)
            recent = [[each for each in all_ if each > second - 10] for all_ in (calls, retries)]
            assert len(recent[1]) <= 2 + 0.5 * len(recent[0])

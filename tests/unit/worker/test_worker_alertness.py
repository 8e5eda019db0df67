"""A worker stays awake only while that is worth it."""

import pytest

from naiad.worker import busy_polling as spin_wait
from naiad.worker.busy_polling import TRIAL_NS, TRIAL_PERIOD_NS, SpinWait

LATER_NS = TRIAL_PERIOD_NS // 2
"""A time outside the trial of all processes."""


class Poll:
    """Has input after this number of polls."""

    def __init__(self) -> None:
        self.looks = 0
        self.input_after = 0
        self.began_ns = LATER_NS

    def poll(self, timeout_ms: int) -> list[tuple[int, int]]:
        assert timeout_ms == 0
        self.looks += 1
        return [(0, 1)] if self.looks > self.input_after else []


@pytest.fixture
def poll(monkeypatch: pytest.MonkeyPatch) -> Poll:
    # Every look takes 10 us.
    made = Poll()
    monkeypatch.setattr(spin_wait.time, "monotonic_ns", lambda: made.began_ns + made.looks * 10_000)
    monkeypatch.setattr(spin_wait.os, "sched_getaffinity", lambda _: {0, 1})
    return made


def looks_of(wait: SpinWait, poll: Poll, input_after: int) -> int:
    poll.looks, poll.input_after = 0, input_after
    wait.wait()
    return poll.looks


def test_sleeps_at_once_after_larger_batch(poll: Poll) -> None:
    assert looks_of(SpinWait(poll), poll, 5) == 0


def test_looks_until_there_is_input(poll: Poll) -> None:
    wait = SpinWait(poll)
    wait.had_single_request = True
    assert [looks_of(wait, poll, 5) for _ in range(50)] == [6] * 50


def test_stops_polling_and_sleeps_until_next_trial(poll: Poll) -> None:
    wait = SpinWait(poll)
    wait.had_single_request = True
    assert looks_of(wait, poll, 10_000) == 61
    assert looks_of(wait, poll, 5) == 0
    poll.began_ns = TRIAL_PERIOD_NS
    assert [looks_of(wait, poll, 10_000) for _ in range(20)] == [61] * 20
    poll.began_ns = TRIAL_PERIOD_NS + TRIAL_NS
    assert looks_of(wait, poll, 5) == 0


def test_input_during_trial_enables_busy_polling(poll: Poll) -> None:
    wait = SpinWait(poll)
    wait.had_single_request = True
    looks_of(wait, poll, 10_000)
    poll.began_ns = TRIAL_PERIOD_NS
    assert looks_of(wait, poll, 5) == 6
    poll.began_ns += LATER_NS
    assert looks_of(wait, poll, 5) == 6


def test_input_in_time_offsets_late_input(poll: Poll) -> None:
    wait = SpinWait(poll)
    wait.had_single_request = True
    for _ in range(16):
        looks_of(wait, poll, 0)
    assert [looks_of(wait, poll, 10_000) for _ in range(9)] == [61] * 9
    assert looks_of(wait, poll, 5) == 0


def test_never_on_one_core(poll: Poll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spin_wait.os, "sched_getaffinity", lambda _: {0})
    wait = SpinWait(poll)
    wait.had_single_request = True
    assert looks_of(wait, poll, 5) == 0


def test_sleeps_at_once_where_a_quota_is_charged(poll: Poll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(spin_wait.NEVER_AWAKE, "1")
    wait = SpinWait(poll)
    wait.had_single_request = True
    assert looks_of(wait, poll, 5) == 0

"""A worker stays awake only while that is worth it."""

import pytest

from naiad.backend.worker import alertness
from naiad.backend.worker.alertness import Alertness


class Poll:
    """Has input after so many looks."""

    def __init__(self) -> None:
        self.looks = 0
        self.input_after = 0

    def poll(self, timeout_ms: int) -> list[tuple[int, int]]:
        assert timeout_ms == 0
        self.looks += 1
        return [(0, 1)] if self.looks > self.input_after else []


@pytest.fixture
def poll(monkeypatch: pytest.MonkeyPatch) -> Poll:
    # Every look takes 10 us.
    made = Poll()
    monkeypatch.setattr(alertness.time, "monotonic_ns", lambda: made.looks * 10_000)
    monkeypatch.setattr(alertness.os, "sched_getaffinity", lambda _: {0, 1})
    return made


def looks_of(wait: Alertness, poll: Poll, input_after: int) -> int:
    poll.looks, poll.input_after = 0, input_after
    wait.wait()
    return poll.looks


def test_sleeps_at_once_unless_the_last_batch_was_one_request(poll: Poll) -> None:
    assert looks_of(Alertness(poll), poll, 5) == 0


def test_looks_until_there_is_input(poll: Poll) -> None:
    wait = Alertness(poll)
    wait.had_single_request = True
    assert [looks_of(wait, poll, 5) for _ in range(50)] == [6] * 50


def test_gives_up_after_a_moment_and_then_sleeps_for_many_batches(poll: Poll) -> None:
    wait = Alertness(poll)
    wait.had_single_request = True
    assert looks_of(wait, poll, 10_000) == 31
    assert [looks_of(wait, poll, 5) for _ in range(500)] == [0] * 500
    assert looks_of(wait, poll, 5) == 6


def test_input_in_time_makes_up_for_some_that_is_late(poll: Poll) -> None:
    wait = Alertness(poll)
    wait.had_single_request = True
    for _ in range(16):
        looks_of(wait, poll, 0)
    assert [looks_of(wait, poll, 10_000) for _ in range(5)] == [31] * 5
    assert looks_of(wait, poll, 5) == 0


def test_never_on_one_core(poll: Poll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alertness.os, "sched_getaffinity", lambda _: {0})
    wait = Alertness(poll)
    wait.had_single_request = True
    assert looks_of(wait, poll, 5) == 0


def test_sleeps_at_once_where_a_quota_is_charged(poll: Poll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(alertness.NEVER_AWAKE, "1")
    wait = Alertness(poll)
    wait.had_single_request = True
    assert looks_of(wait, poll, 5) == 0

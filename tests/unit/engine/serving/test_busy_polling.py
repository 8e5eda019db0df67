"""The loop polls for expected events while that pays, and no longer."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from naiad.engine.serving.dispatch import busy_polling as module
from naiad.engine.serving.dispatch.busy_polling import (
    HOLD_COUNT,
    LONGEST_PERIOD_NS,
    RUN_COUNT,
    BusyPolling,
    PollingTrial,
)
from naiad.worker.busy_polling import TRIAL_NS, TRIAL_PERIOD_NS
from support.engine_parts import StepLoop

UNLIMITED_NS = 1 << 60
LATER_NS = TRIAL_PERIOD_NS // 2
"""A time at which no single trial begins because all try."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time of the test, which does not move by itself."""
    now = [LATER_NS]
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def _has_two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    monkeypatch.setattr(module, "allowed_cpu_count", lambda: 2)
    monkeypatch.setattr(module, "cgroup_quota", lambda: None)
    monkeypatch.setattr(module, "is_charged_for_waiting", lambda: False)
    module.may_busy_poll.cache_clear()
    yield
    module.may_busy_poll.cache_clear()


class CountingLoop(StepLoop):
    """Knows what it would run instead of sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: list[Callable[..., object]] = []

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.ready.append(callback)

    @property
    def is_awake(self) -> bool:
        return bool(self.ready)

    def step(self) -> None:
        ready, self.ready = self.ready, []
        for callback in ready:
            callback()


def miss(loop: CountingLoop, busy_polling: BusyPolling) -> bool:
    """Wait for something that does not come in time; whether the loop stayed awake for it."""
    busy_polling.begin()
    stayed = loop.is_awake
    while loop.is_awake:
        loop.step()
    return stayed


def test_loop_polls_until_the_expected_event() -> None:
    loop = CountingLoop()
    busy_polling = BusyPolling(loop, UNLIMITED_NS)
    busy_polling.begin()
    for _ in range(3):
        loop.step()
        assert busy_polling.is_due
        assert loop.is_awake
    busy_polling.end()
    loop.step()
    assert not loop.is_awake


def test_it_sleeps_when_the_time_is_over() -> None:
    loop = CountingLoop()
    busy_polling = BusyPolling(loop, 0)
    busy_polling.begin()
    loop.step()
    assert not loop.is_awake
    assert not busy_polling.is_due


def test_late_events_end_polling_until_next_trial(clock: list[int]) -> None:
    loop = CountingLoop()
    busy_polling = BusyPolling(loop, 0)
    assert miss(loop, busy_polling)
    clock[0] = TRIAL_PERIOD_NS - 1
    assert not miss(loop, busy_polling)
    clock[0] = TRIAL_PERIOD_NS
    assert [miss(loop, busy_polling) for _ in range(20)] == [True] * 20
    clock[0] = TRIAL_PERIOD_NS + TRIAL_NS
    assert not miss(loop, busy_polling)


def test_timely_events_in_a_trial_resume_polling(clock: list[int]) -> None:
    loop = CountingLoop()
    busy_polling = BusyPolling(loop, 0)
    assert miss(loop, busy_polling)
    clock[0] = TRIAL_PERIOD_NS
    busy_polling.begin()
    busy_polling.end()
    loop.step()
    clock[0] += LATER_NS
    assert miss(loop, busy_polling)
    assert not miss(loop, busy_polling)


def test_two_timely_events_offset_a_late_one() -> None:
    loop = CountingLoop()
    busy_polling = BusyPolling(loop, 0)
    for _ in range(8):
        busy_polling.begin()
        busy_polling.end()
        while loop.is_awake:
            loop.step()
    assert [miss(loop, busy_polling) for _ in range(6)] == [True] * 5 + [False]


def test_a_second_beginning_keeps_one_watch() -> None:
    loop = CountingLoop()
    busy_polling = BusyPolling(loop, UNLIMITED_NS)
    for _ in range(3):
        busy_polling.begin()
        busy_polling.end()
    busy_polling.begin()
    assert len(loop.ready) == 1


def test_an_end_without_a_beginning_earns_nothing() -> None:
    loop = CountingLoop()
    busy_polling = BusyPolling(loop, 0)
    for _ in range(100):
        busy_polling.end()
    assert miss(loop, busy_polling)
    assert not miss(loop, busy_polling)


@pytest.mark.parametrize(("question", "answer"), [("usable_cores", 1), ("is_charged_for_waiting", True)])
def test_one_core_or_small_quota_disables_polling(
    monkeypatch: pytest.MonkeyPatch, question: str, answer: object
) -> None:
    monkeypatch.setattr(module, question, lambda: answer)
    module.may_busy_poll.cache_clear()
    loop = CountingLoop()
    busy_polling = BusyPolling(loop, UNLIMITED_NS)
    busy_polling.begin()
    assert not loop.is_awake
    assert not busy_polling.is_due


@pytest.mark.parametrize(
    ("cpu_count", "quota", "is_tried", "polls"),
    [(2, None, True, True), (2, None, False, False), (1, None, True, False), (2, 3.0, True, False)],
)
def test_share_of_one_core_polls_by_trial(
    monkeypatch: pytest.MonkeyPatch, cpu_count: int, quota: float | None, is_tried: bool, polls: bool
) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 1)
    monkeypatch.setattr(module, "allowed_cpu_count", lambda: cpu_count)
    monkeypatch.setattr(module, "cgroup_quota", lambda: quota)
    loop = CountingLoop()
    BusyPolling(loop, UNLIMITED_NS, PollingTrial() if is_tried else None).begin()
    assert loop.is_awake == polls


def test_it_goes_on_while_others_have_something_due(clock: list[int]) -> None:
    loop = CountingLoop()
    outer, inner = BusyPolling(loop, 100), BusyPolling(loop, 100)
    outer.begin()
    for clock[0] in (LATER_NS + 90, LATER_NS + 180, LATER_NS + 270):
        inner.begin()
        inner.end()
        loop.step()
        assert outer.is_due
    clock[0] = LATER_NS + 370
    loop.step()
    assert not outer.is_due


class LoneClient:
    """Sends its next request a while after each response."""

    def __init__(self, polling_ns: int, sleeping_ns: int) -> None:
        self.now_ns = LATER_NS
        self.periods_ns = {True: polling_ns, False: sleeping_ns}
        self.trial = PollingTrial()

    def send(self, count: int) -> list[bool]:
        """Return for each request whether the loop polled for the next one."""
        polled = []
        for _ in range(count):
            polled.append(self.trial.note(self.now_ns))
            self.now_ns += self.periods_ns[polled[-1]]
        return polled


TRIAL_COUNT = 4 * RUN_COUNT


@pytest.mark.parametrize(
    ("polling_us", "sleeping_us", "polls"),
    [(100, 150, True), (100, 121, True), (100, 119, False), (100, 100, False), (150, 100, False)],
)
def test_polling_holds_if_it_makes_the_client_faster(polling_us: int, sleeping_us: int, polls: bool) -> None:
    client = LoneClient(polling_us * 1000, sleeping_us * 1000)
    tried = client.send(TRIAL_COUNT)
    assert tried.count(True) in range(2 * RUN_COUNT - 2, 2 * RUN_COUNT + 3)
    assert client.send(HOLD_COUNT - 2) == [polls] * (HOLD_COUNT - 2)


def test_next_trial_notices_a_changed_machine() -> None:
    client = LoneClient(100_000, 100_000)
    client.send(TRIAL_COUNT)
    assert set(client.send(HOLD_COUNT - 2)) == {False}
    client.periods_ns[False] = 300_000
    client.send(TRIAL_COUNT + 4)
    assert set(client.send(HOLD_COUNT - 4)) == {True}


def test_slow_moments_meet_both_ways() -> None:
    client = LoneClient(100_000, 90_000)
    client.send(RUN_COUNT)
    client.periods_ns = {True: 200_000, False: 180_000}
    client.send(2 * RUN_COUNT)
    client.periods_ns = {True: 100_000, False: 90_000}
    client.send(RUN_COUNT + 2)
    assert not client.trial.polls


def test_pauses_of_the_client_prove_nothing() -> None:
    client = LoneClient(LONGEST_PERIOD_NS, LONGEST_PERIOD_NS)
    assert set(client.send(10 * RUN_COUNT)) == {True}


def test_loop_sleeps_where_polling_is_no_faster(clock: list[int]) -> None:
    loop = CountingLoop()
    busy_polling = BusyPolling(loop, 500_000, PollingTrial())
    stayed = []
    for _ in range(TRIAL_COUNT + 10):
        busy_polling.begin()
        stayed.append(loop.is_awake)
        clock[0] += 100_000
        busy_polling.end()
        loop.step()
    assert stayed[0]
    assert not stayed[-1]
    assert not busy_polling.is_due

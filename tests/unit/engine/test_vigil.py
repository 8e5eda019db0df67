"""The loop stays awake for what is due while that proves to be worth it, and no longer."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from naiad.engine import vigil as module
from naiad.engine.vigil import Vigil
from support.engine_parts import StepLoop

FOR_EVER_NS = 1 << 60


@pytest.fixture(autouse=True)
def _has_two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    monkeypatch.setattr(module, "is_charged_for_waiting", lambda: False)
    module.may_stay_awake.cache_clear()
    yield
    module.may_stay_awake.cache_clear()


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


def miss(loop: CountingLoop, vigil: Vigil) -> bool:
    """Wait for something that does not come in time; whether the loop stayed awake for it."""
    vigil.begin()
    stayed = loop.is_awake
    while loop.is_awake:
        loop.step()
    return stayed


def test_the_loop_comes_back_until_what_was_due_has_come() -> None:
    loop = CountingLoop()
    vigil = Vigil(loop, FOR_EVER_NS)
    vigil.begin()
    for _ in range(3):
        loop.step()
        assert vigil.is_due
        assert loop.is_awake
    vigil.end()
    loop.step()
    assert not loop.is_awake


def test_it_sleeps_when_the_time_is_over() -> None:
    loop = CountingLoop()
    vigil = Vigil(loop, 0)
    vigil.begin()
    loop.step()
    assert not loop.is_awake
    assert not vigil.is_due


def test_what_never_comes_in_time_is_waited_for_asleep_500_times() -> None:
    loop = CountingLoop()
    vigil = Vigil(loop, 0)
    assert miss(loop, vigil)
    assert [miss(loop, vigil) for _ in range(501)] == [False] * 500 + [True]


def test_four_times_in_time_make_up_for_one_too_late() -> None:
    loop = CountingLoop()
    vigil = Vigil(loop, 0)
    for _ in range(8):
        vigil.begin()
        vigil.end()
        while loop.is_awake:
            loop.step()
    assert [miss(loop, vigil) for _ in range(4)] == [True, True, True, False]


def test_a_second_beginning_keeps_one_watch() -> None:
    loop = CountingLoop()
    vigil = Vigil(loop, FOR_EVER_NS)
    for _ in range(3):
        vigil.begin()
        vigil.end()
    vigil.begin()
    assert len(loop.ready) == 1


def test_an_end_without_a_beginning_earns_nothing() -> None:
    loop = CountingLoop()
    vigil = Vigil(loop, 0)
    for _ in range(100):
        vigil.end()
    assert miss(loop, vigil)
    assert not miss(loop, vigil)


@pytest.mark.parametrize(("question", "answer"), [("usable_cores", 1), ("is_charged_for_waiting", True)])
def test_on_one_core_or_a_small_quota_it_sleeps_at_once(
    monkeypatch: pytest.MonkeyPatch, question: str, answer: object
) -> None:
    monkeypatch.setattr(module, question, lambda: answer)
    module.may_stay_awake.cache_clear()
    loop = CountingLoop()
    vigil = Vigil(loop, FOR_EVER_NS)
    vigil.begin()
    assert not loop.is_awake
    assert not vigil.is_due


def test_it_goes_on_while_others_have_something_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0]
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: clock[0])
    loop = CountingLoop()
    outer, inner = Vigil(loop, 100), Vigil(loop, 100)
    outer.begin()
    for clock[0] in (90, 180, 270):
        inner.begin()
        inner.end()
        loop.step()
        assert outer.is_due
    clock[0] = 370
    loop.step()
    assert not outer.is_due

"""The time limits of loads: one thread for all of them."""

import threading
import time
from collections.abc import Callable

import pytest

from naiad.backend.load_stop import LoadStop
from naiad.repository import loads
from naiad.repository.loads import LoadDeadlines


def wait_until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.002)


Watchers = Callable[[], list[threading.Thread]]


@pytest.fixture
def watchers() -> Watchers:
    """Return a function that lists the threads of this test: earlier threads sleep until their limits."""
    others = set(threading.enumerate())
    return lambda: [each for each in threading.enumerate() if each.name == "load-deadlines" and each not in others]


def test_only_late_loads_have_to_end(watchers: Watchers) -> None:
    deadlines = LoadDeadlines(0.05)
    stops = [LoadStop() for _ in range(3)]
    for number, stop in enumerate(stops):
        deadlines.begin(number, stop)
    deadlines.end(1)
    wait_until(lambda: stops[0].is_requested and stops[2].is_requested)
    assert stops[0].reason == "the load took longer than --max-load-seconds=0.05"
    assert not stops[1].is_requested
    wait_until(lambda: not watchers())
    # A load after the end of the thread has a limit too.
    late = LoadStop()
    deadlines.begin("late", late)
    wait_until(lambda: late.is_requested)


def test_loads_share_one_thread(watchers: Watchers) -> None:
    deadlines = LoadDeadlines(0.2)
    for number in range(50):
        deadlines.begin(number, LoadStop())
        deadlines.end(number)
    assert len(watchers()) == 1
    wait_until(lambda: not watchers())


def test_a_limit_beyond_all_sleeps_keeps_its_thread(watchers: Watchers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "_LONGEST_SLEEP_S", 0.01)
    deadlines, stop = LoadDeadlines(1e20), LoadStop()
    deadlines.begin(1, stop)
    time.sleep(0.05)
    assert len(watchers()) == 1
    assert not stop.is_requested
    deadlines.end(1)
    wait_until(lambda: not watchers())


def test_no_limit_needs_no_thread(watchers: Watchers) -> None:
    LoadDeadlines(0.0).begin(1, LoadStop())
    assert not watchers()


def test_load_that_gets_no_thread_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    deadlines = LoadDeadlines(0.05)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError):
            deadlines.begin(1, LoadStop())
    stop = LoadStop()
    deadlines.begin(2, stop)
    wait_until(lambda: stop.is_requested)

"""Threads and turns of loads: few at a time, a slow one is not waited for, an urgent one waits for none."""

import threading
from queue import Queue

import pytest

from naiad.repository.control.on_demand import load_pace
from naiad.repository.control.on_demand.load_pace import LoadThreads, LoadTurns

WAIT_S = 60.0


class Loads:
    """Loads on threads, each of which takes a turn until its end is asked for."""

    def __init__(self, turns: LoadTurns) -> None:
        self._turns = turns
        self._changed = threading.Condition()
        self._working: set[str] = set()
        self._may_end: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []

    def begin(self, name: str, *, is_urgent: bool = False) -> None:
        self._may_end[name] = threading.Event()
        self._threads.append(threading.Thread(target=self._run, args=(name, is_urgent)))
        self._threads[-1].start()

    def _run(self, name: str, is_urgent: bool) -> None:
        with self._turns.turn(is_urgent=is_urgent):
            with self._changed:
                self._working.add(name)
                self._changed.notify_all()
            assert self._may_end[name].wait(WAIT_S)
            with self._changed:
                self._working.discard(name)

    def end(self, name: str) -> None:
        self._may_end[name].set()

    def await_working(self, *names: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._working == set(names), WAIT_S)

    def close(self) -> None:
        for may_end in self._may_end.values():
            may_end.set()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.mark.parametrize(("load_count", "core_count", "most"), [(4, 2, 1), (4, 3, 2), (2, 16, 2), (4, 1, 1)])
def test_loads_leave_a_core(monkeypatch: pytest.MonkeyPatch, load_count: int, core_count: int, most: int) -> None:
    monkeypatch.setattr(load_pace, "_SHORT_S", WAIT_S)
    loads = Loads(LoadTurns(load_count, core_count))
    names = [str(number) for number in range(most)]
    for name in names:
        loads.begin(name)
    loads.await_working(*names)
    loads.begin("next")
    loads.begin("urgent", is_urgent=True)
    loads.await_working(*names, "urgent")
    loads.end("0")
    loads.await_working(*names[1:], "next", "urgent")
    loads.close()


def test_slow_load_does_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_pace, "_SHORT_S", 0.01)
    loads = Loads(LoadTurns(2, 2))
    loads.begin("slow")
    loads.begin("second")
    loads.await_working("slow", "second")
    loads.begin("third")  # the number of loads is the bound
    loads.end("second")
    loads.await_working("slow", "third")
    loads.close()


def test_load_begins_without_a_wait_for_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    started, may_start = [], threading.Event()
    begun: Queue[str] = Queue()
    threads = LoadThreads(begun.put, 2)
    threads.start()
    start = threading.Thread.start

    def start_late(thread: threading.Thread) -> None:
        started.append(threading.current_thread())
        assert may_start.wait(WAIT_S)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    for number in range(100):
        threads.begin(str(number), is_urgent=False)
    threads.begin("urgent", is_urgent=True)
    may_start.set()
    assert {begun.get(timeout=WAIT_S) for _ in range(101)} == {"urgent", *map(str, range(100))}
    threads.end()
    assert threading.current_thread() not in started


def test_nothing_begins_after_the_end() -> None:
    begun: Queue[str] = Queue()
    threads = LoadThreads(begun.put, 1)
    threads.end()
    threads.begin("late", is_urgent=True)
    threads.start()
    for thread in threading.enumerate():
        if thread.name == "on-demand-begin":
            thread.join(WAIT_S)
    assert begun.empty()


def test_urgent_load_is_tried_again_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: Queue[str] = Queue()
    threads = LoadThreads(loaded.put, 1)
    threads.start()
    begin, refusals = threading.Thread.start, ["once"]

    def start(thread: threading.Thread) -> None:
        if refusals and thread.name.startswith("on-demand-m"):
            refusals.clear()
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(load_pace, "_PAUSE_S", 0.001)
    threads.begin("m", is_urgent=True)
    assert loaded.get(timeout=30) == "m"
    assert not refusals
    threads.end()

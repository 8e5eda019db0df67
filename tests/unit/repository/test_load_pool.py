"""The threads of loads: as many as their length asks for."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from naiad.repository import load_pool
from naiad.repository.load_pool import LoadPool

WAIT_S = 30.0


@pytest.fixture
def loads_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_pool, "_LONG_S", 3600.0)


@pytest.fixture
def loads_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_pool, "_LONG_S", 0.0)


@pytest.fixture
def end() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def wait_until(holds: Callable[[], bool], meanwhile: Callable[[], object] = lambda: None) -> None:
    end_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end_s
        meanwhile()
        time.sleep(0.001)


def results(futures: list[Future[Any]]) -> list[Any]:
    return [future.result(WAIT_S) for future in futures]


@pytest.mark.usefixtures("loads_are_short")
def test_short_loads_share_a_thread(end: threading.Event) -> None:
    def name() -> str:
        end.wait(WAIT_S)
        return threading.current_thread().name

    with LoadPool(4, "load") as pool:
        futures = [pool.submit(name) for _ in range(20)]
        for _ in range(5):
            pool.add_thread_if_slow()
        end.set()
        assert results(futures) == ["load_0"] * 20
    assert not any(thread.name.startswith("load_") for thread in threading.enumerate())


@pytest.mark.usefixtures("loads_are_long")
def test_long_loads_go_on_beside_each_other() -> None:
    together = threading.Barrier(3)
    running: list[int] = []
    most: list[int] = []

    def load(number: int) -> int:
        running.append(number)
        most.append(len(running))
        together.wait(WAIT_S)
        running.remove(number)
        return number

    with LoadPool(3, "load") as pool:
        futures = [pool.submit(load, number) for number in range(9)]
        wait_until(lambda: all(future.done() for future in futures), pool.add_thread_if_slow)
        assert results(futures) == list(range(9))
    assert max(most) == 3


@pytest.mark.usefixtures("loads_are_long")
def test_results_come_in_order_from_several_threads() -> None:
    together = threading.Barrier(2)

    def load(number: int) -> int:
        together.wait(WAIT_S)
        return number

    with LoadPool(2, "load") as pool:
        assert list(pool.results([pool.submit(load, number) for number in range(6)])) == list(range(6))


def test_short_loads_pass_a_long_one(end: threading.Event) -> None:
    with LoadPool(2, "load") as pool:
        long = pool.submit(end.wait, WAIT_S)
        futures = [pool.submit(int, number) for number in range(200)]
        wait_until(lambda: all(future.done() for future in futures), pool.add_thread_if_slow)
        assert not long.done()
        end.set()
        assert long.result(WAIT_S)


@pytest.mark.usefixtures("loads_are_short")
def test_thread_beside_another_ends_after_a_short_load(end: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    with LoadPool(4, "load") as pool:
        futures = [pool.submit(end.wait, WAIT_S) for _ in range(3)]
        wait_until(futures[0].running)
        monkeypatch.setattr(load_pool, "_LONG_S", 0.0)
        pool.add_thread_if_slow()
        wait_until(futures[1].running)
        monkeypatch.setattr(load_pool, "_LONG_S", 3600.0)
        assert len(pool._begun_s) == 2
        futures += [pool.submit(lambda: len(pool._begun_s)) for _ in range(5)]
        end.set()
        assert results(futures)[-5:] == [1] * 5


def test_failures_and_cancelled_loads_leave_the_pool(end: threading.Event) -> None:
    def fail() -> None:
        raise SystemExit("a model ends the process")

    with LoadPool(1, "load") as pool:
        first = pool.submit(end.wait, WAIT_S)
        failing, cancelled, last = pool.submit(fail), pool.submit(int, 1), pool.submit(int, 2)
        assert cancelled.cancel()
        end.set()
        assert first.result(WAIT_S)
        assert isinstance(failing.exception(WAIT_S), SystemExit)
        assert last.result(WAIT_S) == 2
        end.clear()
        blocking, waiting = pool.submit(end.wait, WAIT_S), pool.submit(int, 3)
        wait_until(blocking.running)
        pool.shutdown(wait=False, cancel_futures=True)
        assert waiting.cancelled()
        end.set()
        assert blocking.result(WAIT_S)


def test_load_without_a_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with LoadPool(2, "load") as pool:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(RuntimeError):
                pool.submit(int, 1)
        assert pool.submit(int, 2).result(WAIT_S) == 2


@pytest.mark.usefixtures("loads_are_long")
def test_loads_go_on_without_further_threads(end: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with LoadPool(2, "load") as pool:
        futures = [pool.submit(end.wait, WAIT_S) for _ in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            pool.add_thread_if_slow()
        end.set()
        assert results(futures) == [True] * 3


def test_shutdown_waits_for_a_thread_between_two_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = LoadPool(1, "load")
    begun, go_on = threading.Event(), threading.Event()
    ends: list[bool] = []

    def end_pool() -> None:
        begun.set()
        pool.shutdown()
        ends.append(all(future.done() for future in futures))

    stopping = threading.Thread(target=end_pool)

    class Clock:
        calls = 0

        def monotonic(self) -> float:
            self.calls += 1
            if self.calls == 5:  # of the start 1, of the first load 2, and the thread takes the second one now
                stopping.start()
                begun.wait(WAIT_S)
                stopping.join(0.1)  # it must not end yet
            return float(self.calls)

    monkeypatch.setattr(load_pool, "time", Clock())
    futures = [pool.submit(go_on.wait, WAIT_S), pool.submit(lambda: None)]
    go_on.set()
    results(futures)
    wait_until(lambda: bool(ends))
    assert ends == [True]

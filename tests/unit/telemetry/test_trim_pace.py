"""When freed memory goes back to the system: at once after a quiet time, otherwise once in a while."""

from collections.abc import Callable

from naiad.telemetry.trim_pace import TrimPace


class Heap:
    """A clock, timers, and the times of the returns."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.returned_s: list[float] = []
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.pace = TrimPace(self.trim, lambda: self.now_s, self.call_later)

    def trim(self) -> None:
        self.returned_s.append(self.now_s)

    def call_later(self, delay_s: float, call: Callable[[], object]) -> None:
        self.timers.append((self.now_s + delay_s, call))

    def advance(self, to_s: float) -> None:
        self.now_s = to_s
        due = [call for time_s, call in self.timers if time_s <= to_s]
        self.timers = [timer for timer in self.timers if timer[0] > to_s]
        for call in due:
            call()


def test_first_request_returns_memory_at_once() -> None:
    heap = Heap()
    heap.pace.request()
    assert heap.returned_s == [100.0]
    assert heap.timers == []


def test_requests_in_quick_succession_share_one_return() -> None:
    heap = Heap()
    for number in range(50):
        heap.advance(100 + number / 100)
        heap.pace.request()
    assert heap.returned_s == [100.0]
    heap.advance(101.0)
    assert heap.returned_s == [100.0, 101.0]
    heap.advance(110.0)
    assert heap.returned_s == [100.0, 101.0]


def test_steady_requests_return_memory_once_a_second() -> None:
    heap = Heap()
    for number in range(1000):
        heap.advance(100 + number / 100)
        heap.pace.request()
    assert len(heap.returned_s) == 10


def test_settling_returns_what_is_left_and_nothing_twice() -> None:
    heap = Heap()
    heap.pace.settle()
    assert heap.returned_s == []
    heap.pace.request()
    heap.advance(100.5)
    heap.pace.request()
    heap.pace.settle()
    heap.pace.settle()
    assert heap.returned_s == [100.0, 100.5]
    heap.advance(102.0)  # its timer finds nothing to do
    assert heap.returned_s == [100.0, 100.5]


def test_without_threads_for_timers_memory_is_returned_now() -> None:
    def refuse(delay_s: float, call: Callable[[], object]) -> None:
        raise RuntimeError("can't start new thread")

    heap = Heap()
    pace = TrimPace(heap.trim, lambda: heap.now_s, refuse)
    pace.request()
    heap.advance(100.5)
    pace.request()
    heap.advance(100.7)
    pace.request()
    assert heap.returned_s == [100.0, 100.5, 100.7]

"""Simulated time: events in order, and work on cores that all running work shares evenly."""

import heapq
import itertools
from collections.abc import Callable

_NEVER = 1 << 62


class Timeline:
    """A clock that jumps from event to event. Work ends when the cores have done it."""

    def __init__(self, cores: float = float("inf"), now_ns: int = 0) -> None:
        """All running work slows down evenly while it asks for more than `cores` threads."""
        self.now_ns = now_ns
        self.is_stopped = False
        """Set it to end `run`."""
        self._cores = cores
        self._numbers = itertools.count()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._work: list[tuple[float, int, int, Callable[[], None]]] = []
        """Work in order of its end, in the time of work that is never slowed down (`_progress_ns`)."""
        self._progress_ns = 0.0
        self._threads = 0
        self._speed = 1.0

    def at(self, time_ns: int, action: Callable[[], None]) -> None:
        """Call an action at a time, at once for a past one."""
        heapq.heappush(self._events, (time_ns, next(self._numbers), action))

    def work(self, work_ns: float, action: Callable[[], None], threads: int = 1) -> None:
        """Call an action when work that takes `work_ns` alone on `threads` cores is done."""
        heapq.heappush(self._work, (self._progress_ns + work_ns, next(self._numbers), threads, action))
        self._change_threads(threads)

    def _change_threads(self, change: int) -> None:
        self._threads = threads = self._threads + change
        self._speed = self._cores / threads if threads > self._cores else 1.0

    def run(self) -> None:
        """Run until nothing is left to happen, or `is_stopped`."""
        # hot: once for each event of each prediction
        events, work, pop = self._events, self._work, heapq.heappop
        while not self.is_stopped and (events or work):
            now_ns = self.now_ns
            event_ns = events[0][0] if events else _NEVER
            if event_ns < now_ns:
                event_ns = now_ns
            end_ns = _NEVER
            if work:
                left_ns = work[0][0] - self._progress_ns
                end_ns = now_ns + int(left_ns / self._speed + 0.5) if left_ns > 0.0 else now_ns
            if end_ns <= event_ns:
                self._progress_ns, _, threads, action = pop(work)
                self.now_ns = end_ns
                self._change_threads(-threads)
            else:
                self._progress_ns += (event_ns - now_ns) * self._speed
                self.now_ns = event_ns
                _, _, action = pop(events)
            action()

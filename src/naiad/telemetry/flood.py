"""Keep a flood of equal lines from flooding the log."""

import threading
import time
from collections.abc import Callable, Hashable, Sequence

_WINDOW_NS = 1_000_000_000
_SUMMARY_AFTER_S = 1.0
_OVERFLOW = "others"


Suppressed = tuple[Hashable, int]
"""A kind of line and how many of them were not written."""


class FloodGate:
    """Admits so many lines of a kind a second, and of all kinds, and counts the rest.

    Not thread-safe; time is an argument. The kinds of a second are bounded, because clients choose some of them.
    """

    def __init__(
        self, *, lines_per_second: int = 100, all_lines_per_second: int = 1000, kind_limit: int = 256
    ) -> None:
        self._lines_per_second = lines_per_second
        self._all_lines_per_second = all_lines_per_second
        self._kind_limit = kind_limit
        self._window_start_ns = 0
        self._admitted_count = 0
        self._counts: dict[Hashable, tuple[int, int]] = {}
        """Kind to the lines that were admitted and those that were not."""

    def admit(self, key: Hashable) -> bool:
        """Return whether a line of kind `key` may be written in this window."""
        if key not in self._counts and len(self._counts) >= self._kind_limit:
            key = _OVERFLOW
        admitted, suppressed = self._counts.get(key, (0, 0))
        is_admitted = admitted < self._lines_per_second and self._admitted_count < self._all_lines_per_second
        self._counts[key] = (admitted + 1, suppressed) if is_admitted else (admitted, suppressed + 1)
        self._admitted_count += is_admitted
        return is_admitted

    def is_over(self, now_ns: int) -> bool:
        """Return whether the window of a second has ended."""
        return now_ns - self._window_start_ns >= _WINDOW_NS

    def restart(self, now_ns: int) -> list[Suppressed]:
        """Start a new window and return what the old one suppressed."""
        suppressed = [(key, count) for key, (_, count) in self._counts.items() if count]
        self._counts.clear()
        self._admitted_count = 0
        self._window_start_ns = now_ns
        return suppressed


class LineLimiter:
    """A flood gate that several threads use; what it suppresses is summed up within about a second."""

    def __init__(self, report: Callable[[Hashable, int], object], gate: FloodGate | None = None) -> None:
        """`report` is called, on any thread, with each kind and how many of its lines were not written."""
        self._report = report
        self._gate = gate or FloodGate()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def admit(self, kind: Hashable) -> bool:
        """Return whether a line may be written."""
        now_ns = time.monotonic_ns()
        suppressed: Sequence[Suppressed] = ()
        with self._lock:
            if self._gate.is_over(now_ns):
                suppressed = self._gate.restart(now_ns)
            is_admitted = self._gate.admit(kind)
            if not is_admitted and self._timer is None:
                # The flood may end before its window does, and then no other line would sum it up.
                self._timer = threading.Timer(_SUMMARY_AFTER_S, self.flush)
                self._timer.daemon = True
                self._timer.start()
        self._sum_up(suppressed)
        return is_admitted

    def flush(self) -> None:
        """Report what has been suppressed since the last time."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            suppressed = self._gate.restart(time.monotonic_ns())
        self._sum_up(suppressed)

    def _sum_up(self, suppressed: Sequence[Suppressed]) -> None:
        for kind, count in suppressed:
            self._report(kind, count)

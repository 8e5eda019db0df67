"""The pace at which freed memory goes back to the system.

Each return walks all heaps of the C library and holds the lock of each meanwhile, also of the one that the event loop
uses, and what it returns costs a page fault each when it is used again: of a server that loaded 23 models of 4 MB
a second, page faults were two fifths of the CPU. So one in a while is enough.
"""

import threading
import time
from collections.abc import Callable

from naiad.telemetry.process_resources import trim_heap

_PAUSE_S = 1.0
"""Between two returns that loads and unloads ask for."""


def _call_later(delay_s: float, call: Callable[[], object]) -> None:
    timer = threading.Timer(delay_s, call)
    timer.daemon = True
    timer.start()


class TrimPace:
    """Returns freed memory at once after a quiet time, otherwise a moment later. For threads that load and unload."""

    def __init__(
        self,
        trim: Callable[[], object] = trim_heap,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], object]], object] = _call_later,
    ) -> None:
        self._trim = trim
        self._clock = clock
        self._call_later = call_later
        self._lock = threading.Lock()
        self._last_s = -_PAUSE_S
        self._is_due = False
        self._has_timer = False

    def request(self) -> None:
        """Have freed memory returned: now if the last time was long ago, otherwise when it is."""
        with self._lock:
            wait_s = self._last_s + _PAUSE_S - self._clock()
            self._is_due = True
            begins_timer = wait_s > 0 and not self._has_timer
            self._has_timer = self._has_timer or begins_timer
        if wait_s <= 0:
            self.settle()
        elif begins_timer:
            try:
                self._call_later(wait_s, self._end_pause)
            except RuntimeError:  # the system has no more threads: the load or unload that asks must not fail
                self._end_pause()

    def settle(self) -> None:
        """Return now what requests have left for later."""
        with self._lock:
            is_due, self._is_due = self._is_due, False
            if is_due:
                self._last_s = self._clock()
        if is_due:
            self._trim()

    def _end_pause(self) -> None:
        with self._lock:
            self._has_timer = False
        self.settle()


heap_trims = TrimPace()
"""Of this process, which has one heap."""

"""Ends a load in progress: an unload, the exit of the server, or the time limit asks; the steps of the load obey.

A load checks between its steps (`check`), waits with `wait`, and while it waits for a process it has a callback that
ends the process (`calling`). A step inside a framework cannot be interrupted: the catalog does not wait for it, and
discards its result.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from naiad.core.errors import unavailable

_log = logging.getLogger(__name__)


class LoadStop:
    """Whether a load has to end, and why. All methods are called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._next = 0
        self.reason = ""
        """Why the load has to end; empty while it goes on."""

    @property
    def is_requested(self) -> bool:
        """Whether the load has to end."""
        return self._event.is_set()

    def request(self, reason: str) -> None:
        """Ask the load to end; the first reason counts."""
        with self._lock:
            if self._event.is_set():
                return
            self.reason = reason
            self._event.set()
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _log.exception("a step of a load could not be ended")

    def check(self) -> None:
        """Raise InferError(UNAVAILABLE) if the load has to end."""
        if self._event.is_set():
            raise unavailable(self.reason)

    def wait(self, timeout_s: float) -> None:
        """Wait. Raises InferError(UNAVAILABLE) as soon as the load has to end."""
        if self._event.wait(timeout_s):
            self.check()

    @contextmanager
    def calling(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call `callback`, from another thread, if the load has to end during the block.

        Raises InferError(UNAVAILABLE) if it has to end before.
        """
        with self._lock:
            number = self._next = self._next + 1
            self._callbacks[number] = callback
        try:
            self.check()
            yield
        finally:
            with self._lock:
                del self._callbacks[number]

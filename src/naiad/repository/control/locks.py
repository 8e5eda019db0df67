"""Locks by model name: work on the same model runs one after the other, work on other models side by side."""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class ModelLocks:
    """Names of models in use. All names of a piece of work are locked at once, so there can be no deadlock."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._locked: set[str] = set()

    @contextmanager
    def hold(self, names: Collection[str]) -> Iterator[None]:
        """Wait until none of `names` is locked, and lock them for the block."""
        wanted = set(names)
        with self._condition:
            self._condition.wait_for(lambda: self._locked.isdisjoint(wanted))
            self._locked |= wanted
        try:
            yield
        finally:
            with self._condition:
                self._locked -= wanted
                self._condition.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no name is locked; False after `timeout_s`."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._locked, timeout_s)

"""Locks of models by name: pieces of work on the same models follow each other."""

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager


class ModelLocks:
    """Names of models in use. All names of a piece of work are locked at once, so there can be no deadlock.

    Which models a piece of work concerns depends on what is loaded, which may change while it waits for them. So the
    names are planned again once they are locked: what they follow from changes only with one of these locks.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._locked: set[str] = set()

    @contextmanager
    def hold(self, names: Collection[str]) -> Iterator[None]:
        """Wait until none of `names` is locked, and lock them for the block."""
        with self.hold_planned(lambda: names):
            yield

    @contextmanager
    def hold_planned(self, plan: Callable[[], Collection[str]]) -> Iterator[None]:
        """Wait until none of the planned names is locked, and lock them for the block.

        In the block no further name is in the plan.
        """
        names = set(plan())
        self._acquire(names)
        try:
            while not (now := set(plan())) <= names:
                # Given back first: a call that holds a lock and waits for another could wait forever.
                self._release(names)
                names = set()
                self._acquire(now)
                names = now
            yield
        finally:
            self._release(names)

    def _acquire(self, names: Collection[str]) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._locked.isdisjoint(names))
            self._locked |= set(names)

    def _release(self, names: Collection[str]) -> None:
        with self._condition:
            self._locked -= set(names)
            self._condition.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no name is locked; False after `timeout_s`."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._locked, timeout_s)

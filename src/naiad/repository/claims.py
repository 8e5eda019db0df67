"""Who works on which models: loads and unloads of the same model come one after the other, others side by side."""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class Claims:
    """Names that are being worked on. What a piece of work needs is claimed at once, so nobody waits in a circle."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._claimed: set[str] = set()

    @contextmanager
    def hold(self, names: Collection[str]) -> Iterator[None]:
        """Wait until nobody works on any of `names`, and keep others from it meanwhile."""
        wanted = set(names)
        with self._condition:
            self._condition.wait_for(lambda: self._claimed.isdisjoint(wanted))
            self._claimed |= wanted
        try:
            yield
        finally:
            with self._condition:
                self._claimed -= wanted
                self._condition.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nobody works on anything; whether that came about in time."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._claimed, timeout_s)

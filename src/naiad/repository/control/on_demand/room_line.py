"""The threads of loads that wait for room in the budgets: a change wakes the first one of each, not all of them.

With twenty clients a dozen loads wait, and each load, eviction and release is a change. Threads that wake up to find
that it is not their turn take the lock and the interpreter from the event loop.
"""

from threading import Condition, RLock

from naiad.repository.control.on_demand.residency import Residency

_LOOK_S = 0.05
"""How often the first load that waits for room looks whether sequences and requests have ended."""
_WAIT_S = 1.0
"""How long the loads behind it wait at most before they look; they are notified before."""


class RoomLine:
    """Loads that wait, each with a thread. All methods are called with the lock held."""

    def __init__(self, lock: RLock, changed: Condition, residency: Residency) -> None:
        """`changed` is of this lock; the first loads wait for it."""
        self._lock = lock
        self._changed = changed
        self._residency = residency
        self._behind: dict[str, Condition] = {}

    def wait(self, key: str, left_s: float) -> None:
        """Wait until there may be room for a load, or it is its turn to look."""
        # One of many polls: each look takes the lock, for which the loop waits.
        if key in self._residency.first():
            self._changed.wait(_LOOK_S)
            return
        condition = self._behind[key] = Condition(self._lock)
        try:
            condition.wait(min(_WAIT_S, max(_LOOK_S, left_s)))
        finally:
            del self._behind[key]

    def notify(self) -> None:
        """Wake the loads that may have room now: the first ones; all if one waits for models that cannot leave."""
        self._changed.notify_all()
        first = self._residency.first()
        for key, condition in self._behind.items():
            if self._residency.is_stuck or key in first:
                condition.notify_all()

    def notify_all(self) -> None:
        """Wake all loads."""
        self._changed.notify_all()
        for condition in self._behind.values():
            condition.notify_all()

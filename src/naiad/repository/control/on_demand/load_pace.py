"""The pace of loads by requests: how many work at a time, and whether models come back soon after they have left."""

import math
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

_PATIENCE_S = 0.5
"""A load that has waited this long for longer ones works beside them: a model may take minutes."""
SOON_S = 30.0
"""A model that is loaded again so soon after its eviction should not have left."""
_WINDOW_S = 60.0
_LEAST_LOADS = 10
_SHARE = 0.5
_PAUSE_S = 300.0


class LoadTurns:
    """Lets few loads work at a time, and leaves a core to the requests of the models that are loaded."""

    def __init__(self, load_count: int, core_count: int) -> None:
        """At most `load_count` work, and short ones on all but one of `core_count` cores."""
        self._slots = threading.Semaphore(load_count)
        self._cores = threading.Semaphore(max(1, min(load_count, core_count - 1)))

    @contextmanager
    def turn(self, *, is_urgent: bool = False) -> Iterator[None]:
        """Wait for a turn; an urgent load takes none: what it waits for could be its own caller."""
        if is_urgent:
            yield
            return
        with self._slots:
            has_core = self._cores.acquire(timeout=_PATIENCE_S)
            try:
                yield
            finally:
                if has_core:
                    self._cores.release()


class Reloads:
    """Notices when models leave and come back all the time, because the budget is too small for what is asked. Pure.

    The loads of the last minute, and how many of them were soon after an eviction, say it.
    """

    def __init__(self) -> None:
        self.count = 0
        """Loads soon after an eviction, since the start."""
        self._recent: deque[tuple[float, bool]] = deque(maxlen=10_000)
        self._said_s = -math.inf

    def note_load(self, evicted_s: float, now_s: float) -> str:
        """Note the load of a model that was evicted at a monotonic time; return a warning if one is due."""
        is_soon = now_s - evicted_s < SOON_S
        self.count += is_soon
        recent = self._recent
        recent.append((now_s, is_soon))
        while recent[0][0] < now_s - _WINDOW_S:
            recent.popleft()
        soon = sum(each for _, each in recent)
        if len(recent) < _LEAST_LOADS or soon < _SHARE * len(recent) or now_s - self._said_s < _PAUSE_S:
            return ""
        self._said_s = now_s
        return (
            f"{soon} of {len(recent)} loads in the last minute were of models that had been unloaded less than "
            f"{SOON_S:g} s before: --model-memory-budget is too small for the models that are asked for"
        )

"""Notices when models leave and come back all the time, because the budget is too small for what is asked. Pure."""

import math
from collections import deque

SOON_S = 30.0
"""A model that is loaded again so soon after its eviction should not have left."""
_WINDOW_S = 60.0
_LEAST_LOADS = 10
_SHARE = 0.5
_PAUSE_S = 300.0


class Reloads:
    """The loads of the last minute, and how many of them were soon after an eviction."""

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
            f"{SOON_S:g} s before: --model-memory-budget, or --model-gpu-memory-budget, is too small for the models "
            "that are asked for"
        )

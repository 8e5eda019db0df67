"""Keep a flood of equal failures from flooding the log."""

from collections.abc import Hashable

_WINDOW_NS = 1_000_000_000
_OVERFLOW = "others"


Suppressed = tuple[Hashable, int]
"""A kind of line and how many of them were not written."""


class FloodGate:
    """Admits so many lines of a kind a second and counts the rest. Not thread-safe; time is an argument."""

    def __init__(self, *, lines_per_second: int = 100, kind_limit: int = 256) -> None:
        self._lines_per_second = lines_per_second
        self._kind_limit = kind_limit
        self._window_start_ns = 0
        self._counts: dict[Hashable, int] = {}

    def admit(self, key: Hashable) -> bool:
        """Tell whether a line of kind `key` may be written in this window."""
        if key not in self._counts and len(self._counts) >= self._kind_limit:
            key = _OVERFLOW
        count = self._counts[key] = self._counts.get(key, 0) + 1
        return count <= self._lines_per_second

    def is_over(self, now_ns: int) -> bool:
        """Tell whether the window of a second has ended."""
        return now_ns - self._window_start_ns >= _WINDOW_NS

    def restart(self, now_ns: int) -> list[Suppressed]:
        """Start a new window and return what the old one held back."""
        limit = self._lines_per_second
        held_back = [(key, count - limit) for key, count in self._counts.items() if count > limit]
        self._counts.clear()
        self._window_start_ns = now_ns
        return held_back

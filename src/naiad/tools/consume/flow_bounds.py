"""How many messages a consumer reads at once, and how many it may hold. Pure."""

_FIRST_ROWS = 16
_MOST_ROWS = 1024
_CHUNK_BYTES = 16 << 20
"""Of the messages that are read at once, once their size is known."""
_GROWTH = 4
_SHRINKING = 8
"""More than the growth: each read that fails counts as a delivery of its messages."""


class FlowBounds:
    """One chunk fills all requests that the model takes at once; a second one is read meanwhile."""

    def __init__(self, max_in_flight: int, rows_at_once: int) -> None:
        """`max_in_flight`: 0 for two chunks. `rows_at_once`: of all requests that the model takes at once."""
        self._most = min(_MOST_ROWS, rows_at_once)
        if max_in_flight:
            self._most = max(1, min(self._most, max_in_flight // 2))
        self.limit = max_in_flight or 2 * self._most
        """The most messages that are read and not answered."""
        self.size = min(self._most, _FIRST_ROWS)
        """The most messages of the next read."""

    def learn(self, count: int, size_bytes: int) -> None:
        """Take the size of the messages of a read into account."""
        fitting = _CHUNK_BYTES * count // max(1, size_bytes)
        self.size = max(1, min(self._most, fitting, _GROWTH * self.size))

    def shrink(self) -> None:
        """Read fewer messages at once: they did not arrive in time."""
        self.size = max(1, self.size // _SHRINKING)

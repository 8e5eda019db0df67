"""The budget of request bytes in flight: one for all connections and protocols of a server process.

Theory of operation. Before the body of a request is buffered its bytes are reserved here; decompressed bytes are
reserved too. They are released when the exchange or call ends, however it ends: answer, refusal, reset, disconnect.
Whoever gets False from `reserve` refuses the request, with 503 over HTTP and RESOURCE_EXHAUSTED over gRPC. Bodies up
to UNCOUNTED_BYTES that come in one piece are not counted: they cost no more than the objects of their request do,
and the limits of connections, pipelined requests and streams bound them.

Everything happens on the event loop, so there is no lock.
"""

UNCOUNTED_BYTES = 4096
"""Bodies and messages up to this size are not reserved when they come in one piece."""
_UNLIMITED_BYTES = 1 << 62


class RequestBudget:
    """Counts reserved bytes against a limit."""

    __slots__ = ("limit_bytes", "peak_bytes", "rejected_count", "used_bytes")

    def __init__(self, limit_bytes: int = _UNLIMITED_BYTES) -> None:
        """Raises ValueError for a limit below 1."""
        if limit_bytes < 1:
            raise ValueError(f"the limit of request bytes in flight is {limit_bytes}; it must be at least 1")
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        """The most that was ever reserved."""
        self.rejected_count = 0
        """How often there was not enough room."""

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes; False, and nothing is reserved, when that exceeds the limit."""
        used_bytes = self.used_bytes + size
        if used_bytes > self.limit_bytes:
            self.rejected_count += 1
            return False
        self.used_bytes = used_bytes
        if used_bytes > self.peak_bytes:
            self.peak_bytes = used_bytes
        return True

    def has_room(self, size: int) -> bool:
        """Tell whether `size` bytes would fit now, without reserving them; False counts as a rejection."""
        if self.used_bytes + size <= self.limit_bytes:
            return True
        self.rejected_count += 1
        return False

    def release(self, size: int) -> None:
        """Give `size` reserved bytes back. Raises ValueError when that is more than is reserved."""
        if size > self.used_bytes:
            raise ValueError(f"{size} request bytes are released, but only {self.used_bytes} are reserved")
        self.used_bytes -= size

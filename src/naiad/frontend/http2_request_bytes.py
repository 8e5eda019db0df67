"""How many bytes of requests one connection holds, and what happens when those are too many."""

from naiad.frontend.http2_call import Http2Call
from naiad.wire.grpc import GrpcError, GrpcStatus
from naiad.wire.http2_window import ReceiveWindows
from naiad.wire.limits import Http2Limits

SMALL_MESSAGE_BYTES = 64 * 1024
"""Messages up to this size are not counted while they wait: the number of streams bounds them."""


class RequestBytes:
    """Counts incomplete requests, which are refused beyond a limit, and complete ones, whose answers are awaited.

    While too many of the latter wait the peer gets no window for more bodies.
    """

    __slots__ = ("_limits", "_windows", "collecting_bytes", "held_bytes")

    def __init__(self, windows: ReceiveWindows, limits: Http2Limits) -> None:
        self._windows = windows
        self._limits = limits
        self.collecting_bytes = 0
        """Of requests that are not complete."""
        self.held_bytes = 0
        """Of complete ones that are not answered."""

    def collect(self, call: Http2Call, pending_bytes: int) -> None:
        """Count `pending_bytes` for an incomplete request. Raises GrpcError when the connection holds too much."""
        self.collecting_bytes += pending_bytes - call.collected_bytes
        call.collected_bytes = pending_bytes
        if pending_bytes and self.collecting_bytes > self._limits.collecting_bytes:
            limit = self._limits.collecting_bytes
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED, f"incomplete messages of this connection exceed {limit} bytes"
            )

    def hold(self, call: Http2Call, size: int) -> None:
        """Count a large message until its call is answered."""
        if size > SMALL_MESSAGE_BYTES:
            call.held_bytes = size
            self.held_bytes += size
            if self.held_bytes > self._limits.outstanding_bytes:
                self._windows.hold()

    def release(self, call: Http2Call) -> bool:
        """Count nothing more for a call; tell whether that gave the peer its window back."""
        self.held_bytes -= call.held_bytes
        self.collecting_bytes -= call.collected_bytes
        call.held_bytes = call.collected_bytes = 0
        if self._windows.is_held and self.held_bytes <= self._limits.outstanding_bytes:
            self._windows.release()
            return True
        return False

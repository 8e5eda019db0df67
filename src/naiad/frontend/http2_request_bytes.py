"""How many bytes of requests one connection holds, and what happens when those are too many."""

from naiad.core.request_budget import UNCOUNTED_BYTES, RequestBudget
from naiad.frontend.body_reservation import NoRoomError
from naiad.frontend.http2_call import Http2Call
from naiad.wire.grpc import GrpcError, GrpcStatus
from naiad.wire.http2_window import ReceiveWindows
from naiad.wire.limits import Http2Limits

SMALL_MESSAGE_BYTES = 64 * 1024
"""Messages up to this size are handed over at once when they come in one piece."""


class RequestBytes:
    """Counts incomplete requests, which are refused beyond a limit, and complete ones, whose answers are awaited.

    While too many of the latter wait the peer gets no window for more bodies. Both are reserved in the budget that
    all connections of the server share.
    """

    __slots__ = ("_budget", "_limits", "_windows", "collecting_bytes", "held_bytes")

    def __init__(self, windows: ReceiveWindows, limits: Http2Limits, budget: RequestBudget) -> None:
        self._budget = budget
        self._windows = windows
        self._limits = limits
        self.collecting_bytes = 0
        """Of requests that are not complete."""
        self.held_bytes = 0
        """Of complete ones that are not answered."""

    def collect(self, call: Http2Call, pending_bytes: int) -> None:
        """Count `pending_bytes` for an incomplete request. Raises GrpcError when there is no room for it."""
        change = pending_bytes - call.collected_bytes
        if change <= 0:
            self._budget.release(-change)
        elif self.collecting_bytes + change > self._limits.collecting_bytes:
            limit = self._limits.collecting_bytes
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED, f"incomplete messages of this connection exceed {limit} bytes"
            )
        elif not self._budget.reserve(change):
            raise NoRoomError
        self.collecting_bytes += change
        call.collected_bytes = pending_bytes

    def hold(self, call: Http2Call, size: int) -> None:
        """Count a message that is not tiny until its call is answered. Raises GrpcError when there is no room."""
        if size > UNCOUNTED_BYTES and not self.reserve(call, size):
            raise NoRoomError

    def reserve(self, call: Http2Call, size: int) -> bool:
        """Count `size` more bytes for a call; False when there is no room for them."""
        if not self._budget.reserve(size):
            return False
        call.held_bytes += size
        self.held_bytes += size
        if self.held_bytes > self._limits.outstanding_bytes:
            self._windows.hold()
        return True

    def release(self, call: Http2Call) -> bool:
        """Count nothing more for a call; tell whether that gave the peer its window back."""
        if call.collected_bytes:
            self.collect(call, 0)
        return self.release_some(call, call.held_bytes)

    def release_some(self, call: Http2Call, size: int) -> bool:
        """Count `size` bytes less for a call; tell whether that gave the peer its window back."""
        size = min(size, call.held_bytes)
        self._budget.release(size)
        self.held_bytes -= size
        call.held_bytes -= size
        if self._windows.is_held and self.held_bytes <= self._limits.outstanding_bytes:
            self._windows.release()
            return True
        return False

"""Reserves the bytes of one request body in the server's request budget, slightly ahead of what arrives.

The announced length alone reserves nothing: otherwise a client could announce 1 GB, send none of it, and block other
clients. The reservation is at most twice the number of received bytes, plus a first step.
"""

from naiad.core.limits.request_limits import RequestBudget
from naiad.frontend.reply_headers import REFUSED, RETRY_AFTER
from naiad.wire.grpc import GrpcError, GrpcStatus
from naiad.wire.http1 import HttpError

_FIRST_STEP_BYTES = 64 * 1024
_LARGEST_STEP_BYTES = 4 * 1024 * 1024
_FLAG = "--max-request-bytes-in-flight"
BUDGET_EXCEEDED = (
    f"requests in flight use all bytes of the server's request budget; try again later, or raise {_FLAG}"
)
"""Error message of a rejected request, over either protocol."""


class BudgetExceededError(GrpcError):
    """The request budget has no room for the bytes of an HTTP/2 request."""

    def __init__(self) -> None:
        super().__init__(GrpcStatus.RESOURCE_EXHAUSTED, BUDGET_EXCEEDED)


def check_length(budget: RequestBudget, length: int) -> None:
    """Reject a body that exceeds the whole budget, before any of it is read. Raises HttpError."""
    if budget.has_room(length):
        return
    if length > budget.limit_bytes:
        raise HttpError(
            413, f"request body of {length} bytes exceeds the limit of {budget.limit_bytes} bytes of {_FLAG}"
        )
    raise budget_exceeded()


def budget_exceeded() -> HttpError:
    """Return the HTTP error of a request whose bytes do not fit into the budget."""
    return HttpError(503, BUDGET_EXCEEDED, (RETRY_AFTER, REFUSED))


class BodyReservation:
    """The reserved bytes of the body that a connection receives."""

    __slots__ = ("_budget", "size_bytes")

    def __init__(self, budget: RequestBudget) -> None:
        self._budget = budget
        self.size_bytes = 0

    def cover(self, needed_bytes: int, most_bytes: int) -> None:
        """Reserve `needed_bytes`, and some bytes in advance up to `most_bytes`. Raises HttpError(503)."""
        size = self.size_bytes
        if needed_bytes <= size:
            return
        step = max(_FIRST_STEP_BYTES, min(size, _LARGEST_STEP_BYTES))
        wanted = min(max(needed_bytes, size + step), most_bytes)
        if not self._budget.reserve(wanted - size):
            raise budget_exceeded()
        self.size_bytes = wanted

    def take(self, size: int) -> int:
        """Transfer the reservation of a complete body of `size` bytes to the caller, and release the rest."""
        self._budget.release(self.size_bytes - size)
        self.size_bytes = 0
        return size

    def release(self) -> None:
        """Release the reservation."""
        if self.size_bytes:
            self._budget.release(self.size_bytes)
            self.size_bytes = 0

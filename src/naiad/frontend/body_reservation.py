"""The bytes of one request body in the budget of the server, reserved a little ahead of what arrives.

An announced length costs the peer nothing, so it reserves nothing by itself: a peer that announces 1 GB and sends
none of it would take the room of others. At most twice of what has arrived is reserved, and a first step.
"""

from naiad.core.request_limits import RequestBudget
from naiad.wire.grpc import GrpcError, GrpcStatus
from naiad.wire.http1 import HttpError

_FIRST_STEP_BYTES = 64 * 1024
_LARGEST_STEP_BYTES = 4 * 1024 * 1024
_FLAG = "--max-request-bytes-in-flight"
NO_ROOM = f"the requests in flight take all bytes that the server has for them; try again later, or raise {_FLAG}"
"""What the client of a refused request reads, over either protocol."""


class BudgetExceededError(GrpcError):
    """There is no room for the bytes of a request over HTTP/2."""

    def __init__(self) -> None:
        super().__init__(GrpcStatus.RESOURCE_EXHAUSTED, NO_ROOM)


def check_length(budget: RequestBudget, length: int) -> None:
    """Refuse a body that the server has no room for, before any of it is read. Raises HttpError."""
    if budget.has_room(length):
        return
    if length > budget.limit_bytes:
        raise HttpError(
            413, f"request body of {length} bytes exceeds the limit of {budget.limit_bytes} bytes of {_FLAG}"
        )
    raise no_room()


def no_room() -> HttpError:
    """Return the refusal over HTTP of a request whose bytes do not fit into the budget."""
    return HttpError(503, NO_ROOM, ((b"Retry-After", b"1"),))


class BodyReservation:
    """What is reserved for the body that a connection receives."""

    __slots__ = ("_budget", "size_bytes")

    def __init__(self, budget: RequestBudget) -> None:
        self._budget = budget
        self.size_bytes = 0

    def cover(self, needed_bytes: int, most_bytes: int) -> None:
        """Have `needed_bytes` reserved, and some of what follows up to `most_bytes`. Raises HttpError(503)."""
        size = self.size_bytes
        if needed_bytes <= size:
            return
        step = max(_FIRST_STEP_BYTES, min(size, _LARGEST_STEP_BYTES))
        wanted = min(max(needed_bytes, size + step), most_bytes)
        if not self._budget.reserve(wanted - size):
            raise no_room()
        self.size_bytes = wanted

    def take(self, size: int) -> int:
        """Hand the reservation of a complete body of `size` bytes over, and give back what was ahead of it."""
        self._budget.release(self.size_bytes - size)
        self.size_bytes = 0
        return size

    def release(self) -> None:
        """Give everything back."""
        if self.size_bytes:
            self._budget.release(self.size_bytes)
            self.size_bytes = 0

"""Shared state of the connections of one HTTP/1.1 endpoint, and the clock that measures their phases."""

from collections.abc import Callable

from naiad.core.ports import Loop
from naiad.core.request_limits import RequestBudget
from naiad.frontend.connections.connection_register import AddressLimit, ConnectionRegister
from naiad.frontend.connections.endpoint import Endpoint, EndpointConnection
from naiad.frontend.context import HttpContext, RejectEarly
from naiad.frontend.http1.encoding import Http1ResponseHeaders
from naiad.wire.http1 import HeadCache, Http1Limits


class PhaseClock:
    """Shared by the parts of a connection: the part that starts a phase restarts the clock."""

    __slots__ = ("start_ns",)

    def __init__(self) -> None:
        self.start_ns = 0
        """Monotonic time of the first sweep in this phase, 0 before: no request pays for reading a clock."""

    def restart(self) -> None:
        """Start a new phase; the next sweep stores its time."""
        self.start_ns = 0

    def elapsed_s(self, now_ns: int) -> float | None:
        """Return the duration of the phase; None if it begins now."""
        if not self.start_ns:
            self.start_ns = now_ns
            return None
        return (now_ns - self.start_ns) / 1e9


_RECEIVE_BYTES = 65536

Handle = Callable[[HttpContext], None]


class Http1Endpoint(Endpoint[EndpointConnection]):
    """Limits, caches, the buffer to receive into, and the open connections."""

    def __init__(
        self,
        handle: Handle,
        loop: Loop,
        limits: Http1Limits | None = None,
        budget: RequestBudget | None = None,
        reject: RejectEarly | None = None,
        addresses: AddressLimit | None = None,
    ) -> None:
        """Each complete request goes to `handle`, on the loop.

        `budget` bounds the bodies of all connections together; without one only the limits of each connection apply.
        `reject` checks requests with large bodies before these are read. `addresses` counts the connections per
        address.
        """
        self.limits = limits = limits or Http1Limits()
        Endpoint.__init__(self, loop, ConnectionRegister(limits.connections, addresses))
        self.handle = handle
        self.reject = reject
        self.budget = budget or RequestBudget()
        self.heads = HeadCache(limits)
        self.response_headers = Http1ResponseHeaders()
        self.receive_bytes = _RECEIVE_BYTES
        self.receive_buffer = bytearray(_RECEIVE_BYTES)
        self.receive_view = memoryview(self.receive_buffer)
        self.last_arrival_ns = 0
        """After the start of a drain: responses to requests that came before are the last ones of their connections.
        """
        self.is_finishing = False
        """Idle connections are closed as well."""
        self.call_later = loop.call_later
        """With 0 s it calls back after other connections were read."""

    def set_date(self, wall_s: float) -> None:
        """Set the Date of the following responses."""
        self.response_headers.set_date(wall_s)

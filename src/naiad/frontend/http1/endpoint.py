"""Shared state of the connections of one HTTP/1.1 endpoint, and the clock that measures their phases."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from naiad.core.ports import Loop
from naiad.core.request_limits import RequestBudget
from naiad.frontend.connections.closing_queue import ClosingQueue
from naiad.frontend.connections.connection_register import AddressLimit, ConnectionRegister, RegisteredConnection
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


class WatchedConnection(RegisteredConnection, Protocol):
    """A connection, as the owner of the endpoint uses it."""

    def check_clock(self, now_ns: int) -> None:
        """Enforce the time limit of the current phase."""

    def abort(self) -> None:
        """Drop the connection."""


class Http1Endpoint:
    """Limits, caches, the buffer to receive into, and the registry of open connections."""

    def __init__(
        self,
        handle: Handle,
        limits: Http1Limits,
        on_change: Callable[[], None],
        on_close: Callable[[], None],
        loop: Loop,
        budget: RequestBudget,
        reject: RejectEarly | None,
        addresses: AddressLimit | None,
    ) -> None:
        """`loop.call_later`; with 0 s it calls back after other connections were read."""
        self.handle = handle
        self.reject = reject
        self.budget = budget
        self.limits = limits
        self.heads = HeadCache(limits)
        self.response_headers = Http1ResponseHeaders()
        self.receive_bytes = _RECEIVE_BYTES
        self.receive_buffer = bytearray(_RECEIVE_BYTES)
        self.receive_view = memoryview(self.receive_buffer)
        self._register: ConnectionRegister[WatchedConnection] = ConnectionRegister(limits.connections, addresses)
        self.connections = self._register.open
        self.is_draining = False
        """Responses to requests that came before `last_arrival_ns` are the last ones of their connections."""
        self.last_arrival_ns = 0
        self.is_finishing = False
        """Idle connections are closed as well."""
        self.call_later = loop.call_later
        self.closing = ClosingQueue(loop.call_soon)
        self._on_change = on_change
        self._on_close = on_close

    def register(self, connection: WatchedConnection, transport: asyncio.BaseTransport) -> str:
        """Add a connection. Return an error message if a limit is reached, otherwise an empty text."""
        unsupported_reason = self._register.admit(connection, transport)
        if not unsupported_reason:
            self._on_change()
        return unsupported_reason

    def unregister(self, connection: WatchedConnection) -> None:
        """Remove a connection that was lost."""
        self._register.remove(connection)
        self._on_change()
        self._on_close()

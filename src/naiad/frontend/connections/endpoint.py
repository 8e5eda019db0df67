"""An endpoint: its open connections, which are swept about once a second, and waited for at its end."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from naiad.core.ports import Loop, TimerHandle
from naiad.frontend.connections.closing_queue import ClosingQueue
from naiad.frontend.connections.connection_register import ConnectionRegister, RegisteredConnection

_SWEEP_S = 1.0
_SWEEP_SLICE = 128


class EndpointConnection(RegisteredConnection, Protocol):
    """A connection, as its endpoint uses it."""

    def sweep(self, now_ns: int) -> None:
        """Enforce the time limits."""

    def abort(self) -> None:
        """Drop the connection."""


C = TypeVar("C", bound=EndpointConnection)


class Endpoint(Generic[C]):
    """The connections of one endpoint. A connection registers when it is made, and unregisters when it is lost."""

    def __init__(self, loop: Loop, register: ConnectionRegister[C]) -> None:
        """`register` enforces the connection limits."""
        self.loop = loop
        self.is_draining = False
        self.on_close: Callable[[], object] | None = None
        """Called when a connection has closed."""
        self.closing = ClosingQueue(loop.call_soon)
        self.connections = register.open
        self._register = register
        self._timer: TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def set_date(self, wall_s: float) -> None:
        """Set the Date of the following HTTP responses."""
        raise NotImplementedError

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self.connections)

    def register(self, connection: C, transport: asyncio.BaseTransport) -> str:
        """Add a connection. Return an error message if a limit is reached, otherwise an empty text."""
        unsupported_reason = self._register.admit(connection, transport)
        if not unsupported_reason and self._timer is None:
            self._start_timer()
        return unsupported_reason

    def unregister(self, connection: C) -> None:
        """Remove a connection that was lost."""
        self._register.remove(connection)
        if not self.connections:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()
        if self.on_close is not None:
            self.on_close()

    async def wait_closed(self) -> None:
        """Return when no connection is open."""
        if self.connections:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def abort(self) -> None:
        """Drop all connections at once."""
        for connection in list(self.connections):
            connection.abort()

    def sweep(self, now_ns: int) -> None:
        """Enforce the time limits of all connections."""
        for connection in list(self.connections):
            connection.sweep(now_ns)

    def _start_timer(self) -> None:
        self.set_date(time.time())
        self._timer = self.loop.call_later(_SWEEP_S, self._on_timer)

    def _on_timer(self) -> None:
        # Without connections the sweep stops, so that an idle server does not wake up.
        self._timer = None
        if self.connections:
            self._start_timer()
            self._sweep_some(list(self.connections), 0, time.monotonic_ns())

    def _sweep_some(self, connections: Sequence[C], begin: int, now_ns: int) -> None:
        """Sweep a few connections per turn: thousands of idle connections must not delay busy ones."""
        end = begin + _SWEEP_SLICE
        for connection in connections[begin:end]:
            if connection in self.connections:
                connection.sweep(now_ns)
        if end < len(connections):
            self.loop.call_soon(self._sweep_some, connections, end, now_ns)

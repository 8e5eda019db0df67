"""The HTTP/2 server on an event loop, gRPC and REST: owns the connections of one endpoint."""

import asyncio
import time
from collections.abc import Callable, Sequence

from naiad.core.ports import Loop, TimerHandle
from naiad.core.request_limits import RequestBudget
from naiad.frontend.access import AccessRule
from naiad.frontend.connections.closing_queue import ClosingQueue
from naiad.frontend.connections.connection_register import ConnectionRegister
from naiad.frontend.context import GrpcService
from naiad.frontend.http2.connection import Http2Protocol
from naiad.frontend.http2.rest_headers import RestSide
from naiad.frontend.thread_pool import RunInThread, run_at_once
from naiad.wire.http2.limits import Http2Limits

_SWEEP_S = 1.0
_SWEEP_SLICE = 128
_MAX_CONNECTIONS = 16_384


class Http2Server:
    """The connections of one endpoint, and their shared state. `protocol` is the factory for `loop.create_server`."""

    def __init__(
        self,
        service: GrpcService,
        loop: Loop,
        limits: Http2Limits | None = None,
        *,
        connections: "ConnectionRegister[Http2Protocol] | None" = None,
        rule: AccessRule | None = None,
        run_in_thread: RunInThread = run_at_once,
        rest: RestSide | None = None,
        budget: RequestBudget | None = None,
    ) -> None:
        """`connections` enforces the connection limits."""
        self.service = service
        self.limits = limits or Http2Limits()
        self.loop = loop
        self.is_draining = False
        self.rule = rule
        """Decides which gRPC calls are served; None for all."""
        self.rest = rest
        """Handles requests that are not gRPC; None if there is no REST."""
        self.on_close: Callable[[], object] | None = None
        """Called when a connection has closed."""
        self.closing = ClosingQueue(loop.call_soon)
        self.run_in_thread = run_in_thread
        self.budget = budget or RequestBudget()
        """Budget of request bytes, shared with the other endpoints of the server."""
        self._register = connections or ConnectionRegister[Http2Protocol](_MAX_CONNECTIONS)
        self._connections = self._register.open
        self._dirty: list[Callable[[], object]] = []
        self._timer: TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def protocol(self) -> Http2Protocol:
        """Return the protocol of a new connection."""
        return Http2Protocol(self)

    def announce_drain(self) -> None:
        """Do nothing yet: after GOAWAY clients would reconnect while this server still listens."""

    def drain(self) -> None:
        """End every connection: send GOAWAY now, close after the last response.

        The caller must have stopped listening.
        """
        self.is_draining = True
        for connection in list(self._connections):
            connection.drain()

    def finish(self) -> None:
        """Do nothing: `drain` has sent GOAWAY on idle connections as well."""

    async def wait_closed(self) -> None:
        """Return when no connection is open."""
        if self._connections:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def abort(self) -> None:
        """Drop all connections at once."""
        for connection in list(self._connections):
            connection.abort()

    def rule_changed(self) -> None:
        """Check access again for all further requests."""
        for connection in self._connections:
            connection.forget_plans()

    def register(self, connection: Http2Protocol, transport: asyncio.BaseTransport) -> str:
        """Add a connection. Return an error message if a limit is reached, otherwise an empty text."""
        unsupported_reason = self._register.admit(connection, transport)
        if not unsupported_reason and self._timer is None:
            self._start_timer()
        return unsupported_reason

    def unregister(self, connection: Http2Protocol) -> None:
        """Remove a connection that was lost."""
        self._register.remove(connection)
        if not self._connections:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()
        if self.on_close is not None:
            self.on_close()

    def flush_soon(self, flush: Callable[[], object]) -> None:
        """Write the output of a connection after the current callback."""
        if not self._dirty:
            self.loop.call_soon(self._flush)
        self._dirty.append(flush)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for flush in dirty:
            flush()

    def _on_timer(self) -> None:
        # Without connections the sweep stops, so that an idle server does not wake up.
        self._timer = None
        if self._connections:
            self._start_timer()
            self._sweep_some(list(self._connections), 0, time.monotonic_ns())

    def _start_timer(self) -> None:
        if self.rest is not None:
            self.rest.response_headers.set_date(time.time())
        self._timer = self.loop.call_later(_SWEEP_S, self._on_timer)

    def sweep(self, now_ns: int) -> None:
        """Enforce the time limits of all connections."""
        for connection in list(self._connections):
            connection.sweep(now_ns)

    def _sweep_some(self, connections: Sequence[Http2Protocol], begin: int, now_ns: int) -> None:
        """Sweep a few connections per turn: thousands of idle connections must not delay busy ones."""
        end = begin + _SWEEP_SLICE
        for connection in connections[begin:end]:
            connection.sweep(now_ns)  # has no effect on a connection that was lost meanwhile
        if end < len(connections):
            self.loop.call_soon(self._sweep_some, connections, end, now_ns)

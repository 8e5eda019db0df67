"""HTTP/2 on an event loop, gRPC and REST: the server that owns the connections of one endpoint."""

import asyncio
import time
from collections.abc import Callable, Sequence

from naiad.core.ports import Loop, TimerHandle
from naiad.core.request_limits import RequestBudget
from naiad.frontend.access import AccessRule
from naiad.frontend.closing_queue import ClosingQueue
from naiad.frontend.connection_register import ConnectionRegister
from naiad.frontend.exchange import GrpcService
from naiad.frontend.http2.connection import Http2Protocol
from naiad.frontend.http2.rest_head import RestSide
from naiad.frontend.side_threads import RunAside, run_here
from naiad.wire.http2.limits import Http2Limits

_SWEEP_S = 1.0
_SWEEP_SLICE = 128
_MOST_CONNECTIONS = 16_384


class Http2Server:
    """The connections of one endpoint, and what they share.

    `protocol` is the factory for `loop.create_server`.
    """

    def __init__(
        self,
        service: GrpcService,
        loop: Loop,
        limits: Http2Limits | None = None,
        *,
        connections: "ConnectionRegister[Http2Protocol] | None" = None,
        rule: AccessRule | None = None,
        run_aside: RunAside = run_here,
        rest: RestSide | None = None,
        budget: RequestBudget | None = None,
    ) -> None:
        """`connections` knows how many there may be."""
        self.service = service
        self.limits = limits or Http2Limits()
        self.loop = loop
        self.is_draining = False
        self.rule = rule
        """Decides which gRPC calls are answered; None for all."""
        self.rest = rest
        """Answers what is not gRPC; None when nothing does."""
        self.on_close: Callable[[], object] | None = None
        """Called whenever a connection has closed."""
        self.closing = ClosingQueue(loop.call_soon)
        self.run_aside = run_aside
        self.budget = budget or RequestBudget()
        """Of request bytes, shared with the other endpoints of the server."""
        self._register = connections or ConnectionRegister[Http2Protocol](_MOST_CONNECTIONS)
        self._connections = self._register.open
        self._dirty: list[Callable[[], object]] = []
        self._timer: TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._connections)

    def protocol(self) -> Http2Protocol:
        """Return the protocol of a new connection."""
        return Http2Protocol(self)

    def announce_drain(self) -> None:
        """Nothing yet: peers that get GOAWAY connect again, and would still find this server."""

    def drain(self) -> None:
        """Let every connection end: GOAWAY now, closed when its last call is answered.

        The caller has stopped listening before.
        """
        self.is_draining = True
        for connection in list(self._connections):
            connection.drain()

    def finish(self) -> None:
        """Nothing more: `drain` has sent GOAWAY on idle connections, too."""

    async def wait_closed(self) -> None:
        """Return when no connection is open any more."""
        if self._connections:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def abort(self) -> None:
        """Drop all connections at once."""
        for connection in list(self._connections):
            connection.abort()

    def rule_changed(self) -> None:
        """Have the rule decide anew about all requests to come."""
        for connection in self._connections:
            connection.forget_plans()

    def register(self, connection: Http2Protocol, transport: asyncio.BaseTransport) -> str:
        """Add a connection; return why there is no room for it, or an empty text."""
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
        """Have a connection write what it has to send once the current callback is over."""
        if not self._dirty:
            self.loop.call_soon(self._flush)
        self._dirty.append(flush)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for flush in dirty:
            flush()

    def _on_timer(self) -> None:
        # Without connections there is nothing to watch, and an idle server does not wake up.
        self._timer = None
        if self._connections:
            self._start_timer()
            self._sweep_some(list(self._connections), 0, time.monotonic_ns())

    def _start_timer(self) -> None:
        if self.rest is not None:
            self.rest.answer_heads.set_date(time.time())
        self._timer = self.loop.call_later(_SWEEP_S, self._on_timer)

    def sweep(self, now_ns: int) -> None:
        """Enforce the time limits of all connections."""
        for connection in list(self._connections):
            connection.sweep(now_ns)

    def _sweep_some(self, connections: Sequence[Http2Protocol], begin: int, now_ns: int) -> None:
        """The same a few at a time, so that thousands of idle connections do not hold the busy ones up."""
        end = begin + _SWEEP_SLICE
        for connection in connections[begin:end]:
            connection.sweep(now_ns)  # does nothing on one that was lost meanwhile
        if end < len(connections):
            self.loop.call_soon(self._sweep_some, connections, end, now_ns)

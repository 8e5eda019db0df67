"""The HTTP/1.1 server on an event loop: accepts connections, enforces time limits, drains."""

import asyncio
import time
from collections.abc import Callable, Sequence

from naiad.core.ports import Loop, TimerHandle
from naiad.core.request_limits import RequestBudget
from naiad.frontend.connections.connection_register import AddressLimit
from naiad.frontend.context import RejectEarly
from naiad.frontend.http1.connection import Http1Connection
from naiad.frontend.http1.endpoint import Handle, Http1Endpoint, WatchedConnection
from naiad.wire.http1 import Http1Limits

_SWEEP_S = 1.0
_SWEEP_SLICE = 256


class Http1Server:
    """The connections of one endpoint.

    `protocol` is the factory for `loop.create_server`. Each complete request goes to `handle`, on the loop.
    """

    def __init__(
        self,
        handle: Handle,
        loop: Loop,
        limits: Http1Limits | None = None,
        budget: RequestBudget | None = None,
        reject: RejectEarly | None = None,
        addresses: AddressLimit | None = None,
    ) -> None:
        """Create a server.

        `budget` bounds the bodies of all connections together; without one only the limits of each connection apply.
        `reject` checks requests with large bodies before these are read. `addresses` counts the connections per
        address.
        """
        self._endpoint = Http1Endpoint(
            handle,
            limits or Http1Limits(),
            self._on_change,
            self._on_closed,
            loop,
            budget or RequestBudget(),
            reject,
            addresses,
        )
        self._loop = loop
        self.on_close: Callable[[], object] | None = None
        """Called when a connection has closed."""
        self._timer: TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._endpoint.connections)

    def protocol(self) -> Http1Connection:
        """Return the protocol of a new connection."""
        return Http1Connection(self._endpoint)

    def announce_drain(self) -> None:
        """Add `Connection: close` to the responses of requests in flight."""
        self._endpoint.is_draining = True
        self._endpoint.last_arrival_ns = time.monotonic_ns()

    def drain(self) -> None:
        """Close busy connections after their last response, with `Connection: close`; keep serving idle ones until
        `finish`.

        The caller must have stopped listening.
        """
        self.announce_drain()

    def finish(self) -> None:
        """Close all connections: idle ones soon, busy ones after their last response. Follows `drain`."""
        self._endpoint.is_finishing = True
        self.sweep(time.monotonic_ns())

    async def wait_closed(self) -> None:
        """Return when no connection is open."""
        if self._endpoint.connections:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def abort(self) -> None:
        """Drop all connections at once."""
        for connection in list(self._endpoint.connections):
            connection.abort()

    def _on_change(self) -> None:
        if self._endpoint.connections:
            if self._timer is None:
                self._start_timer()
            return
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def _on_closed(self) -> None:
        if self.on_close is not None:
            self.on_close()

    def _start_timer(self) -> None:
        self._endpoint.response_headers.set_date(time.time())
        self._timer = self._loop.call_later(_SWEEP_S, self._on_timer)

    def _on_timer(self) -> None:
        # Without connections the sweep stops, so that an idle server does not wake up.
        self._timer = None
        if self._endpoint.connections:
            self._start_timer()
            self._sweep_some(list(self._endpoint.connections), 0, time.monotonic_ns())

    def sweep(self, now_ns: int) -> None:
        """Enforce the time limits of all connections."""
        for connection in list(self._endpoint.connections):
            connection.check_clock(now_ns)

    def _sweep_some(self, connections: Sequence[WatchedConnection], begin: int, now_ns: int) -> None:
        """Sweep a few connections per turn: thousands of idle connections must not delay busy ones."""
        end = begin + _SWEEP_SLICE
        for connection in connections[begin:end]:
            if connection in self._endpoint.connections:
                connection.check_clock(now_ns)
        if end < len(connections):
            self._loop.call_soon(self._sweep_some, connections, end, now_ns)

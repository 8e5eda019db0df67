"""The HTTP/1.1 server side on an event loop: accepts connections, watches their clocks, drains them."""

import asyncio
import time
from collections.abc import Callable, Sequence

from naiad.core.ports import Loop, TimerHandle
from naiad.core.request_limits import RequestBudget
from naiad.frontend.connection_register import AddressLimit
from naiad.frontend.exchange import Refuse
from naiad.frontend.http1.connection import Http1Connection
from naiad.frontend.http1.endpoint import Handle, Http1Endpoint, WatchedConnection
from naiad.wire.http1 import Http1Limits

_SWEEP_S = 1.0
_SWEEP_SLICE = 256


class Http1Server:
    """The connections of one endpoint.

    `protocol` is the factory for `loop.create_server`. Each complete request is handed to `handle`, on the loop.
    """

    def __init__(
        self,
        handle: Handle,
        loop: Loop,
        limits: Http1Limits | None = None,
        budget: RequestBudget | None = None,
        refuse: Refuse | None = None,
        addresses: AddressLimit | None = None,
    ) -> None:
        """`budget` bounds the bodies of all connections; without one only the limits of each do.

        `refuse` is asked about requests with large bodies before these are read. `addresses` counts the connections
        of each address.
        """
        self._endpoint = Http1Endpoint(
            handle,
            limits or Http1Limits(),
            self._on_change,
            self._on_closed,
            loop,
            budget or RequestBudget(),
            refuse,
            addresses,
        )
        self._loop = loop
        self.on_close: Callable[[], object] | None = None
        """Called whenever a connection has closed."""
        self._timer: TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._endpoint.connections)

    def protocol(self) -> Http1Connection:
        """Return the protocol of a new connection."""
        return Http1Connection(self._endpoint)

    def announce_drain(self) -> None:
        """Have the answers to requests in flight say `Connection: close`."""
        self._endpoint.is_draining = True
        self._endpoint.last_arrival_ns = time.monotonic_ns()

    def drain(self) -> None:
        """Let busy connections end with `Connection: close` on their last answer; idle ones are served on.

        `finish` ends these. The caller has stopped listening before.
        """
        self.announce_drain()

    def finish(self) -> None:
        """Let every connection end: idle ones soon, busy ones with their last answer. Comes after `drain`."""
        self._endpoint.is_finishing = True
        self.sweep(time.monotonic_ns())

    async def wait_closed(self) -> None:
        """Return when no connection is open any more."""
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
        self._endpoint.answer_heads.set_date(time.time())
        self._timer = self._loop.call_later(_SWEEP_S, self._on_timer)

    def _on_timer(self) -> None:
        # Without connections there is nothing to watch, and an idle server does not wake up.
        self._timer = None
        if self._endpoint.connections:
            self._start_timer()
            self._sweep_some(list(self._endpoint.connections), 0, time.monotonic_ns())

    def sweep(self, now_ns: int) -> None:
        """Enforce the time limits of all connections."""
        for connection in list(self._endpoint.connections):
            connection.check_clock(now_ns)

    def _sweep_some(self, connections: Sequence[WatchedConnection], begin: int, now_ns: int) -> None:
        """The same a few at a time, so that thousands of idle connections do not hold the busy ones up."""
        end = begin + _SWEEP_SLICE
        for connection in connections[begin:end]:
            if connection in self._endpoint.connections:
                connection.check_clock(now_ns)
        if end < len(connections):
            self._loop.call_soon(self._sweep_some, connections, end, now_ns)

"""The open connections of an endpoint: limited in number, swept about once a second, waited for at its end.

When a limit is reached, the connection with the longest idle time is closed for the new one. Finding it takes a look
at all connections. Idle connections are therefore sorted at most once a second, and each new connection closes the
first of them that is still idle.

Closing a socket and freeing the objects of its connection takes about 10 us. When thousands of clients disconnect at
once, for example because a load balancer restarts, closing all of them in one turn of the event loop would block
other clients: a `ClosingQueue` closes a few per turn.
"""

import asyncio
import ipaddress
import time
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from naiad.core.environment.ports import Loop, TimerHandle
from naiad.frontend.connections.reading_turns import ReadingTurns
from naiad.frontend.long_work.slice_runner import CallSoon

_SWEEP_S = 1.0
_SLICE = 128
"""Connections that are swept or closed per turn of the loop; together they take about a millisecond."""
_SORT_PAUSE_NS = 1_000_000_000
_MIN_IDLE_NS = 1_000_000_000
"""A connection that has just opened, or has just received a response, will probably be used soon."""
_IPV6_PREFIX_BITS = 64
"""Address prefix that counts as one client: a customer usually has at least a /64 network of IPv6."""


class EndpointConnection(Protocol):
    """A connection, as its endpoint uses it."""

    @property
    def idle_since_ns(self) -> int:
        """Time since which it is idle; 0 if it is busy, or was until a moment ago."""

    def close_idle(self) -> None:
        """Close for a new connection."""

    def sweep(self, now_ns: int) -> None:
        """Enforce the time limits."""

    def abort(self) -> None:
        """Drop the connection."""


C = TypeVar("C", bound=EndpointConnection)


class ClosingQueue:
    """Pending steps of ended connections, oldest first; one or two steps per connection."""

    __slots__ = ("_call_soon", "_is_scheduled", "_waiting")

    def __init__(self, call_soon: CallSoon) -> None:
        self._call_soon = call_soon
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_scheduled = False

    def add(self, step: Callable[[], object]) -> None:
        """Call `step` in one of the next turns."""
        self._waiting.append(step)
        self._schedule()

    def _turn(self) -> None:
        self._is_scheduled = False
        waiting = self._waiting
        try:
            for _ in range(min(len(waiting), _SLICE)):
                waiting.popleft()()
        finally:
            self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._turn)


class AddressLimit:
    """Counts connections per address, over all ports that share the limit. Unix sockets have no address."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._counts: dict[str, int] = {}

    def admit(self, transport: asyncio.BaseTransport) -> str | None:
        """Count a connection and return its address, empty for a Unix socket; None if the address has too many."""
        address = _address_of(transport)
        if not address:
            return ""
        count = self._counts.get(address, 0)
        if count >= self.most:
            return None
        self._counts[address] = count + 1
        return address

    def remove(self, address: str) -> None:
        """Subtract one connection."""
        count = self._counts.get(address, 0)
        if count > 1:
            self._counts[address] = count - 1
        else:
            self._counts.pop(address, None)


def _address_of(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return ""
    host = str(peer[0]).partition("%")[0]
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _IPV6_PREFIX_BITS), strict=False))


class Endpoint(Generic[C]):
    """The connections of one endpoint. A connection registers when it is made, and unregisters when it is lost."""

    def __init__(self, loop: Loop, max_connections: int, addresses: AddressLimit | None = None) -> None:
        """`addresses` counts the connections per address."""
        self.loop = loop
        self.is_draining = False
        self.on_close: Callable[[], object] | None = None
        """Called when a connection has closed."""
        self.closing = ClosingQueue(loop.call_soon)
        self.reading_turns = ReadingTurns(loop.call_soon)
        """Limits how long a turn of the loop reads."""
        self.connections: set[C] = set()
        self._max_connections = max_connections
        self._addresses = addresses
        self._address_of: dict[C, str] = {}
        """Filled only if addresses are counted."""
        self._idle: list[tuple[int, C]] = []
        """Idle connections when they were sorted, the longest idle last."""
        self._sorted_ns = 0
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
        if self._addresses is not None:
            # First: an address with too many connections closes no connection of another client.
            address = self._addresses.admit(transport)
            if address is None:
                return f"too many connections of one address; the limit is {self._addresses.most}"
            self._address_of[connection] = address
        if len(self.connections) >= self._max_connections and not self._close_one_idle():
            self._forget(connection)
            return f"too many connections; the limit is {self._max_connections}"
        self.connections.add(connection)
        if self._timer is None:
            self._start_timer()
        return ""

    def unregister(self, connection: C) -> None:
        """Remove a connection that was lost."""
        self._forget(connection)
        if not self.connections:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()
        if self.on_close is not None:
            self.on_close()

    def _forget(self, connection: C) -> None:
        self.connections.discard(connection)
        address = self._address_of.pop(connection, "")
        if address and self._addresses is not None:
            self._addresses.remove(address)

    def _close_one_idle(self) -> bool:
        """Close the connection with the longest idle time; return False if none is idle."""
        for attempt in range(2):
            while self._idle:
                since_ns, connection = self._idle.pop()
                if connection in self.connections and connection.idle_since_ns == since_ns:
                    self.connections.discard(connection)
                    connection.close_idle()
                    return True
            now_ns = time.monotonic_ns()
            if attempt or now_ns - self._sorted_ns < _SORT_PAUSE_NS:
                break
            self._sorted_ns = now_ns
            latest_ns = now_ns - _MIN_IDLE_NS
            found = [(connection.idle_since_ns, connection) for connection in self.connections]
            self._idle = sorted(
                [entry for entry in found if 0 < entry[0] <= latest_ns], key=itemgetter(0), reverse=True
            )
        return False

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
        end = begin + _SLICE
        for connection in connections[begin:end]:
            if connection in self.connections:
                connection.sweep(now_ns)
        if end < len(connections):
            self.loop.call_soon(self._sweep_some, connections, end, now_ns)

"""The open connections of an endpoint: how many there may be, and which one goes when there are too many.

When the limit is reached, the connection that has been idle for longest makes way for the new one. Looking for it
costs a look at all connections, so the idle ones are sorted at most once a second, and each new connection takes the
first of them that is still idle.
"""

import asyncio
import ipaddress
import time
from typing import Generic, Protocol, TypeVar

_SORT_PAUSE_NS = 1_000_000_000
_LEAST_IDLE_NS = 1_000_000_000
"""A connection that has just begun, or has just had an answer, is about to be used."""
_IPV6_PREFIX_BITS = 64
"""One customer usually has at least as many addresses of IPv6."""


class RegisteredConnection(Protocol):
    """What is asked of a connection."""

    @property
    def idle_since_ns(self) -> int:
        """Since when it has had nothing to do; 0 when it has, or has just had."""

    def make_way(self) -> None:
        """Close for a new connection."""


C = TypeVar("C", bound=RegisteredConnection)


class AddressLimit:
    """Counts the connections of each address, over the ports that share the limit. Unix sockets have none."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._counts: dict[str, int] = {}

    def admit(self, transport: asyncio.BaseTransport) -> str | None:
        """Count a connection and return its address, empty for a Unix socket; None when there are too many."""
        address = _address_of(transport)
        if not address:
            return ""
        count = self._counts.get(address, 0)
        if count >= self.most:
            return None
        self._counts[address] = count + 1
        return address

    def remove(self, address: str) -> None:
        """Count one connection less."""
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


class ConnectionRegister(Generic[C]):
    """The connections that are open."""

    def __init__(self, most: int, addresses: AddressLimit | None = None) -> None:
        self.open: set[C] = set()
        self._most = most
        self._addresses = addresses
        self._address_of: dict[C, str] = {}
        """Filled only when addresses are counted."""
        self._idle: list[tuple[int, C]] = []
        """The longest idle last, as they were when they were sorted."""
        self._sorted_ns = 0

    def admit(self, connection: C, transport: asyncio.BaseTransport) -> str:
        """Add a connection; return why there is no room for it, or an empty text."""
        if len(self.open) >= self._most and not self._make_room():
            return f"too many connections; the limit is {self._most}"
        if self._addresses is not None:
            address = self._addresses.admit(transport)
            if address is None:
                return f"too many connections of one address; the limit is {self._addresses.most}"
            self._address_of[connection] = address
        self.open.add(connection)
        return ""

    def remove(self, connection: C) -> None:
        """Forget a connection that was lost."""
        self.open.discard(connection)
        address = self._address_of.pop(connection, "")
        if address and self._addresses is not None:
            self._addresses.remove(address)

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest; False when none is idle."""
        for attempt in range(2):
            while self._idle:
                since_ns, connection = self._idle.pop()
                if connection in self.open and connection.idle_since_ns == since_ns:
                    self.open.discard(connection)
                    connection.make_way()
                    return True
            now_ns = time.monotonic_ns()
            if attempt or now_ns - self._sorted_ns < _SORT_PAUSE_NS:
                break
            self._sorted_ns = now_ns
            latest_ns = now_ns - _LEAST_IDLE_NS
            found = [(connection.idle_since_ns, connection) for connection in self.open]
            self._idle = sorted([entry for entry in found if 0 < entry[0] <= latest_ns], key=_since, reverse=True)
        return False


def _since(entry: tuple[int, object]) -> int:
    return entry[0]

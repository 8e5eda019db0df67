"""The open connections of an endpoint, with limits in total and per address.

When the limit is reached, the connection with the longest idle time is closed for the new one. Finding it takes a
look at all connections. Idle connections are therefore sorted at most once a second, and each new connection closes
the first of them that is still idle.
"""

import asyncio
import ipaddress
import time
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

_SORT_PAUSE_NS = 1_000_000_000
_MIN_IDLE_NS = 1_000_000_000
"""A connection that has just opened, or has just received a response, will probably be used soon."""
_IPV6_PREFIX_BITS = 64
"""Address prefix that counts as one client: a customer usually has at least a /64 network of IPv6."""


class RegisteredConnection(Protocol):
    """A connection, as the register uses it."""

    @property
    def idle_since_ns(self) -> int:
        """Time since which it is idle; 0 if it is busy, or was until a moment ago."""

    def close_idle(self) -> None:
        """Close for a new connection."""


C = TypeVar("C", bound=RegisteredConnection)


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


class ConnectionRegister(Generic[C]):
    """The open connections."""

    def __init__(self, most: int, addresses: AddressLimit | None = None) -> None:
        self.open: set[C] = set()
        self._most = most
        self._addresses = addresses
        self._address_of: dict[C, str] = {}
        """Filled only if addresses are counted."""
        self._idle: list[tuple[int, C]] = []
        """Idle connections when they were sorted, the longest idle last."""
        self._sorted_ns = 0

    def admit(self, connection: C, transport: asyncio.BaseTransport) -> str:
        """Add a connection. Return an error message if a limit is reached, otherwise an empty text."""
        if self._addresses is not None:
            # First: an address with too many connections closes no connection of another client.
            address = self._addresses.admit(transport)
            if address is None:
                return f"too many connections of one address; the limit is {self._addresses.most}"
            self._address_of[connection] = address
        if len(self.open) >= self._most and not self._close_one_idle():
            self.remove(connection)
            return f"too many connections; the limit is {self._most}"
        self.open.add(connection)
        return ""

    def remove(self, connection: C) -> None:
        """Remove a lost connection."""
        self.open.discard(connection)
        address = self._address_of.pop(connection, "")
        if address and self._addresses is not None:
            self._addresses.remove(address)

    def _close_one_idle(self) -> bool:
        """Close the connection with the longest idle time; return False if none is idle."""
        for attempt in range(2):
            while self._idle:
                since_ns, connection = self._idle.pop()
                if connection in self.open and connection.idle_since_ns == since_ns:
                    self.open.discard(connection)
                    connection.close_idle()
                    return True
            now_ns = time.monotonic_ns()
            if attempt or now_ns - self._sorted_ns < _SORT_PAUSE_NS:
                break
            self._sorted_ns = now_ns
            latest_ns = now_ns - _MIN_IDLE_NS
            found = [(connection.idle_since_ns, connection) for connection in self.open]
            self._idle = sorted(
                [entry for entry in found if 0 < entry[0] <= latest_ns], key=itemgetter(0), reverse=True
            )
        return False

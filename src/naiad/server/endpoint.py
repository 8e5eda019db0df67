"""Endpoints: the sockets that a server listens on, and the connections behind them."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from naiad.core.errors import InferError, internal
from naiad.server.tls import HANDSHAKE_TIMEOUT_S, SHUTDOWN_TIMEOUT_S

_log = logging.getLogger(__name__)

_BACKLOG = 1024


class Connections(Protocol):
    """What carries one protocol over many connections."""

    @property
    def connection_count(self) -> int:
        """Open connections."""

    on_close: Callable[[], object] | None
    """Called whenever a connection has closed."""

    def drain(self) -> None:
        """Let every connection end: idle ones soon, busy ones after their last answer."""

    async def wait_closed(self) -> None:
        """Return when no connection is open any more."""

    def abort(self) -> None:
        """Drop all connections at once."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen, and how the operator says so."""

    service: str
    """Its name in the log, for example HTTPService."""
    flag: str
    """The prefix of its flags: http, grpc, metrics."""
    host: str
    port: int
    reuse_port: bool = False


def bind(address: Address) -> socket.socket:
    """Return a bound socket that does not listen yet.

    Binding comes before the models load, so that a port in use is told at once; listening comes after, so that nobody
    is connected to a server that cannot answer. Raises InferError that names the flag.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise internal(f"--{address.flag}-address {address.host} cannot be resolved: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(where)
    except OSError as error:
        listener.close()
        raise _refused(address, error) from error
    listener.setblocking(False)
    return listener


def _refused(address: Address, error: OSError) -> InferError:
    advice = ""
    if error.errno == errno.EADDRINUSE:
        advice = f"; another process has the port: choose another, or give --reuse-{address.flag}-port=true to both"
    return internal(
        f"failed to start {address.service} at --{address.flag}-address {address.host} --{address.flag}-port "
        f"{address.port}: {error.strerror}{advice}"
    )


class Service(Protocol):
    """What one port serves, however its connections come."""

    connections: Connections

    async def listen(self) -> None:
        """Begin to take connections. Raises InferError."""

    def stop_listening(self) -> None:
        """Take no more connections; those that are open stay."""


class Endpoint:
    """One service: its listening socket and its connections."""

    def __init__(
        self,
        address: Address,
        listener: socket.socket,
        connections: Connections,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = address
        self._listener = listener
        self._protocol = protocol
        self._tls = tls
        self._server: asyncio.AbstractServer | None = None
        self.connections = connections

    async def listen(self) -> None:
        """Begin to accept and log where. Raises InferError when another process was faster to listen."""
        # asyncio takes the timeouts only with a context.
        tls = self._tls
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._protocol,
                sock=self._listener,
                backlog=_BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if tls else None,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S if tls else None,
            )
        except OSError as error:
            raise _refused(self._address, error) from error
        host, port = self._listener.getsockname()[:2]
        _log.info("Started %s at %s:%d%s", self._address.service, host, port, " with TLS" if tls else "")

    def stop_listening(self) -> None:
        """Accept no more connections; those that are open stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._listener.close()

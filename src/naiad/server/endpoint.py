"""Endpoints: the sockets that a server listens on, and the connections behind them."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

from naiad.server.listener import Address, bind, refused
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


class Service(Protocol):
    """What one port serves, however its connections come."""

    connections: Connections

    @property
    def flag(self) -> str:
        """The prefix of its flags: http, grpc, metrics."""

    async def listen(self) -> None:
        """Begin to take connections. Raises InferError."""

    def stop_listening(self) -> None:
        """Take no more connections; those that are open stay."""


class Endpoint:
    """One service: its listening socket and its connections."""

    def __init__(
        self,
        address: Address,
        connections: Connections,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Bind the socket. Raises InferError that names the flag."""
        self._listener = bind(address)
        self._protocol = protocol
        self._tls = tls
        self._server: asyncio.AbstractServer | None = None
        self.connections = connections
        self.flag = address.flag
        """The prefix of its flags: http, grpc, metrics."""

    async def listen(self) -> None:
        """Begin to accept and log where. Raises InferError when another process was faster to listen."""
        address, listener, tls = self._listener.address, self._listener, self._tls
        loop = asyncio.get_running_loop()
        make: Callable[..., Awaitable[asyncio.AbstractServer]] = (
            loop.create_unix_server if listener.is_unix else loop.create_server
        )
        # asyncio takes the timeouts only with a context.
        timeouts = {"ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S, "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT_S}
        try:
            self._server = await make(
                self._protocol, sock=listener.socket, backlog=_BACKLOG, ssl=tls, **(timeouts if tls else {})
            )
        except OSError as error:
            raise refused(address, error) from error
        for service in address.services:
            _log.info("Started %s at %s%s", service, listener.name, " with TLS" if tls else "")

    def stop_listening(self) -> None:
        """Accept no more connections; those that are open stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._listener.close()

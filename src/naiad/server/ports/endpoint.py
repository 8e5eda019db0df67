"""Endpoints: the listening sockets of a server and the connections behind them."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

from naiad.server.ports.listener import HANDSHAKES_S, Address, bind, refused
from naiad.server.ports.tls import HANDSHAKE_TIMEOUT_S, SHUTDOWN_TIMEOUT_S

_log = logging.getLogger(__name__)

_BACKLOG = 1024


class Connections(Protocol):
    """All connections of one endpoint and their protocol."""

    @property
    def connection_count(self) -> int:
        """Number of open connections."""

    on_close: Callable[[], object] | None
    """Called when a connection has closed."""

    def announce_drain(self) -> None:
        """Mark the responses to requests in flight as the last ones, where the protocol can."""

    def drain(self) -> None:
        """End connections: busy ones after their last response; idle HTTP/1.1 ones stay until `finish`."""

    def finish(self) -> None:
        """End idle connections as well."""

    async def wait_closed(self) -> None:
        """Return when no connection is open."""

    def abort(self) -> None:
        """Drop all connections at once."""


class Service(Protocol):
    """The service on one port, independent of the source of its connections."""

    connections: Connections

    @property
    def flag(self) -> str:
        """The prefix of its flags: http, grpc, metrics."""

    @property
    def port(self) -> int:
        """The bound port, also if the flag says 0; 0 for a Unix socket."""

    @property
    def is_shared(self) -> bool:
        """Whether other servers may listen on the same port."""

    async def listen(self) -> None:
        """Start to accept connections. Raises InferError."""

    async def stop_listening(self) -> None:
        """Accept the connections that have begun, and then no more; open ones stay."""

    def close(self) -> None:
        """Close the port at once."""


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
        self.is_shared = address.reuse_port
        """Whether other servers may listen on the same port."""
        self.port = self._listener.port
        """The bound port, also if the flag says 0; 0 for a Unix socket."""

    async def listen(self) -> None:
        """Start to accept connections and log the address.

        Raises InferError if another process has started to listen first.
        """
        address, listener, tls = self._listener.address, self._listener, self._tls
        loop = asyncio.get_running_loop()
        make: Callable[..., Awaitable[asyncio.AbstractServer]] = (
            loop.create_unix_server if listener.is_unix else loop.create_server
        )
        # asyncio accepts the time-outs only together with a context.
        timeouts = {"ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S, "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT_S}
        try:
            self._server = await make(
                self._protocol, sock=listener.socket, backlog=_BACKLOG, ssl=tls, **(timeouts if tls else {})
            )
        except OSError as error:
            raise refused(address, error) from error
        for service in address.services:
            _log.info("Started %s at %s%s", service, listener.name, " with TLS" if tls else "")

    async def stop_listening(self) -> None:
        """Accept the connections that have begun, and then no more; open ones stay."""
        self._listener.block_new_connections()
        await asyncio.sleep(HANDSHAKES_S)
        # No code may run between this and the close of the socket: connections in between would be reset.
        accepted = self._listener.accept_waiting()
        self.close()
        await asyncio.gather(*map(self._adopt, accepted))

    def close(self) -> None:
        """Close the port at once."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._listener.close()

    async def _adopt(self, connection: socket.socket) -> None:
        """Serve a connection that this process has accepted."""
        timeouts = {"ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S, "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT_S}
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, **(timeouts if self._tls else {})
            )
        except (OSError, TimeoutError) as error:
            _log.debug("a connection was lost before it began: %s", error)
            connection.close()

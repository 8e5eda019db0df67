"""Endpoints: the listening sockets of a server and the connections behind them."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from naiad.frontend.http1.connection import Http1Server
from naiad.frontend.http2.connection import Http2Server
from naiad.frontend.one_port import OnePort
from naiad.server.ports.listener import HANDSHAKES_S, Address, bind, refused
from naiad.server.ports.tls import HANDSHAKE_TIMEOUT_S, SHUTDOWN_TIMEOUT_S

_log = logging.getLogger(__name__)

_BACKLOG = 1024


Connections: TypeAlias = Http1Server | Http2Server | OnePort
"""All connections of one endpoint and their protocol."""


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


class ServiceEndpoint:
    """One service: its listening socket and its connections."""

    def __init__(
        self,
        address: Address,
        connections: Connections,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Bind the socket. Raises InferError that names the flag."""
        self._listener = bind(address)
        self._protocol = connections.protocol
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
        try:
            self._server = await make(
                self._protocol, sock=listener.socket, backlog=_BACKLOG, ssl=tls, **_tls_timeouts(tls)
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
        await asyncio.gather(*(serve_accepted(self._protocol, each, self._tls) for each in accepted))

    def close(self) -> None:
        """Close the port at once."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._listener.close()


async def serve_accepted(
    protocol: Callable[[], asyncio.BaseProtocol], connection: socket.socket, tls: ssl.SSLContext | None
) -> None:
    """Serve a connection that was accepted already, by this process or another."""
    loop = asyncio.get_running_loop()
    try:
        await loop.connect_accepted_socket(protocol, connection, ssl=tls, **_tls_timeouts(tls))
    except (OSError, TimeoutError) as error:
        # The client disconnected or did not finish its handshake; no protocol has seen the connection.
        _log.debug("a connection was lost before it began: %s", error)
        connection.close()


def _tls_timeouts(tls: ssl.SSLContext | None) -> dict[str, float]:
    """Return the arguments for a context; asyncio accepts them only together with one."""
    if tls is None:
        return {}
    return {"ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S, "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT_S}

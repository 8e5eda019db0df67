"""HTTP/1.1 connections to one server: each carries one request at a time and is kept for the next."""

import asyncio
from collections.abc import Sequence
from typing import cast

from naiad.client.connecting import ClientClosedError, ConnectionFailedError, Connector, NotConnectedError
from naiad.core.tensor import Buffer
from naiad.wire.http1_client import Http1ClientConnection, Http1ClientLimits, Response, ResponseError

_IDLE_S = 60.0
"""A connection that was idle for longer is not used again: the server may be about to close it."""


class Http1Protocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, limits: Http1ClientLimits) -> None:
        self._http = Http1ClientConnection(limits)
        self._transport: asyncio.Transport | None = None
        self._response: asyncio.Future[Response] | None = None
        self._failure = "the connection was closed by the server"
        self.idle_since_s = 0.0

    async def exchange(self, parts: Sequence[Buffer]) -> Response:
        """Send a request and return its response; a caller that is cancelled closes the connection.

        Raises ConnectionFailedError when the connection breaks, or the response is malformed; NotConnectedError when
        it was closed before.
        """
        transport = self._transport
        if transport is None or not self._http.can_send:
            raise NotConnectedError(self._failure)  # nothing was sent
        self._http.expect()
        response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._response = response
        transport.writelines(parts)
        try:
            return await response
        finally:
            self._response = None
            if response.cancelled() or not response.done():
                self.abort()

    @property
    def is_reusable(self) -> bool:
        """Whether it takes another request."""
        return self._http.can_send and self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Close the connection; the server cancels the request."""
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take received bytes."""
        try:
            self._finish(self._http.receive_data(data))
        except ResponseError as error:
            self._fail(str(error))

    def eof_received(self) -> None:
        """The server sends no more; the connection is closed."""
        try:
            self._finish(self._http.receive_eof())
        except ResponseError as error:
            self._fail(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed; a request that waits fails."""
        self._transport = None
        self._fail(f"the connection was lost: {exc}" if exc else "the connection was closed before the response")

    def _finish(self, response: Response | None) -> None:
        if response is not None and self._response is not None and not self._response.done():
            self._response.set_result(response)

    def _fail(self, why: str) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(ConnectionFailedError(why))
        elif self._transport is not None:
            self._failure = why  # of a server that speaks first, which is no HTTP server
        self.abort()


class Http1Pool:
    """At most `max_connections` connections; further requests wait for one."""

    def __init__(self, connector: Connector, max_connections: int, limits: Http1ClientLimits) -> None:
        self.connector = connector
        self._limits = limits
        self._slots = asyncio.Semaphore(max_connections)
        self._idle: list[Http1Protocol] = []
        self._open: set[Http1Protocol] = set()
        self._closed_count = 0
        """Number of calls of `close`: requests that began before fail."""

    async def request(self, parts: Sequence[Buffer], *, is_idempotent: bool) -> Response:
        """Send a request and return its response.

        An idempotent request is sent again when the server closes a kept connection (RFC 9110 9.2.2). Raises
        ConnectionFailedError.
        """
        began = self._closed_count
        async with self._slots:
            kept = self._take_idle() if began == self._closed_count else None
            if kept is not None:
                try:
                    return await self._exchange(kept, parts)
                except ConnectionFailedError:
                    if not is_idempotent:
                        raise
            if began != self._closed_count:
                raise ClientClosedError
            connection = await self.connector.open(self._make)
            if began != self._closed_count:
                connection.abort()
                raise ClientClosedError
            return await self._exchange(connection, parts)

    def close(self) -> None:
        """Close all connections; requests that wait fail."""
        self._closed_count += 1
        for connection in (*self._open, *self._idle):
            connection.abort()
        self._idle.clear()

    def _make(self) -> Http1Protocol:
        return Http1Protocol(self._limits)

    def _take_idle(self) -> Http1Protocol | None:
        oldest_s = asyncio.get_running_loop().time() - _IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.idle_since_s >= oldest_s:
                return connection
            connection.abort()
        return None

    async def _exchange(self, connection: Http1Protocol, parts: Sequence[Buffer]) -> Response:
        self._open.add(connection)
        try:
            response = await connection.exchange(parts)
        finally:
            self._open.discard(connection)
        if connection.is_reusable:
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()
        return response

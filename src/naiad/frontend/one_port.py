"""One port for HTTP/1.1 and HTTP/2: the first bytes of a connection, or ALPN of TLS, determine its version.

Until then HTTP/1.1 limits and clocks apply to the connection. Afterwards the transport gets the same protocol object
as on a port of its own, so the choice costs nothing later.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from naiad.frontend.http1.connection import Http1Connection, Http1Server
from naiad.frontend.http2.connection import Http2Server
from naiad.wire.preface import ALPN, HttpVersion, version_of


class OnePort:
    """The connections of an endpoint with both versions. `protocol` is the factory for the loop."""

    def __init__(self, http1: Http1Server, http2: Http2Server) -> None:
        self._http1 = http1
        self._http2 = http2

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return self._http1.connection_count + self._http2.connection_count

    @property
    def on_close(self) -> Callable[[], object] | None:
        """Called when a connection has closed, and when one turns out to be HTTP/2."""
        return self._http2.on_close

    @on_close.setter
    def on_close(self, callback: Callable[[], object] | None) -> None:
        self._http1.on_close = self._http2.on_close = callback

    def protocol(self) -> "Undecided":
        """Return the protocol of a new connection."""
        return Undecided(self._http1.protocol(), self._http2)

    def announce_drain(self) -> None:
        """Mark the responses to requests in flight as the last ones, where the protocol can."""
        self._http1.announce_drain()
        self._http2.announce_drain()

    def drain(self) -> None:
        """End connections: busy ones after their last response; idle HTTP/1.1 ones stay until `finish`."""
        self._http1.drain()
        self._http2.drain()

    def finish(self) -> None:
        """End idle connections as well."""
        self._http1.finish()
        self._http2.finish()

    async def wait_closed(self) -> None:
        """Return when no connection is open."""
        # In this order: an undecided connection can still become HTTP/2, but no HTTP/1.1 connection can.
        await self._http1.wait_closed()
        await self._http2.wait_closed()

    def abort(self) -> None:
        """Drop all connections at once."""
        self._http1.abort()
        self._http2.abort()


class Undecided(asyncio.BufferedProtocol):
    """A connection whose version is not known yet; it replaces itself."""

    __slots__ = ("_http1", "_http2", "_received", "_transport")

    def __init__(self, http1: Http1Connection, http2: Http2Server) -> None:
        self._http1 = http1
        self._http2 = http2
        self._received = b""
        """An incomplete prefix of the HTTP/2 preface."""
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set before any other callback

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with HTTP/1.1, unless TLS has negotiated HTTP/2."""
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = transport = cast("asyncio.Transport", transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        agreed = None if tls is None else ALPN.get(tls.selected_alpn_protocol() or "")
        if agreed is HttpVersion.HTTP_2:
            self._become_http2(b"")
            return
        self._http1.connection_made(transport)
        if agreed is HttpVersion.HTTP_1:
            transport.set_protocol(self._http1)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to receive into, shared by the HTTP/1.1 connections."""
        return self._http1.get_buffer(sizehint)[len(self._received) :]

    def buffer_updated(self, nbytes: int) -> None:
        """Determine the version, or wait for more bytes."""
        buffer = self._http1.get_buffer(0)
        known = len(self._received)
        buffer[:known] = self._received
        received = buffer[: known + nbytes]
        version = version_of(received)
        if version is None:
            self._received = bytes(received)
        elif version is HttpVersion.HTTP_2:
            self._http1.connection_lost(None)  # the buffer belongs to all connections
            self._become_http2(bytes(received))
        else:
            self._transport.set_protocol(self._http1)
            self._http1.buffer_updated(len(received))

    def eof_received(self) -> bool:
        """End like an HTTP/1.1 connection."""
        if self._received:
            received, self._received = self._received, b""
            self._http1.get_buffer(0)[: len(received)] = received
            self._transport.set_protocol(self._http1)
            self._http1.buffer_updated(len(received))
        return self._http1.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self._http1.connection_lost(exc)

    def _become_http2(self, received: bytes) -> None:
        transport, protocol = self._transport, self._http2.protocol()
        transport.set_protocol(protocol)
        if received:
            # uvloop checks only at the start of reading whether a protocol provides its own buffer.
            transport.pause_reading()
            transport.resume_reading()
        protocol.connection_made(transport)
        if received and not transport.is_closing():
            protocol.data_received(received)

"""One HTTP/2 connection on an event loop, gRPC and REST: what asyncio tells about it, and the parts that act on it.

Bytes go to `wire.http2`, whose sink is `http2_receiving`: it makes calls of frames and hands them to the service.
Calls answer through `http2_answering`, and what is answered during one callback of the loop leaves with one write.
`http2_ending` closes the connection. Reading pauses while the peer's socket does not take our answers.
"""

import asyncio
import functools
import socket
import time
from collections.abc import Callable
from typing import Protocol, cast

from naiad.frontend.farewell import FAREWELL_S
from naiad.frontend.http2_ending import Http2Ending
from naiad.frontend.http2_receiving import Http2Receiving, RequestServer
from naiad.wire.http2_frames import Http2Code, Http2Error

_now_ns = time.monotonic_ns

_MUCH_BYTES = 64 * 1024
_LONG_NS = 2_000_000
"""A peer that sends more than this at once, and keeps the loop for longer than that, lets others pass."""


class ConnectionOwner(RequestServer, Protocol):
    """The server of a connection."""

    is_draining: bool

    def register(self, connection: "Http2Protocol", transport: asyncio.BaseTransport) -> str:
        """Add a connection; return why there is no room for it, or an empty text."""

    def unregister(self, connection: "Http2Protocol") -> None:
        """Remove a connection that was lost."""

    def flush_soon(self, flush: Callable[[], object]) -> None:
        """Call `flush` once the current callback is over."""


class Http2Protocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: ConnectionOwner) -> None:
        self._server = server
        self._receiving = Http2Receiving(server, functools.partial(server.flush_soon, self.flush))
        self._connection = self._receiving.connection
        self._answering = self._receiving.answering
        self._ending = Http2Ending(server.service, server.limits, self._connection, self._answering, _now_ns())
        self.output = self._connection.output
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._busy_ns = 0
        """Time that large reads have taken since others had their turn."""
        self._gives_way = False
        """Others are read before this connection goes on."""

    # --- callbacks of the transport -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register; too many connections are turned away."""
        # uvloop's transports are no subclass of asyncio's.
        self._transport = transport = cast("asyncio.Transport", transport)
        self._answering.start(transport)
        _keep_alive(transport)
        high_bytes = self._server.limits.write_buffer_bytes // 2
        transport.set_write_buffer_limits(high=high_bytes, low=high_bytes // 4)
        obstacle = self._server.register(self, transport)
        if obstacle:
            self._connection.fail(Http2Code.ENHANCE_YOUR_CALM, obstacle.partition(";")[0])
            self._ending.end(transport)
            self._server.loop.call_later(FAREWELL_S, transport.abort)  # over TLS the peer has to close, too
            return
        if self._server.is_draining:
            self.drain()
        # Our SETTINGS leave with the answer to the peer's preface: a peer that speaks HTTP/1.1 can then be told so.

    def data_received(self, data: bytes) -> None:
        """Take bytes, hand over the requests they complete, write what was answered meanwhile."""
        # hot: bench/micro_http2.py
        self._receiving.arrival_ns = now_ns = _now_ns()
        self._answering.is_dirty = True  # so that answers from within wait for the flush below
        try:
            has_unread = self._connection.receive_slice(data, now_ns)
            if has_unread:
                has_unread = self._receive_more_slices(now_ns)
        except Http2Error as error:
            if self._transport is not None:
                self._ending.fail(self._transport, error, data)
            return
        self.flush()
        if has_unread or len(data) > _MUCH_BYTES:
            self._give_way_if_long(now_ns, has_unread=has_unread)

    def _receive_more_slices(self, began_ns: int) -> bool:
        """Go on with what was received until that takes long; return whether there is more. Raises Http2Error."""
        connection, has_unread = self._connection, True
        while has_unread:
            now_ns = _now_ns()
            is_slow = now_ns - began_ns > _LONG_NS
            connection.slow_down(is_slow)
            if is_slow:
                return True
            self._receiving.arrival_ns = now_ns
            has_unread = connection.receive_slice(b"", now_ns)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every call that nobody waits for its answer."""
        self._transport = None
        self._answering.stop()
        self._server.unregister(self)
        self._receiving.close()

    def pause_writing(self) -> None:
        """The peer does not take our answers: make no more of them and take no more requests."""
        self.output.is_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        """The peer goes on."""
        self.output.is_paused = False
        self.output.pump()
        if self._connection.has_unread:
            self._give_way()
        self._update_reading()
        if not self._answering.is_dirty:
            self.flush()

    # --- writing and reading ------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what there is to write, and close after the last of it."""
        self._answering.flush()
        if self._connection.is_draining and self._transport is not None:
            self._ending.close_if_drained(self._transport)

    def _give_way_if_long(self, began_ns: int, *, has_unread: bool) -> None:
        """Give way after reads that together took long: none of 32 in a row may."""
        self._busy_ns += _now_ns() - began_ns
        if has_unread or self._busy_ns > _LONG_NS:
            self._busy_ns = 0
            self._give_way()

    def _give_way(self) -> None:
        """Have others read before more is read from a peer whose bytes take long: libuv would go on 32 times."""
        if not self._gives_way:
            self._gives_way = True
            self._update_reading()
            self._server.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Take what is left of the bytes that were received, and read more once nothing is."""
        self._gives_way = False
        if self._connection.has_unread and not self.output.is_paused and self._transport is not None:
            self.data_received(b"")
        if not self._gives_way:
            self._update_reading()

    def _update_reading(self) -> None:
        transport = self._transport
        may_read = not self.output.is_paused and not self._gives_way
        if transport is None or may_read == self._is_reading or transport.is_closing():
            return
        self._is_reading = may_read
        if may_read:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # --- what the server asks for -------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more calls and close when the last is answered."""
        self._ending.drain()
        if self._connection.is_set_up:
            self.flush()

    def forget_plans(self) -> None:
        """Have the access rule asked again, also for heads that have passed it."""
        self._connection.forget_memos()

    def sweep(self, now_ns: int) -> None:
        """Enforce the time limits."""
        if self._transport is not None:
            self._ending.sweep(self._transport, now_ns, self._receiving.arrival_ns, is_reading=self._is_reading)

    @property
    def idle_since_ns(self) -> int:
        """Since when the connection has had no call; 0 when it has one, or ends already."""
        return 0 if self._transport is None else self._ending.idle_since_ns(self._receiving.arrival_ns)

    def make_way(self) -> None:
        """Close for a new connection."""
        if self._transport is not None:
            self._ending.make_way(self._transport, self._server.loop)

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()


def _keep_alive(transport: asyncio.Transport) -> None:
    """Let the kernel find peers that vanished: idle connections are otherwise kept for ever."""
    connected: socket.socket | None = transport.get_extra_info("socket")
    if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

"""One HTTP/2 connection on an event loop, gRPC and REST.

Theory of operation. Objects refer downwards only, in this order:

    Http2Protocol   the transport: reading, pauses of the socket, time limits, the end of the connection
    Http2Calls      the sink of `wire.http2.server.ServerConnection`: streams become calls
    Http2Call       one call; with `GrpcRequest` or `Http2Context` for a request that arrives in several pieces
    Http2Flow       output, requests and bytes that wait; the only place that writes to the transport

Received bytes go to the connection of `wire`, which makes calls of frames through its sink. A complete request goes
to the service or to a route, which responds to the call, now or in a later callback of the loop. The response becomes
frames in the output of the flow, and the output of one callback leaves with one write. Reading pauses while the
peer's socket does not accept output. When a turn of the loop has read for long, received bytes wait for a later one.

Drain, age, keepalive and time limits end the connection, and calls that take too long. They have no timers: the
server sweeps its connections about every second.
"""

import asyncio
import logging
import random
import socket
import time
from typing import cast

from naiad.core.errors import excerpt
from naiad.frontend.connections.linger import LINGER_S, LingeringClose, ReadRateCheck, undelivered_bytes
from naiad.frontend.http2.calls import Http2Calls
from naiad.frontend.http2.endpoint import Http2Endpoint
from naiad.frontend.http2.time_limits import Http2Clock
from naiad.wire.grpc import GrpcError, GrpcStatus
from naiad.wire.http2.frames import Http2Code, Http2Error
from naiad.wire.http2.keepalive import Keepalive, KeepaliveStep
from naiad.wire.preface import is_http1

_log = logging.getLogger(__name__)

_HTTP1_TEXT = b"This port speaks gRPC (HTTP/2). REST is served on the HTTP port (--http-port, 8000 by default).\n"
_HTTP1_RESPONSE = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
    % (len(_HTTP1_TEXT), _HTTP1_TEXT)
)


_now_ns = time.monotonic_ns

_MUCH_BYTES = 64 * 1024
_LONG_NS = 2_000_000
"""A peer that sends more than this at once, and occupies the loop for longer than that, yields to other connections.
"""


class Http2Protocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: "Http2Server") -> None:
        self._server = server
        self._begin_ns = now_ns = _now_ns()
        self._calls = Http2Calls(server, now_ns)
        self._flow = self._calls.flow
        self._connection = self._calls.connection
        self._connection.slow_down(True)
        self.output = self._connection.output
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._busy_ns = 0
        """Time spent on large reads since other connections were served."""
        self._turns = server.reading_turns
        self._is_waiting = False
        """Other connections have their turn before this one continues."""
        self._is_pausing = False
        """It waits with more bytes than should be kept, or was read for long: nothing more is read meanwhile."""
        self._has_peer_ended = False
        """The peer has ended while received bytes wait for their turn."""
        self._clock = Http2Clock(server.limits, now_ns)
        # gRPC: the maximum age varies by 10 % per connection, so that clients do not reconnect all at once.
        self._keepalive = Keepalive(server.limits.keepalive, now_ns, random.uniform(0.9, 1.1))
        self._response_queue = ReadRateCheck(server.limits.write_timeout_s)
        self._ends_streams = False
        self._drain_sweeps = 0
        self._linger_sweeps = 0
        self._linger: LingeringClose | None = None
        """Set once the connection is closed."""

    # --- callbacks of the transport -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or reject it if there are too many."""
        # uvloop's transports are no subclass of asyncio's.
        self._transport = transport = cast("asyncio.Transport", transport)
        self._flow.start(transport)
        _keep_alive(transport)
        high_bytes = self._server.limits.write_buffer_bytes // 2
        transport.set_write_buffer_limits(high=high_bytes, low=high_bytes // 4)
        unsupported_reason = self._server.register(self, transport)
        if unsupported_reason:
            self._connection.fail(Http2Code.ENHANCE_YOUR_CALM, unsupported_reason.partition(";")[0])
            self._end(transport)
            self._server.loop.call_later(LINGER_S, transport.abort)  # with TLS the peer has to close, too
            return
        if self._server.is_draining:
            self.drain()
        # The server's SETTINGS follow the peer's preface, so that an HTTP/1.1 peer can get a readable error.

    def data_received(self, data: bytes) -> None:
        """Process received bytes, deliver complete requests, write the responses made meanwhile."""
        # hot: bench/micro_http2.py
        now_ns = _now_ns()
        if now_ns >= self._turns.look_ns and self._turns.is_over(now_ns):
            self._postpone(data)
            return
        flow = self._flow
        flow.arrival_ns = now_ns
        flow.is_dirty = True  # responses made meanwhile wait for the flush below
        try:
            has_unread = self._connection.receive_slice(data, now_ns)
            if has_unread:
                has_unread = self._receive_more_slices(now_ns)
        except Http2Error as error:
            if self._transport is not None:
                self._fail(self._transport, error, data)
            return
        if self.output.frames or flow.watching or flow.waiting or self._connection.is_draining:
            flow.flush()
        else:
            flow.is_dirty = False
        if has_unread or len(data) > _MUCH_BYTES:
            self._yield_if_long(now_ns, has_unread=has_unread)

    def _receive_more_slices(self, began_ns: int) -> bool:
        """Continue with received bytes for a limited time; return whether there is more. Raises Http2Error."""
        connection, has_unread = self._connection, True
        while has_unread:
            now_ns = _now_ns()
            is_slow = now_ns - began_ns > _LONG_NS
            connection.slow_down(is_slow)
            if is_slow:
                return True
            self._flow.arrival_ns = now_ns
            has_unread = connection.receive_slice(b"", now_ns)
        connection.slow_down(True)  # the next read begins with a small slice: 16 KiB hold 600 requests, 50 ms of work
        return False

    def eof_received(self) -> bool:
        """Close in turn with other connections; return False with TLS, where the transport has to close itself."""
        if self._transport is None or not self._transport.can_write_eof():
            return False
        if self._is_waiting and self._connection.has_unread:
            self._has_peer_ended = True
        else:
            self._server.closing.add(self._transport.close)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel every call; an idle connection is freed in turn with others."""
        self._transport = None
        self._flow.stop()
        self._server.unregister(self)
        if self._connection.streams:
            self._calls.close()
        else:
            self._server.closing.add(self._free)

    def _free(self) -> None:
        """Free the parts of a lost connection, and this object once the queue has called it."""
        self._calls.close()

    def pause_writing(self) -> None:
        """Pause output and reading: the peer does not read its responses."""
        self.output.is_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        """Resume output and reading."""
        self.output.is_paused = False
        self.output.pump()
        if self._connection.has_unread:
            self._yield_to_others()
        self._update_reading()
        if not self._flow.is_dirty:
            self._flow.flush()

    # --- reading in turn with other connections ---------------------------------------------------------------------

    def _yield_if_long(self, began_ns: int, *, has_unread: bool) -> None:
        """Yield after reads that together took long: libuv may read 32 times in a row."""
        self._busy_ns += _now_ns() - began_ns
        if has_unread or self._busy_ns > _LONG_NS:
            self._busy_ns = 0
            self._yield_to_others()

    def _yield_to_others(self) -> None:
        """Let other connections read before this one continues: libuv would read 32 times in a row."""
        self._pause_until_its_turn()
        if not self._is_waiting:
            self._is_waiting = True
            self._turns.yield_to_others(self._go_on)

    def _postpone(self, data: bytes) -> None:
        """Keep received bytes for a later turn. Few are kept without a pause, which takes two system calls."""
        waiting_bytes = self._connection.postpone(data)
        if waiting_bytes > _MUCH_BYTES:
            self._pause_until_its_turn()
        if not self._is_waiting:
            self._is_waiting = True
            self._turns.postpone(self._go_on, waiting_bytes)

    def _pause_until_its_turn(self) -> None:
        if not self._is_pausing:
            self._is_pausing = True
            self._update_reading()

    def _go_on(self) -> None:
        """Process the remaining received bytes, and resume reading when none is left."""
        self._is_waiting = self._is_pausing = False
        connection, transport = self._connection, self._transport
        if transport is None:
            return
        if connection.has_unread and not self.output.is_paused:
            # Before SETTINGS it takes back the bytes: a wrong preface shows what kind of peer this is.
            self.data_received(b"" if connection.is_set_up else connection.take_unread())
        if not self._is_pausing:
            self._update_reading()
        if self._has_peer_ended and not self._is_waiting:
            self._server.closing.add(transport.close)

    def _update_reading(self) -> None:
        transport = self._transport
        may_read = not self.output.is_paused and not self._is_pausing
        if transport is None or may_read == self._is_reading or transport.is_closing():
            return
        self._is_reading = may_read
        if may_read:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # --- called by the server ---------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Accept no more calls, end streaming calls, and close after the last response."""
        self._ends_streams = True
        self._connection.start_drain()
        self._drain_streams()
        if self._connection.is_set_up:
            self._flow.flush()

    def forget_plans(self) -> None:
        """Check access again for all requests, including headers that were accepted before."""
        self._connection.forget_memos()

    @property
    def idle_since_ns(self) -> int:
        """Time since which the connection has no call; 0 if it has one, or is closing."""
        has_ended = self._transport is None or self._flow.is_lingering or self._connection.is_draining
        is_busy = self._is_waiting or self._connection.streams
        return 0 if has_ended or is_busy else self._flow.arrival_ns or self._begin_ns

    def close_idle(self) -> None:
        """Close for a new connection; after GOAWAY no further call is served."""
        if self._transport is not None:
            transport = self._transport
            self._connection.finish_drain()
            self._end(transport)
            self._server.loop.call_later(LINGER_S, transport.abort)  # with TLS the peer has to close, too

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    # --- the end ----------------------------------------------------------------------------------------------------

    def _drain_streams(self) -> None:
        """End streaming calls; clients could keep them open without limit otherwise."""
        for call in self._calls.open_calls():
            if call.is_streaming and not call.is_local_closed:
                self._server.service.stream_draining(call)

    def _fail(self, transport: asyncio.Transport, error: Http2Error, data: bytes) -> None:
        """Close after a connection error in `data`."""
        if not self._connection.is_set_up and is_http1(data):
            self.output.take()
            transport.write(_HTTP1_RESPONSE)
        _log.info("HTTP/2 connection closed: %s", excerpt(str(error)))
        self._end(transport)

    def _end(self, transport: asyncio.Transport) -> None:
        """Write all output, and close."""
        self._flow.flush()
        self._flow.stop()
        transport.close()

    # --- time limits ------------------------------------------------------------------------------------------------

    def sweep(self, now_ns: int) -> None:
        """Enforce the time limits."""
        transport = self._transport
        if transport is None:
            return
        if transport.is_closing():
            self._check_linger(transport, now_ns)
            return
        if self._flow.is_lingering:
            self._sweep_lingering(transport, now_ns)
            return
        connection, clock = self._connection, self._clock
        if self._is_waiting or not self._is_reading or connection.windows.is_held:
            clock.excuse(now_ns)
        unsent_bytes = transport.get_write_buffer_size() and undelivered_bytes(transport)
        self._flow.recent_output.note(self.output.data_count, now_ns)
        if self._response_queue.is_too_slow(transport, unsent_bytes, now_ns):
            _log.info("HTTP/2 connection dropped: its client reads its responses too slowly")
            transport.abort()
        elif not (connection.is_set_up or self._is_waiting) and clock.setup_is_late(now_ns):
            connection.fail(Http2Code.SETTINGS_TIMEOUT, "no preface and SETTINGS in time")
            self._end(transport)
        elif clock.frame_is_late(connection.incomplete_since_ns, now_ns):
            connection.fail(Http2Code.ENHANCE_YOUR_CALM, "a frame was not completed in time")
            self._end(transport)
        elif self._check_keepalive_and_age(transport, now_ns):
            self._sweep_calls(now_ns)
            self.output.end_drops()
            self._flow.flush()

    def _check_linger(self, transport: asyncio.Transport, now_ns: int) -> None:
        if self._linger is None:
            self._linger = LingeringClose(self._server.limits.write_timeout_s)
        if self._linger.is_over(transport, now_ns):
            transport.abort()

    def _sweep_lingering(self, transport: asyncio.Transport, now_ns: int) -> None:
        undelivered = undelivered_bytes(transport)
        if self._response_queue.is_too_slow(transport, undelivered, now_ns):
            transport.abort()
        elif not undelivered:
            self._linger_sweeps += 1
            if self._linger_sweeps > 1:
                transport.close()

    def _check_keepalive_and_age(self, transport: asyncio.Transport, now_ns: int) -> bool:
        """Apply keepalive and age limits; return False if the connection was dropped."""
        streams = self._connection.streams
        # A peer may have replied although this side did not read, or has not looked at it yet.
        received_ns = self._flow.arrival_ns if self._is_reading and not self._is_waiting else now_ns
        step = self._keepalive.next_step(now_ns, received_ns, self.output.data_count, has_calls=bool(streams))
        if step is KeepaliveStep.PING:
            self._connection.ping()
        elif step is KeepaliveStep.RETIRE:
            self._connection.start_drain()
        elif step is not KeepaliveStep.NOTHING:
            why = (
                "no reply to a keepalive PING"
                if step is KeepaliveStep.DEAD
                else "the grace time after its maximum age is over"
            )
            _log.info("HTTP/2 connection with %d open calls dropped: %s", len(streams), why)
            transport.abort()
            return False
        return True

    def _sweep_calls(self, now_ns: int) -> None:
        streams = self._connection.streams
        for call in self._clock.slow_bodies(streams.values(), now_ns):
            received_bytes = 0 if call.request is None else call.request.received_bytes
            text = f"the request is too slow: {received_bytes} bytes of it have arrived"
            call.reject_request(GrpcError(GrpcStatus.DEADLINE_EXCEEDED, text))
        for call in self._clock.slow_readers(streams.values(), self.output, now_ns):
            call.abort()
        if self._ends_streams:
            self._drain_streams()
        if self._connection.is_draining:
            self._drain_sweeps += 1
            # a whole second: the peer has not acknowledged the PING after the first GOAWAY
            if self._drain_sweeps > 1:
                self._connection.finish_drain()


def _keep_alive(transport: asyncio.Transport) -> None:
    """Let the kernel detect vanished peers: idle connections would otherwise stay forever."""
    connected: socket.socket | None = transport.get_extra_info("socket")
    if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class Http2Server(Http2Endpoint[Http2Protocol]):
    """The connections of one endpoint. `protocol` is the factory for `loop.create_server`."""

    def protocol(self) -> Http2Protocol:
        """Return the protocol of a new connection."""
        return Http2Protocol(self)

    def announce_drain(self) -> None:
        """Do nothing yet: after GOAWAY clients would reconnect while this server still listens."""

    def drain(self) -> None:
        """End every connection: send GOAWAY now, close after the last response.

        The caller must have stopped listening.
        """
        self.is_draining = True
        for connection in list(self.connections):
            connection.drain()

    def finish(self) -> None:
        """Do nothing: `drain` has sent GOAWAY on idle connections as well."""

    def rule_changed(self) -> None:
        """Check access again for all further requests."""
        for connection in self.connections:
            connection.forget_plans()

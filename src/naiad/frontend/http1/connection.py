"""One HTTP/1.1 connection: its callbacks from the event loop, back pressure, and its close.

`request_reader` cuts requests from the received bytes, `waiting_requests` sends responses in request order. Data is
received into a buffer shared by all connections, because it is consumed before control returns to the loop.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from typing import cast

from naiad.core.errors import Rejection
from naiad.core.tensor import Buffer
from naiad.frontend.connections.linger import LINGER_S, LingeringClose, ReadRateCheck, undelivered_bytes
from naiad.frontend.http1.endpoint import Http1Endpoint, PhaseClock
from naiad.frontend.http1.request_reader import RejectedByHeadersError, RequestReader
from naiad.frontend.http1.waiting_requests import CONTINUE, Http1Context, Http1Responses
from naiad.protocol.error_body import error_body
from naiad.protocol.json.management.control import encode_error
from naiad.telemetry.metrics.response_metrics import rejection_of_status, rejections
from naiad.wire.header_fields import Headers
from naiad.wire.http1 import HttpError, RequestHead
from naiad.wire.preface import TLS_REFUSAL

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns

_DRAIN_IDLE_S = 0.5
"""At the end of a drain, connections idle for this long are closed; busier ones get `Connection: close` with their
response."""
_PROBE_S, _PROBE_REPLY_S = 0.05, 0.02
"""Delays for a half-closed peer without a response: after the first it is probed, after the second it is checked for
a reset."""
_JSON = (b"Content-Type", b"application/json")


class Http1Connection(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, endpoint: Http1Endpoint) -> None:
        self._endpoint = endpoint
        self._limits = endpoint.limits
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set before any other callback
        self._clock = PhaseClock()
        self._responses = Http1Responses(endpoint, self._clock, self)
        self._reader = RequestReader(endpoint, self._clock, self._responses, self._dispatch)
        self._backlog = b""
        """Bytes received while reading was being paused, or after the time of a turn was over."""
        self.is_reading = True
        self._turns = endpoint.reading_turns
        self._is_waiting = False
        """Other connections have their turn before this one continues; reading is paused."""
        self._has_probed = False
        """A request has arrived, at least in part."""
        self._response_queue: ReadRateCheck | None = None
        """Created when the peer does not read at once what was sent."""
        self._is_half_closed = False
        """The peer has closed its sending side: it waits for its responses, or it has disconnected."""
        self._is_cutting_off = False
        """No request follows, but the peer may still be sending: its request was rejected, or the server drains."""
        self._is_lingering = False
        """After a rejection, the input was read to its end."""
        self._has_received = False
        """The peer has sent something since the last check, while the connection lingers."""
        self._linger_end_ns = 0
        self._linger: LingeringClose | None = None
        """Set once the connection is closed, or lingers."""

    # --- callbacks of the transport -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or close it if there are too many."""
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = transport = cast("asyncio.Transport", transport)
        self._responses.transport = transport
        unsupported_reason = self._endpoint.register(self, transport)
        if unsupported_reason:
            self._reader.close()
            rejections.count(Rejection.OVERLOAD)
            body = encode_error(unsupported_reason)
            transport.write(self._endpoint.response_headers.complete(503, (_JSON,), len(body), b"close") + body)
            transport.close()
            self._endpoint.call_later(LINGER_S, transport.abort)  # with TLS the peer has to close, too
            return
        transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all requests of the connection."""
        self._endpoint.unregister(self)
        self._reader.detach()
        self._responses.disconnect()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to receive into: the rest of the current body, or the shared buffer."""
        body = self._reader.body
        return self._endpoint.receive_view if body is None else self._reader.receive_buffer(body)

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes."""
        reader = self._reader
        body = reader.body
        if body is None:
            if not reader.is_closed:
                now_ns = _now_ns()
                if now_ns >= self._turns.look_ns and self._turns.is_over(now_ns):
                    self._postpone(nbytes)
                    return
                self._consume(self._endpoint.receive_buffer, self._endpoint.receive_view, nbytes)
                responses = self._responses
                if responses.is_write_paused or len(responses.contexts) >= responses.max_contexts:
                    self.update_reading()
                elif nbytes == self._endpoint.receive_bytes and reader.body is None:
                    self._yield_to_others()
            else:
                self._has_received = True
            return
        try:
            is_complete = reader.body_received(body, nbytes)
        except HttpError as error:
            self._reject(error)
        else:
            if is_complete:
                self.update_reading()

    def eof_received(self) -> bool:
        """Close when the peer closes; return True to keep the connection for a last response."""
        if self._responses.contexts:
            return self._half_close()
        error = self._reader.cut_short()
        if error is None:
            return self._close_soon()
        self._reject(error, lingers=False)
        # TLS has no half-closed connections: close_notify ends both directions.
        return self._transport.can_write_eof()

    def _close_soon(self) -> bool:
        """Close in turn with other connections; return False with TLS, where the transport has to close itself."""
        if not self._transport.can_write_eof():
            return False
        self._endpoint.closing.add(self._transport.close)
        return True

    def pause_writing(self) -> None:
        """Stop reading requests: the peer does not read its responses."""
        self._set_write_paused(True)

    def resume_writing(self) -> None:
        """Resume: the peer has read most of the unsent bytes."""
        self._set_write_paused(False)

    def _set_write_paused(self, is_paused: bool) -> None:
        self._clock.restart()
        self._responses.set_write_paused(is_paused)
        self.update_reading()

    # --- requests -----------------------------------------------------------------------------------------------

    def _consume(self, data: "bytes | bytearray", view: memoryview, end: int) -> None:
        """Cut requests from `data[:end]`; keep the rest in the backlog if reading is paused."""
        # hot: bench/micro_http1.py
        reader, responses = self._reader, self._responses
        responses.is_gathering = True
        position = 0
        try:
            while position < end and not reader.is_closed:
                if responses.is_write_paused or len(responses.contexts) >= responses.max_contexts:
                    self._backlog = bytes(view[position:end])
                    break
                position = reader.take(data, view, position, end)
        except HttpError as error:
            if error.message == TLS_REFUSAL:  # such a client cannot read the response
                _log.info("HTTP connection closed: %s", TLS_REFUSAL)
            self._reject(error)
        except RejectedByHeadersError as rejection:
            self._respond_unread(rejection.head, *rejection.response)
        responses.is_gathering = False
        if responses.output_buffers:
            responses.flush()

    def _dispatch(self, head: RequestHead, body: Buffer, reserved_bytes: int) -> None:
        """Pass a complete request to its route."""
        # hot: bench/micro_http1.py
        responses = self._responses
        context = Http1Context(responses, head, body, _now_ns())
        reader = self._reader
        if reader.first_byte_ns:
            context.first_byte_ns, reader.first_byte_ns = reader.first_byte_ns, 0
        if reserved_bytes:
            context.reserved_bytes = reserved_bytes
        responses.contexts.append(context)
        self._clock.start_ns = 0
        self._has_probed = True
        if not head.keep_alive:
            reader.is_closed = True
        try:
            self._endpoint.handle(context)
        except Exception:
            _log.exception("the route of %s %s failed", context.method, context.path)
            context.respond(500, (_JSON,), (error_body(head.path, 500, "internal error; see the server log"),))

    def _reject(self, error: HttpError, *, lingers: bool = True) -> None:
        """Reject an invalid request, after the responses before it, and end the connection."""
        rejections.count(rejection_of_status(error.status))
        head = self._reader.head or error.head or RequestHead("", "/", {})
        self._endpoint.note_invalid(head.method, head.path, error.status, error.message, self._responses)
        headers = (_JSON, *error.headers)
        self._respond_unread(
            head, error.status, headers, (error_body(head.path, error.status, error.message),), lingers=lingers
        )

    def _respond_unread(
        self, head: RequestHead, status: int, headers: Headers, parts: Sequence[Buffer], *, lingers: bool = True
    ) -> None:
        """Respond to a request that is not read to its end, and end the connection."""
        self._reader.close()
        self._is_cutting_off = lingers
        context = Http1Context(self._responses, head, b"", 0)
        context.keep_alive = False
        self._responses.contexts.append(context)
        self._clock.restart()
        context.respond(status, headers, parts)

    # --- called by the responses ------------------------------------------------------------------------------------

    def expect_no_more(self) -> None:
        """Expect the last requests: the server drains, but a pipelining peer may have sent a part of the next one."""
        self._reader.close()
        self._is_cutting_off = True

    def end(self) -> None:
        """Close, or linger while a rejected peer may still be sending: the last response is sent."""
        if self._responses.output_buffers:
            self._responses.flush()
        if self._is_cutting_off and self._transport.can_write_eof():
            # Closing with unread input would reset the connection and discard the response at the peer (RFC 9112
            # 9.6).
            self._is_lingering = True
            self._transport.write_eof()
            self._clock.restart()
        else:
            self._transport.close()
        self.update_reading()

    def abort(self) -> None:
        """Drop the connection."""
        self._transport.abort()

    # --- half-closed peers ------------------------------------------------------------------------------------------

    def _half_close(self) -> bool:
        """Keep the connection for a peer that only waits for responses; return False if the peer counts as
        disconnected.

        A peer that has closed its socket looks the same until something is sent to it. After a streamed response has
        begun, only the model's output may be sent, so its client must keep its side open (as in Triton). TLS has no
        half-closed connections.
        """
        contexts = self._responses.contexts
        if contexts[0].has_begun or not self._transport.can_write_eof():
            return False
        self._is_half_closed = True
        self._is_cutting_off = False
        contexts[-1].keep_alive = False
        self._reader.close()
        self.is_reading = False
        self._endpoint.call_later(_PROBE_S, self._probe)
        return True

    def _probe(self) -> None:
        """Send an interim response; a closed socket replies with a reset (RFC 9293 3.10.7)."""
        contexts = self._responses.contexts
        first = contexts[0] if contexts else None
        # RFC 9110 15.2: no interim response to HTTP/1.0, nor after the final response has begun.
        if first is not None and not (first.is_http_1_0 or first.has_begun or self._transport.is_closing()):
            self._responses.send([CONTINUE])
            self._endpoint.call_later(_PROBE_REPLY_S, self._drop_if_reset)

    def _drop_if_reset(self) -> None:
        """Drop the connection if its peer has disconnected."""
        # The loop does not watch a socket after its end of file.
        connected: socket.socket | None = self._transport.get_extra_info("socket")
        if self._transport.is_closing() or connected is None:
            return
        if connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()

    # --- back pressure ------------------------------------------------------------------------------------------

    def _yield_to_others(self) -> None:
        """Let other connections read first when a peer fills the buffer: libuv would read 32 times in a row."""
        if self._pause_until_its_turn():
            self._turns.yield_to_others(self._go_on)

    def _postpone(self, received_bytes: int) -> None:
        """Keep received bytes for a later turn."""
        # Without the pause the end of the peer, and further bytes, could arrive before they are processed.
        self._backlog += bytes(self._endpoint.receive_view[:received_bytes])
        if self._pause_until_its_turn():
            self._turns.postpone(self._go_on, received_bytes)

    def _pause_until_its_turn(self) -> bool:
        """Return whether the connection has to continue in a later turn."""
        if self._is_waiting or not self.is_reading or self._transport.is_closing():
            return False
        self._is_waiting = True
        self.is_reading = False
        self._transport.pause_reading()
        return True

    def _go_on(self) -> None:
        self._is_waiting = False
        self.update_reading()

    def update_reading(self) -> None:
        """Pause or resume reading; process the backlog first."""
        is_held = self._responses.is_gathering or self._is_half_closed or self._is_waiting
        if is_held or self._transport.is_closing():
            return
        while self._backlog and not self._reader.is_closed and self._responses.has_room():
            backlog, self._backlog = self._backlog, b""
            self._consume(backlog, memoryview(backlog), len(backlog))
        may_read = self._responses.has_room() or self._is_lingering
        if may_read != self.is_reading:
            self.is_reading = may_read
            if may_read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # --- clocks -------------------------------------------------------------------------------------------------

    def sweep(self, now_ns: int) -> None:
        """Enforce the time limit of the current phase."""
        if self._has_ended:
            self._check_close(now_ns)
            return
        if self._is_half_closed:
            self._drop_if_reset()
        if self._is_too_slow_a_reader(now_ns):
            _log.info("HTTP connection dropped: its client reads its responses too slowly")
            self.abort()
            return
        elapsed_s = self._clock.elapsed_s(now_ns)
        if self._responses.is_write_paused or not self.is_reading:
            self._clock.restart()
            self._reader.excuse(now_ns)
        else:
            self._check_read_clock(elapsed_s or 0.0, now_ns)

    @property
    def _has_ended(self) -> bool:
        """Whether the connection lingers, or is closed and the peer is reading the rest."""
        return self._is_lingering or self._transport.is_closing()

    def _check_close(self, now_ns: int) -> None:
        """Drop a peer that has used up its time after the close has begun."""
        limits = self._limits
        if not self._linger_end_ns:
            self._linger_end_ns = now_ns + int(limits.linger_most_s * 1e9)
        if self._linger is None or (self._has_received and now_ns < self._linger_end_ns):
            self._has_received = False
            self._linger = LingeringClose(limits.send_timeout_s)
        limit_s = limits.linger_s if self._is_lingering else LINGER_S
        if self._linger.is_over(self._transport, now_ns, limit_s):
            self._transport.abort()

    def _check_read_clock(self, elapsed_s: float, now_ns: int) -> None:
        if self._reader.is_amid_request:
            error = self._reader.overdue(elapsed_s, now_ns)
            if error is not None:
                self._reject(error)
        elif not self._responses.contexts and elapsed_s >= self._idle_limit_s():
            self._transport.close()

    def _idle_limit_s(self) -> float:
        if self._endpoint.is_finishing:
            return _DRAIN_IDLE_S
        limits = self._limits
        return limits.idle_timeout_s if self._has_probed else min(limits.idle_timeout_s, limits.first_byte_timeout_s)

    def _is_too_slow_a_reader(self, now_ns: int) -> bool:
        if not self._transport.get_write_buffer_size():
            self._response_queue = None
            return False
        if self._response_queue is None:
            self._response_queue = ReadRateCheck(self._limits.send_timeout_s)
        return self._response_queue.is_too_slow(self._transport, undelivered_bytes(self._transport), now_ns)

    # --- connection limit -------------------------------------------------------------------------------------------

    @property
    def idle_since_ns(self) -> int:
        """Time since which the connection is idle; 0 if it is busy, or was until a moment ago."""
        is_busy = self._responses.contexts or self._reader.is_amid_request or self._is_waiting or self._has_ended
        return 0 if is_busy or self._transport.get_write_buffer_size() else self._clock.start_ns

    def close_idle(self) -> None:
        """Close for a new connection."""
        self._reader.close()
        self._transport.close()
        self._endpoint.call_later(LINGER_S, self._transport.abort)  # with TLS the peer has to close, too


class Http1Server(Http1Endpoint):
    """The connections of one endpoint. `protocol` is the factory for `loop.create_server`."""

    def protocol(self) -> Http1Connection:
        """Return the protocol of a new connection."""
        return Http1Connection(self)

    def announce_drain(self) -> None:
        """Add `Connection: close` to the responses of requests in flight."""
        self.is_draining = True
        self.last_arrival_ns = time.monotonic_ns()

    def drain(self) -> None:
        """Close busy connections after their last response, with `Connection: close`; keep serving idle ones until
        `finish`.

        The caller must have stopped listening.
        """
        self.announce_drain()

    def finish(self) -> None:
        """Close all connections: idle ones soon, busy ones after their last response. Follows `drain`."""
        self.is_finishing = True
        self.sweep(time.monotonic_ns())

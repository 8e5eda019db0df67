"""One HTTP/1.1 connection: what the loop tells it, and when it reads.

Its parts have rooms of their own: `http1_reading` takes requests out of what has come, `http1_answering` has answers
leave in the order of the requests, `http1_ending` sees to it that the connection ends. What comes is read into a
buffer that all connections share, because data is taken out of it before control returns to the loop.

The end of an HTTP/1.1 connection: its peer sends no more, was refused, or takes what is left of its answers.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from typing import cast

from naiad.core.tensor import Buffer
from naiad.frontend.http1.endpoint import Http1Endpoint, PhaseClock
from naiad.frontend.http1.exchange import CONTINUE, Http1Context
from naiad.frontend.http1.reading import RejectedByHeadersError, RequestReader
from naiad.frontend.http1.responses import Http1Responses
from naiad.frontend.linger import LINGER_S, LingeringClose, ResponseQueue, undelivered_bytes
from naiad.protocol.json.control import encode_error
from naiad.wire.header_fields import Headers
from naiad.wire.http1 import HttpError, RequestHead
from naiad.wire.preface import TLS_REFUSAL

_PROBE_S, _PROBE_ANSWER_S = 0.05, 0.02
"""Who sends no more and is not answered within the first is asked whether it listens; after the second we look."""


class Http1Close:
    """What a connection knows of its end."""

    __slots__ = (
        "_answers",
        "_clock",
        "_endpoint",
        "_linger",
        "_linger_end_ns",
        "has_heard",
        "is_cutting_off",
        "is_half_closed",
        "is_lingering",
        "transport",
    )

    def __init__(self, endpoint: Http1Endpoint, clock: PhaseClock, answers: Http1Responses) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._answers = answers
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set when the connection is made
        self.is_cutting_off = False
        """No request follows, and the peer may still be sending: its request was refused, or the server drains."""
        self.is_lingering = False
        """Read to the end, after a refusal."""
        self.has_heard = False
        """While it lingers, the peer has sent something since the last check."""
        self._linger_end_ns = 0
        self.is_half_closed = False
        """The peer sends no more, and waits for its answers or has gone."""
        self._linger: LingeringClose | None = None
        """Once the connection is closed, or lingers."""

    # --- the peer sends no more -------------------------------------------------------------------------------------

    def half_close(self) -> bool:
        """Go on for a peer that waits for answers and sends no more; false when it counts as gone.

        One that has closed its socket looks the same until something is sent to it. Once a streamed answer has begun
        nothing can be sent but what the model makes, so that its client has to stay (Triton: as well). TLS has no
        half-closed connections.
        """
        exchanges = self._answers.exchanges
        if exchanges[0].has_begun or not self.transport.can_write_eof():
            return False
        self.is_half_closed = True
        self.is_cutting_off = False
        exchanges[-1].keep_alive = False
        self._endpoint.call_later(_PROBE_S, self._probe)
        return True

    def _probe(self) -> None:
        """Send an interim response, which a socket that was closed answers with a reset (RFC 9293 3.10.7)."""
        exchanges = self._answers.exchanges
        first = exchanges[0] if exchanges else None
        # RFC 9110 15.2: never one of those to HTTP/1.0, nor after the beginning of the final one.
        if first is not None and not (first.is_http_1_0 or first.has_begun or self.transport.is_closing()):
            self._answers.send([CONTINUE])
            self._endpoint.call_later(_PROBE_ANSWER_S, self.drop_if_reset)

    def drop_if_reset(self) -> None:
        """Drop the connection when its peer has gone."""
        # The loop does not look at a socket that is read to its end.
        connected: socket.socket | None = self.transport.get_extra_info("socket")
        if self.transport.is_closing() or connected is None:
            return
        if connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()

    # --- the last answer has been written ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Close, or linger while the refused peer may still be sending."""
        if self.is_cutting_off and self.transport.can_write_eof():
            # Closing with unread input would reset the connection and take the answer from the peer (RFC 9112 9.6).
            self.is_lingering = True
            self.transport.write_eof()
            self._clock.restart()
        else:
            self.transport.close()

    @property
    def has_begun(self) -> bool:
        """Whether the connection lingers, or is closed and its peer takes what is left."""
        return self.is_lingering or self.transport.is_closing()

    def check(self, now_ns: int) -> None:
        """Drop a peer that has had its time, once the end has begun."""
        limits = self._endpoint.limits
        if not self._linger_end_ns:
            self._linger_end_ns = now_ns + int(limits.linger_most_s * 1e9)
        if self._linger is None or (self.has_heard and now_ns < self._linger_end_ns):
            self.has_heard = False
            self._linger = LingeringClose(limits.send_timeout_s)
        limit_s = limits.linger_s if self.is_lingering else LINGER_S
        if self._linger.is_over(self.transport, now_ns, limit_s):
            self.transport.abort()


_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns

_DRAIN_IDLE_S = 0.5
"""At the end of a drain, a connection that was idle this long is closed; a busier one is told to with its answer."""
_JSON = (b"Content-Type", b"application/json")


class Http1Connection(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, endpoint: Http1Endpoint) -> None:
        self._endpoint = endpoint
        self._limits = endpoint.limits
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set before any other callback
        self._clock = PhaseClock()
        self._answers = Http1Responses(endpoint, self._clock, self)
        self._reader = RequestReader(endpoint, self._clock, self._answers, self._dispatch)
        self._ending = Http1Close(endpoint, self._clock, self._answers)
        self._backlog = b""
        """Received while reading was about to pause."""
        self.is_reading = True
        self._has_asked = False
        """A request has come, or the beginning of one."""
        self._response_queue: ResponseQueue | None = None
        """Once the peer has not taken at once what it was sent."""

    # --- callbacks of the transport -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = transport = cast("asyncio.Transport", transport)
        self._answers.transport = self._ending.transport = transport
        unsupported_reason = self._endpoint.register(self, transport)
        if unsupported_reason:
            self._reader.close()
            body = encode_error(unsupported_reason)
            transport.write(self._endpoint.answer_heads.complete(503, (_JSON,), len(body), b"close") + body)
            transport.close()
            self._endpoint.call_later(LINGER_S, transport.abort)  # over TLS the peer has to close, too
            return
        transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every request that nobody waits for its answer."""
        self._endpoint.unregister(self)
        self._reader.lose()
        self._answers.disconnect()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to receive: the rest of the current body, or the shared buffer."""
        body = self._reader.body
        return self._endpoint.receive_view if body is None else self._reader.room(body)

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was received."""
        reader = self._reader
        body = reader.body
        if body is None:
            if not reader.is_closed:
                self._consume(self._endpoint.receive_buffer, nbytes)
                if not self._answers.has_room():
                    self.update_reading()
                elif nbytes == self._endpoint.receive_bytes and reader.body is None:
                    self._give_way()
            else:
                self._ending.has_heard = True
            return
        try:
            is_complete = reader.body_received(body, nbytes)
        except HttpError as error:
            self._refuse(error)
        else:
            if is_complete:
                self.update_reading()

    def eof_received(self) -> bool:
        """Close when the peer closes; true keeps the connection open for the answer to a cut-off request."""
        if self._answers.exchanges:
            if not self._ending.half_close():
                return False
            self._reader.close()
            self.is_reading = False
            return True
        error = self._reader.cut_short()
        if error is None:
            return self._close_soon()
        self._refuse(error, lingers=False)
        # TLS has no half-closed connections: close_notify ends both directions.
        return self._transport.can_write_eof()

    def _close_soon(self) -> bool:
        """Close in turn with other connections; false where the transport has to close itself: with TLS."""
        if not self._transport.can_write_eof():
            return False
        self._endpoint.closing.add(self._transport.close)
        return True

    def pause_writing(self) -> None:
        """The peer does not take its answers: read no more from it."""
        self._set_write_paused(True)

    def resume_writing(self) -> None:
        """The peer has taken most of what was unsent."""
        self._set_write_paused(False)

    def _set_write_paused(self, is_paused: bool) -> None:
        self._clock.restart()
        self._answers.set_write_paused(is_paused)
        self.update_reading()

    # --- requests -----------------------------------------------------------------------------------------------

    def _consume(self, data: "bytes | bytearray", end: int) -> None:
        """Take requests out of `data[:end]`; what may not be looked at yet goes to the backlog."""
        # hot: bench/micro_http1.py
        reader, answers = self._reader, self._answers
        answers.is_gathering = True
        position = 0
        try:
            with memoryview(data) as view:
                while position < end and not reader.is_closed:
                    if not answers.has_room():
                        self._backlog = bytes(view[position:end])
                        break
                    position = reader.take(data, view, position, end)
        except HttpError as error:
            if error.message == TLS_REFUSAL:  # such a client cannot read the answer
                _log.info("HTTP connection closed: %s", TLS_REFUSAL)
            self._refuse(error)
        except RejectedByHeadersError as refusal:
            self._answer_unread(refusal.head, *refusal.answer)
        answers.is_gathering = False
        if answers.response_sender:
            answers.flush()

    def _dispatch(self, head: RequestHead, body: Buffer, reserved_bytes: int) -> None:
        """Hand a complete request over."""
        # hot: bench/micro_http1.py
        answers = self._answers
        exchange = Http1Context(answers, head, body, _now_ns())
        if reserved_bytes:
            exchange.reserved_bytes = reserved_bytes
        answers.exchanges.append(exchange)
        self._clock.start_ns = 0
        self._has_asked = True
        if not head.keep_alive:
            self._reader.is_closed = True
        try:
            self._endpoint.handle(exchange)
        except Exception:
            _log.exception("the route of %s %s failed", exchange.method, exchange.path)
            exchange.respond(500, (_JSON,), (encode_error("internal error; the log tells more"),))

    def _refuse(self, error: HttpError, *, lingers: bool = True) -> None:
        """Answer a request that cannot be handed over, after those before it, and end the connection."""
        head = self._reader.head or RequestHead("", "/", {})
        headers = (_JSON, *error.headers)
        self._answer_unread(head, error.status, headers, (encode_error(error.message),), lingers=lingers)

    def _answer_unread(
        self, head: RequestHead, status: int, headers: Headers, parts: Sequence[Buffer], *, lingers: bool = True
    ) -> None:
        """Answer a request that is not read to its end, and end the connection."""
        self._reader.close()
        self._ending.is_cutting_off = lingers
        exchange = Http1Context(self._answers, head, b"", 0)
        exchange.keep_alive = False
        self._answers.exchanges.append(exchange)
        self._clock.restart()
        exchange.respond(status, headers, parts)

    # --- what the answers ask for -------------------------------------------------------------------------------

    def expect_no_more(self) -> None:
        """The server drains, which a peer does not know that pipelines: some of its next request may have come."""
        self._reader.close()
        self._ending.is_cutting_off = True

    def end(self) -> None:
        """The last answer has left: close, or linger."""
        if self._answers.response_sender:
            self._answers.flush()
        self._ending.begin()
        self.update_reading()

    def abort(self) -> None:
        """Drop the connection."""
        self._transport.abort()

    # --- back pressure ------------------------------------------------------------------------------------------

    def _give_way(self) -> None:
        """Have others read before more is read from a peer that fills the buffer: libuv would go on 32 times."""
        if self.is_reading and not self._transport.is_closing():
            self.is_reading = False
            self._transport.pause_reading()
            self._endpoint.call_later(0.0, self.update_reading)

    def update_reading(self) -> None:
        """Pause or resume reading, and take up the backlog first."""
        if self._answers.is_gathering or self._ending.is_half_closed or self._transport.is_closing():
            return
        while self._backlog and not self._reader.is_closed and self._answers.has_room():
            backlog, self._backlog = self._backlog, b""
            self._consume(backlog, len(backlog))
        may_read = self._answers.has_room() or self._ending.is_lingering
        if may_read != self.is_reading:
            self.is_reading = may_read
            if may_read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # --- clocks -------------------------------------------------------------------------------------------------

    def restart_clock(self) -> None:
        """A new phase begins."""
        self._clock.restart()

    def check_clock(self, now_ns: int) -> None:
        """Act when the current phase has lasted too long."""
        if self._ending.has_begun:
            self._ending.check(now_ns)
            return
        if self._ending.is_half_closed:
            self._ending.drop_if_reset()
        if self._is_too_slow_a_reader(now_ns):
            _log.info("HTTP connection dropped: its client takes its answers too slowly")
            self.abort()
            return
        elapsed_s = self._clock.elapsed_s(now_ns)
        if self._answers.is_write_paused or not self.is_reading:
            self._clock.restart()
            self._reader.excuse(now_ns)
        else:
            self._check_read_clock(elapsed_s or 0.0, now_ns)

    def _check_read_clock(self, elapsed_s: float, now_ns: int) -> None:
        if self._reader.is_amid_request:
            error = self._reader.overdue(elapsed_s, now_ns)
            if error is not None:
                self._refuse(error)
        elif not self._answers.exchanges and elapsed_s >= self._idle_limit_s():
            self._transport.close()

    def _idle_limit_s(self) -> float:
        if self._endpoint.is_finishing:
            return _DRAIN_IDLE_S
        limits = self._limits
        return limits.idle_timeout_s if self._has_asked else min(limits.idle_timeout_s, limits.first_byte_timeout_s)

    def _is_too_slow_a_reader(self, now_ns: int) -> bool:
        if not self._transport.get_write_buffer_size():
            self._response_queue = None
            return False
        if self._response_queue is None:
            self._response_queue = ResponseQueue(self._limits.send_timeout_s)
        return self._response_queue.is_too_slow(self._transport, undelivered_bytes(self._transport), now_ns)

    # --- too many connections -----------------------------------------------------------------------------------

    @property
    def idle_since_ns(self) -> int:
        """Since when the connection has had nothing to do; 0 when it has, or has just had."""
        is_busy = self._answers.exchanges or self._reader.is_amid_request or self._ending.has_begun
        return 0 if is_busy or self._transport.get_write_buffer_size() else self._clock.start_ns

    def make_way(self) -> None:
        """Close for a new connection."""
        self._reader.close()
        self._transport.close()
        self._endpoint.call_later(LINGER_S, self._transport.abort)  # over TLS the peer has to close, too

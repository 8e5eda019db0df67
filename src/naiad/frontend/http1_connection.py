"""One HTTP/1.1 connection: reads requests, hands them over, writes answers in the order of the requests.

A connection is in one phase at a time: between requests, within a head, within a body (of known length or chunked),
or lingering after a refusal. Reading goes into a buffer that all connections share, because data is taken out of it
before control returns to the loop; a body of known length is read straight into its own buffer once its head is
known.
"""

import asyncio
import logging
import socket
import time
from collections import deque
from typing import cast

from naiad.core.tensor import Buffer
from naiad.frontend.farewell import FAREWELL_S, Farewell, undelivered_bytes
from naiad.frontend.http1_answer import CONTINUE
from naiad.frontend.http1_body import ChunkedDecoder, allocate_body
from naiad.frontend.http1_endpoint import Http1Endpoint
from naiad.frontend.http1_exchange import Http1Exchange
from naiad.frontend.http1_head import HeadParser, HttpError, RequestHead
from naiad.protocol.control_json import encode_error
from naiad.wire.preface import TLS_REFUSAL

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns

_ALIGNED_BODY_BYTES = 4096
"""Bodies with tensors above this size are aligned even when they arrive in one piece."""
_DRAIN_IDLE_S = 1.0
"""While draining, a connection that was idle this long is closed; a busier one is told to with its next answer."""
_PROBE_S, _PROBE_ANSWER_S = 0.05, 0.02
"""Who sends no more and is not answered within the first is asked whether it listens; after the second we look."""
_JSON = (b"Content-Type", b"application/json")


def _skip_empty_lines(view: memoryview, position: int, end: int) -> int:
    """RFC 9112 2.2: ignore empty lines before a request."""
    if view[position] not in b"\r\n":
        return position
    return end - len(bytes(view[position:end]).lstrip(b"\r\n"))


class Http1Connection(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, endpoint: Http1Endpoint) -> None:
        self._endpoint = endpoint
        self._limits = endpoint.limits
        self.answer_heads = endpoint.answer_heads
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set before any other callback
        self._exchanges: deque[Http1Exchange] = deque()
        self._head: RequestHead | None = None
        """The head whose body is being received."""
        self._body: memoryview | None = None
        self._filled = 0
        self._chunks: ChunkedDecoder | None = None
        self._head_parser: HeadParser | None = None
        self._head_text = bytearray()
        """The beginning of a head that has not arrived completely."""
        self._backlog = b""
        """Received while reading was about to pause."""
        self._is_consuming = False
        self._outbox: list[Buffer] = []
        """Answers that were given while input is being consumed; written together at its end."""
        self._owes_continue = False
        self._ignores_input = False
        """The last request of the connection has arrived."""
        self._is_cutting_off = False
        """...and the peer may still be sending: its request was refused, or the server drains."""
        self._is_lingering = False
        self._is_half_closed = False
        """The peer sends no more, and waits for its answers or has gone."""
        self._is_reading = True
        self._is_write_paused = False
        self._clock_start_ns = 0
        self._unsent_bytes = 0
        self._farewell: Farewell | None = None
        """Once the connection is closed, or lingers."""

    # --- callbacks of the transport -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = transport = cast("asyncio.Transport", transport)
        if not self._endpoint.register(self):
            self._ignores_input = True
            body = encode_error(f"too many connections; the limit is {self._limits.connections}")
            transport.write(self.answer_heads.complete(503, (_JSON,), len(body), b"close") + body)
            transport.close()
            self._endpoint.call_later(FAREWELL_S, transport.abort)  # over TLS the peer has to close, too
            return
        transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every request that nobody waits for its answer."""
        self._endpoint.unregister(self)
        self._ignores_input = True
        self._body = self._chunks = self._head_parser = None
        exchanges, self._exchanges = self._exchanges, deque()
        for exchange in exchanges:
            exchange.disconnect()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to receive: the rest of the current body, or the shared buffer."""
        body = self._body
        return self._endpoint.receive_view if body is None else body[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was received."""
        body = self._body
        if body is None:
            if not self._ignores_input:
                self._consume(self._endpoint.receive_buffer, nbytes)
                if not self._may_read():
                    self._update_reading()
                elif nbytes == self._endpoint.receive_bytes and self._body is None:
                    self._give_way()
            return
        self._filled += nbytes
        if self._filled == len(body):
            self._finish_body(body)

    def eof_received(self) -> bool:
        """Close when the peer closes; true keeps the connection open for the answer to a cut-off request."""
        if self._exchanges:
            return self._half_close()
        if self._head_parser is None and self._head is None:
            return False
        received = len(self._head_text) if self._head is None else self._received_bytes()
        part = "head" if self._head is None else "body"
        error = HttpError(400, f"the request's {part} ended after {received} bytes, before it was complete")
        self._refuse(error, lingers=False)
        # TLS has no half-closed connections: close_notify ends both directions.
        return self._transport.can_write_eof()

    def _half_close(self) -> bool:
        """Go on for a peer that waits for answers and sends no more; false when it counts as gone.

        One that has closed its socket looks the same until something is sent to it. Once a streamed answer has begun
        nothing can be sent but what the model makes, so that its client has to stay (Triton: as well). TLS has no
        half-closed connections.
        """
        if self._exchanges[0].has_begun or not self._transport.can_write_eof():
            return False
        self._head = self._body = self._chunks = self._head_parser = None
        self._ignores_input = self._is_half_closed = True
        self._is_cutting_off = self._is_reading = False
        self._exchanges[-1].keep_alive = False
        self._endpoint.call_later(_PROBE_S, self._probe)
        return True

    def _probe(self) -> None:
        """Send an interim response, which a socket that was closed answers with a reset (RFC 9293 3.10.7)."""
        first = self._exchanges[0] if self._exchanges else None
        # RFC 9110 15.2: never one of those to HTTP/1.0, nor after the beginning of the final one.
        if first is not None and not (first.is_http_1_0 or first.has_begun or self._transport.is_closing()):
            self._send([CONTINUE])
            self._endpoint.call_later(_PROBE_ANSWER_S, self._drop_if_reset)

    def _drop_if_reset(self) -> None:
        # The loop does not look at a socket that is read to its end.
        connected: socket.socket | None = self._transport.get_extra_info("socket")
        if self._transport.is_closing() or connected is None:
            return
        if connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.abort()

    def pause_writing(self) -> None:
        """The peer does not take its answers: read no more from it."""
        self._is_write_paused = True
        self._unsent_bytes = undelivered_bytes(self._transport)
        self.restart_clock()
        if self._exchanges:
            self._exchanges[0].set_congested(True)
        self._update_reading()

    def resume_writing(self) -> None:
        """The peer has taken most of what was unsent."""
        self._is_write_paused = False
        self.restart_clock()
        if self._exchanges:
            self._exchanges[0].set_congested(False)
        self._update_reading()

    # --- receiving ----------------------------------------------------------------------------------------------

    def _consume(self, data: "bytes | bytearray", end: int) -> None:
        """Take requests out of `data[:end]`; what may not be looked at yet goes to the backlog."""
        self._is_consuming = True
        position = 0
        try:
            with memoryview(data) as view:
                while position < end and not self._ignores_input:
                    if not self._may_read():
                        self._backlog = bytes(view[position:end])
                        break
                    position = self._consume_some(data, view, position, end)
        except HttpError as error:
            if error.message == TLS_REFUSAL:  # such a client cannot read the answer
                _log.info("HTTP connection closed: %s", TLS_REFUSAL)
            self._refuse(error)
        self._is_consuming = False
        if self._outbox:
            self._write(self._outbox)
            self._outbox = []

    def _consume_some(self, data: "bytes | bytearray", view: memoryview, position: int, end: int) -> int:
        """Take a head, a head and its whole body, or a piece of a body; return the position behind it."""
        if self._body is not None:
            return position + self._fill_body(view[position:end])
        if self._chunks is not None:
            position += self._chunks.feed(view[position:end])
            if self._chunks.is_done:
                chunked_body, self._chunks = self._chunks.body, None
                self._dispatch(self._take_head(), bytes(chunked_body))
            return position
        # hot: bench/micro_http1.py
        at = data.find(b"\r\n\r\n", position, end) + 4
        if at < 4 or self._head_parser is not None:
            return self._consume_partial_head(view, position, end)
        text = bytes(view[position:at])
        head = self._endpoint.heads.get(text)
        if head is None:
            if text[:1] in (b"\r", b"\n"):
                return _skip_empty_lines(view, position, end)
            if len(text) > self._limits.head_bytes:
                raise self._head_too_long(text)
            head = self._endpoint.heads.parse(text)
        length = head.content_length
        if length > end - at or head.is_chunked:
            self._begin_body(head, view[at:end])
            return at
        if length > _ALIGNED_BODY_BYTES and head.binary_offset:
            body = allocate_body(length, head.binary_offset)
            body[:] = view[at : at + length]
            self._dispatch(head, body.toreadonly())
        else:
            self._dispatch(head, bytes(view[at : at + length]))
        return at + length

    def _consume_partial_head(self, view: memoryview, position: int, end: int) -> int:
        """Take a piece of a head that arrives in several; llhttp sees it at once, so nonsense is refused at once."""
        if self._head_parser is None:
            position = _skip_empty_lines(view, position, end)
            if position == end:
                return end
            self._head_parser = HeadParser(self._limits)
            self.restart_clock()
        text = self._head_text
        known = len(text)
        text += view[position:end]
        at = text.find(b"\r\n\r\n", max(0, known - 3)) + 4
        if at >= 4:
            del text[at:]
        if len(text) > self._limits.head_bytes:
            raise self._head_too_long(text)
        self._head_parser.feed(bytes(text[known:]))
        if at < 4:
            return end
        head = self._head_parser.finish()
        self._head_parser = None
        self._head_text = bytearray()
        position += at - known
        if head.content_length or head.is_chunked:
            self._begin_body(head, view[position:end])
        else:
            self._dispatch(head, b"")
        return position

    def _head_too_long(self, text: "bytes | bytearray") -> HttpError:
        limits = self._limits
        if b"\r\n" not in text[: limits.target_bytes]:
            return HttpError(414, f"request target is longer than {limits.target_bytes} bytes")
        return HttpError(431, f"request head is longer than {limits.head_bytes} bytes")

    def _begin_body(self, head: RequestHead, arrived: memoryview) -> None:
        """Prepare for a body of which less than all has arrived; takes nothing of it."""
        if head.is_chunked:
            self._chunks = ChunkedDecoder(self._limits)
        else:
            self._body = allocate_body(head.content_length, head.binary_offset)
            self._filled = 0
        self._head = head
        self.restart_clock()
        if head.expects_continue and not len(arrived):
            # RFC 9110 10.1.1; after the answers to earlier requests, which the peer must get first.
            self._owes_continue = True
            self._send_continue()

    def _send_continue(self) -> None:
        if self._owes_continue and not self._exchanges:
            self._owes_continue = False
            if self._head is not None:
                self._send([CONTINUE])

    def _fill_body(self, piece: memoryview) -> int:
        body = self._body
        assert body is not None
        taken = piece[: len(body) - self._filled]
        body[self._filled : self._filled + len(taken)] = taken
        self._filled += len(taken)
        if self._filled == len(body):
            self._finish_body(body)
        return len(taken)

    def _finish_body(self, body: memoryview) -> None:
        self._body = None
        self._dispatch(self._take_head(), body.toreadonly())

    def _take_head(self) -> RequestHead:
        head, self._head = self._head, None
        self._owes_continue = False
        assert head is not None
        return head

    def _received_bytes(self) -> int:
        return len(self._chunks.body) if self._chunks is not None else self._filled

    def _dispatch(self, head: RequestHead, body: Buffer) -> None:
        """Hand a complete request over."""
        exchange = Http1Exchange(self, head, body, _now_ns())
        self._exchanges.append(exchange)
        self._clock_start_ns = 0
        if not head.keep_alive:
            self._ignores_input = True
        try:
            self._endpoint.handle(exchange)
        except Exception:
            _log.exception("the route of %s %s failed", exchange.method, exchange.path)
            exchange.respond(500, (_JSON,), (encode_error("internal error; the log tells more"),))
        if not self._is_consuming:
            self._update_reading()

    def _refuse(self, error: HttpError, *, lingers: bool = True) -> None:
        """Answer a request that cannot be handed over, after those before it, and end the connection."""
        head = self._head or RequestHead("", "/", {})
        self._head = self._body = self._chunks = self._head_parser = None
        self._ignores_input = True
        self._is_cutting_off = lingers
        exchange = Http1Exchange(self, head, b"", 0)
        exchange.keep_alive = False
        self._exchanges.append(exchange)
        self.restart_clock()
        exchange.respond(error.status, (_JSON,), (encode_error(error.message),))

    # --- answering ----------------------------------------------------------------------------------------------

    def connection_option(self, exchange: Http1Exchange) -> bytes:
        """Return the Connection option of an answer that begins now."""
        if exchange.keep_alive and self._endpoint.is_draining and self._exchanges[-1] is exchange:
            exchange.keep_alive = False
            self._expect_no_more()
        if not exchange.keep_alive:
            return b"close"
        return b"keep-alive" if exchange.is_http_1_0 else b""

    def _expect_no_more(self) -> None:
        """The server drains, which a peer does not know that pipelines: some of its next request may have come."""
        self._head = self._body = self._chunks = self._head_parser = None
        self._ignores_input = self._is_cutting_off = True

    def emit(self, exchange: Http1Exchange, buffers: list[Buffer], *, done: bool) -> None:
        """Send a piece of an answer, or hold it while answers before it are missing."""
        exchanges = self._exchanges
        if exchanges[0] is not exchange:
            exchange.held += buffers
            return
        self._send(buffers)
        if done:
            exchanges.popleft()
            if exchanges and exchange.keep_alive:
                self._release_held()
            elif not exchange.keep_alive:
                self._end()
                return
            if not exchanges:
                self._clock_start_ns = 0
                if self._owes_continue:
                    self._send_continue()
            if not self._is_reading:
                self._update_reading()

    def _release_held(self) -> None:
        """Send the answers that waited for one that has just been sent."""
        exchanges = self._exchanges
        while exchanges:
            exchange = exchanges[0]
            if exchange.held:
                self._send(exchange.held)
                exchange.held = []
                exchange.held_bytes = 0
            if not exchange.done:
                exchange.set_congested(self._is_write_paused)
                return
            exchanges.popleft()
            if not exchange.keep_alive:
                self._end()
                return

    def streamed(self, exchange: Http1Exchange, byte_count: int) -> None:
        """Have a stream wait whose pieces pile up; drop a peer that has left too much."""
        if exchange is self._exchanges[0]:
            if not self._is_write_paused:
                return
            unsent_bytes = self._transport.get_write_buffer_size()
        else:
            exchange.held_bytes += byte_count
            exchange.set_congested(exchange.held_bytes > self._limits.write_buffer_bytes)
            unsent_bytes = sum([waiting.held_bytes for waiting in self._exchanges])
        if unsent_bytes > self._limits.streamed_bytes and not self._transport.is_closing():
            _log.warning("dropped a client that left %d bytes of streamed answers", unsent_bytes)
            self.abort()

    def _send(self, buffers: list[Buffer]) -> None:
        if self._is_consuming:
            self._outbox += buffers
        else:
            self._write(buffers)

    def _write(self, buffers: list[Buffer]) -> None:
        if self._transport.is_closing():
            # Dropped, and the loop has not told us yet.
            return
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

    def _end(self) -> None:
        """The last answer has been written: close, or linger while the refused peer may still be sending."""
        if self._outbox:
            self._write(self._outbox)
            self._outbox = []
        if self._is_cutting_off and self._transport.can_write_eof():
            # Closing with unread input would reset the connection and take the answer from the peer (RFC 9112 9.6).
            self._is_lingering = True
            self._transport.write_eof()
            self.restart_clock()
            self._update_reading()
        else:
            self._transport.close()

    # --- back pressure ------------------------------------------------------------------------------------------

    def _give_way(self) -> None:
        """Have others read before more is read from a peer that fills the buffer: libuv would go on 32 times."""
        if self._is_reading and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()
            self._endpoint.call_later(0.0, self._update_reading)

    def _may_read(self) -> bool:
        return not self._is_write_paused and len(self._exchanges) < self._limits.pipelined_requests

    def _update_reading(self) -> None:
        """Pause or resume reading, and take up the backlog first."""
        if self._is_consuming or self._is_half_closed or self._transport.is_closing():
            return
        while self._backlog and not self._ignores_input and self._may_read():
            backlog, self._backlog = self._backlog, b""
            self._consume(backlog, len(backlog))
        may_read = self._may_read() or self._is_lingering
        if may_read != self._is_reading:
            self._is_reading = may_read
            if may_read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # --- clocks -------------------------------------------------------------------------------------------------

    def restart_clock(self) -> None:
        """A new phase begins; the next sweep notes when, so that no request pays for reading a clock."""
        self._clock_start_ns = 0

    def check_clock(self, now_ns: int) -> None:
        """Act when the current phase has lasted too long."""
        if self._is_lingering or self._transport.is_closing():
            self._check_farewell(now_ns)
            return
        if self._is_half_closed:
            self._drop_if_reset()
        start_ns = self._clock_start_ns
        if not start_ns:
            self._clock_start_ns = now_ns
            return
        elapsed_s = (now_ns - start_ns) / 1e9
        if self._is_write_paused:
            self._check_send_clock(elapsed_s)
        elif not self._is_reading:
            self.restart_clock()
        else:
            self._check_read_clock(elapsed_s)

    def _check_read_clock(self, elapsed_s: float) -> None:
        limits = self._limits
        if self._head_parser is not None:
            if elapsed_s >= limits.head_timeout_s:
                self._refuse(HttpError(408, f"the request's head took longer than {limits.head_timeout_s:g} s"))
        elif self._head is not None:
            received = self._received_bytes()
            if elapsed_s >= limits.body_timeout_s + received / limits.body_rate_bytes_per_s:
                self._refuse(HttpError(408, f"the request's body is too slow: {received} bytes in {elapsed_s:.0f} s"))
        elif not self._exchanges:
            limit_s = _DRAIN_IDLE_S if self._endpoint.is_draining else limits.idle_timeout_s
            if elapsed_s >= limit_s:
                self._transport.close()

    def _check_farewell(self, now_ns: int) -> None:
        if self._farewell is None:
            self._farewell = Farewell(self._limits.send_timeout_s, now_ns)
        limit_s = self._limits.linger_s if self._is_lingering else FAREWELL_S
        if self._farewell.is_over(undelivered_bytes(self._transport), now_ns, limit_s):
            self.abort()

    def _check_send_clock(self, elapsed_s: float) -> None:
        unsent = undelivered_bytes(self._transport)
        if unsent != self._unsent_bytes:
            self._unsent_bytes = unsent
            self.restart_clock()
        elif elapsed_s >= self._limits.send_timeout_s:
            self.abort()

    def abort(self) -> None:
        """Drop the connection."""
        self._transport.abort()

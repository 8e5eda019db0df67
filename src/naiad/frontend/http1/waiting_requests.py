"""HTTP/1.1 requests that wait for their responses, which a connection sends in the order of its requests."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from naiad.core.tensor import Buffer
from naiad.frontend.context import CancelReason, OnCancel
from naiad.frontend.http1.endpoint import Http1Endpoint, PhaseClock
from naiad.telemetry.server_timing import RequestTiming
from naiad.wire.header_fields import Headers
from naiad.wire.http1 import RequestHead

_log = logging.getLogger(__name__)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_COPY_LIMIT_BYTES = 32768
"""Parts up to this size are joined with adjacent ones; larger ones are written without a copy."""


class Http1Context:
    """One request that waits for its response; responses are sent in request order."""

    # Most requests need no more than the defaults, which cost nothing here.
    _is_chunked = False
    _is_paused = False
    timing: RequestTiming | None = None
    reserved_bytes = 0
    """Bytes reserved in the budget until the response."""
    on_disconnect: OnCancel | None = None
    on_pause: Callable[[bool], object] | None = None
    waiting_bytes = 0
    """Bytes of the waiting pieces that were streamed."""
    done = False
    has_begun = False
    """A streamed response has begun."""
    first_byte_ns: int
    """Set only for a request that was not delivered at once."""

    def __init__(self, connection: "Http1Responses", head: RequestHead, body: Buffer, arrival_ns: int) -> None:
        self._connection: Http1Responses | None = connection
        self.is_http_1_0 = head.is_http_1_0
        """Whether the peer speaks HTTP/1.0 and needs `keep-alive` to reuse the connection."""
        self.method = head.method
        self.path = head.path
        self.query = head.query
        self.headers = head.headers
        self.keep_alive = head.keep_alive
        self.body = body
        self.arrival_ns = arrival_ns
        self.waiting_buffers: list[Buffer] = []
        """Pieces of the response that wait for earlier responses."""

    @property
    def client(self) -> object:
        """The connection of the request."""
        return self._connection

    @property
    def unread_bytes(self) -> int:
        """Bytes of a streamed response that the peer has not taken yet."""
        return 0 if self._connection is None else self._connection.unread_bytes(self)

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Send a response with a complete body."""
        # hot: bench/micro_http1.py
        connection = self._connection
        if connection is None or self.done:
            return
        self.done = True
        self.on_disconnect = None
        if self.reserved_bytes:
            self.release_bytes(self.reserved_bytes)
        length = sum(map(len, parts))
        if self.timing is not None:
            headers = [*headers, (b"Server-Timing", self.timing.value())]  # a list: these are not cached
        is_plain = self.keep_alive and not self.is_http_1_0 and not connection.endpoint.is_draining
        option = b"" if is_plain else connection.connection_option(self)
        head = connection.response_headers.complete(status, headers, length, option)
        if self.method == "HEAD":
            # RFC 9110 9.3.2: a HEAD response has the fields of GET, including Content-Length, without the body.
            connection.emit(self, [head], done=True)
        elif length <= _COPY_LIMIT_BYTES:
            connection.finish(self, b"".join((head, *parts)))
        else:
            connection.emit(self, _gather(head, parts), done=True)

    def start_stream(self, status: int, headers: Headers) -> None:
        """Start a response of unknown length: chunked, or ended by the close of the connection for HTTP/1.0."""
        connection = self._connection
        if connection is None or self.done:
            return
        self.has_begun = True
        self._is_chunked = not self.is_http_1_0
        if self.is_http_1_0:
            self.keep_alive = False
        option = connection.connection_option(self)
        head = connection.response_headers.streamed(status, headers, option, chunked=self._is_chunked)
        connection.emit(self, [head], done=False)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a piece of a streamed response."""
        if self._connection is not None and not self.done and self.method != "HEAD":
            buffers = _chunk(parts) if self._is_chunked else list(parts)
            self._connection.emit(self, buffers, done=False)
            self._connection.streamed(self, sum(map(len, buffers)))

    def set_paused(self, is_paused: bool) -> None:
        """Notify the producer of a streamed response whether the peer reads it."""
        if is_paused is not self._is_paused and not self.done:
            self._is_paused = is_paused
            if self.on_pause is not None:
                self.on_pause(is_paused)

    def end(self) -> None:
        """End a streamed response."""
        if self._connection is not None and not self.done:
            self.done = True
            self.on_disconnect = self.on_pause = None
            self.release_bytes(self.reserved_bytes)
            last: list[Buffer] = [_LAST_CHUNK] if self._is_chunked and self.method != "HEAD" else []
            self._connection.emit(self, last, done=True)

    def reserve_bytes(self, size: int) -> bool:
        """Reserve more bytes for the request until its response; return False if the server has no room for them."""
        connection = self._connection
        if connection is None or self.done:
            return True  # the result has no receiver, and nothing would release the bytes
        if not connection.budget.reserve(size):
            return False
        self.reserved_bytes += size
        return True

    def release_bytes(self, size: int) -> None:
        """Release bytes of the request; after the response there is nothing to release."""
        size = min(size, self.reserved_bytes)
        if self._connection is not None and size:
            self.reserved_bytes -= size
            self._connection.budget.release(size)

    def start_timing(self) -> RequestTiming:
        """Return the timing of the request, which its response carries."""
        if self.timing is None:
            self.timing = RequestTiming(getattr(self, "first_byte_ns", self.arrival_ns))
        return self.timing

    def disconnect(self) -> None:
        """Notify the route that the peer has disconnected, and discard the response."""
        self.release_bytes(self.reserved_bytes)
        self._connection = None
        self.waiting_buffers = []
        callback, self.on_disconnect = self.on_disconnect, None
        self.on_pause = None
        if callback is not None:
            callback(CancelReason.DISCONNECTED)


class Http1ResponsesOwner(Protocol):
    """The connection, as its responses use it."""

    is_reading: bool
    """False if there is no room for more requests."""

    def update_reading(self) -> None:
        """Resume reading if there is room: a response was sent."""

    def expect_no_more(self) -> None:
        """Expect the last requests: the server drains, and the response that begins now is the last one."""

    def end(self) -> None:
        """End the connection: the last response is sent."""

    def abort(self) -> None:
        """Drop the connection."""


class Http1Responses:
    """The requests without a complete response, oldest first."""

    __slots__ = (
        "_clock",
        "_limits",
        "_owner",
        "budget",
        "contexts",
        "endpoint",
        "is_gathering",
        "is_write_paused",
        "max_contexts",
        "output_buffers",
        "owes_continue",
        "response_headers",
        "transport",
    )

    def __init__(self, endpoint: Http1Endpoint, clock: PhaseClock, owner: Http1ResponsesOwner) -> None:
        self.endpoint = endpoint
        self._limits = endpoint.limits
        self.max_contexts = endpoint.limits.pipelined_requests
        self._clock = clock
        self._owner = owner
        self.response_headers = endpoint.response_headers
        self.budget = endpoint.budget
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set when the connection is made
        self.contexts: deque[Http1Context] = deque()
        self.output_buffers: list[Buffer] = []
        self.is_gathering = False
        """Set while input is consumed: output is collected in `output_buffers` and written at the end."""
        self.owes_continue = False
        self.is_write_paused = False

    def has_room(self) -> bool:
        """Return whether a further request may be read."""
        return not self.is_write_paused and len(self.contexts) < self.max_contexts

    def connection_option(self, context: Http1Context) -> bytes:
        """Return the Connection option of a response that begins now."""
        if context.keep_alive and self.endpoint.is_draining and self._is_last(context):
            context.keep_alive = False
            self._owner.expect_no_more()
        if not context.keep_alive:
            return b"close"
        return b"keep-alive" if context.is_http_1_0 else b""

    def _is_last(self, context: Http1Context) -> bool:
        """Return whether a draining server ends the connection with this response."""
        endpoint = self.endpoint
        was_in_flight = context.arrival_ns <= endpoint.last_arrival_ns or endpoint.is_finishing
        return was_in_flight and self.contexts[-1] is context

    def emit(self, context: Http1Context, buffers: list[Buffer], *, done: bool) -> None:
        """Send a piece of a response, or keep it while earlier responses are incomplete."""
        # hot: bench/micro_http1.py
        contexts = self.contexts
        if contexts[0] is not context:
            context.waiting_buffers += buffers
            return
        if self.is_gathering:
            self.output_buffers += buffers
        else:
            self._write(buffers)
        if done:
            contexts.popleft()
            if not context.keep_alive:
                self._owner.end()
                return
            if contexts:
                self._send_waiting()
            if self.is_gathering:
                return  # a request has restarted the clock, and the caller checks for room
            if not contexts:
                self._clock.start_ns = 0
                if self.owes_continue:
                    self.send_continue()
            if not self._owner.is_reading:
                self._owner.update_reading()

    def finish(self, context: Http1Context, response: bytes) -> None:
        """Send a whole response; most are alone and need no more than a write."""
        # hot: bench/micro_http1.py
        transport, contexts = self.transport, self.contexts
        if self.is_gathering or len(contexts) != 1 or not context.keep_alive or transport.is_closing():
            self.emit(context, [response], done=True)
            return
        transport.write(response)
        contexts.popleft()
        self._clock.start_ns = 0
        if self.owes_continue:
            self.send_continue()
        if not self._owner.is_reading:
            self._owner.update_reading()

    def streamed(self, context: Http1Context, byte_count: int) -> None:
        """Pause a stream whose pieces accumulate; drop a peer with too much unread data."""
        if context is self.contexts[0]:
            if not self.is_write_paused:
                return
            unsent_bytes = self.unread_bytes(context)
        else:
            context.waiting_bytes += byte_count
            context.set_paused(context.waiting_bytes > self._limits.write_buffer_bytes)
            unsent_bytes = sum([waiting.waiting_bytes for waiting in self.contexts])
        if unsent_bytes > self._limits.streamed_bytes and not self.transport.is_closing():
            _log.warning("dropped a client with %d unread bytes of streamed responses", unsent_bytes)
            self._owner.abort()

    def unread_bytes(self, context: Http1Context) -> int:
        """Return the bytes of a streamed response that wait for the peer, or for the responses before it."""
        is_first = bool(self.contexts) and self.contexts[0] is context
        return self.transport.get_write_buffer_size() if is_first else context.waiting_bytes

    def send_continue(self) -> None:
        """Send 100 Continue to request a body, after the responses to earlier requests, which come first."""
        # RFC 9110 10.1.1
        self.owes_continue = bool(self.contexts)
        if not self.owes_continue:
            self.send([CONTINUE])

    def set_write_paused(self, is_paused: bool) -> None:
        """Pause or resume: the peer does not read its responses, or reads again."""
        self.is_write_paused = is_paused
        if self.contexts:
            self.contexts[0].set_paused(is_paused)

    def send(self, buffers: list[Buffer]) -> None:
        """Write, or collect while input is consumed."""
        if self.is_gathering:
            self.output_buffers += buffers
        else:
            self._write(buffers)

    def flush(self) -> None:
        """Write the collected output."""
        gathered, self.output_buffers = self.output_buffers, []
        self._write(gathered)

    def disconnect(self) -> None:
        """Cancel all requests of the connection."""
        contexts, self.contexts = self.contexts, deque()
        for context in contexts:
            context.disconnect()
        del self._owner  # frees the connection at once instead of with the next full collection

    def _send_waiting(self) -> None:
        """Send the responses that waited for the one just sent."""
        contexts = self.contexts
        while contexts:
            context = contexts[0]
            if context.waiting_buffers:
                self.send(context.waiting_buffers)
                context.waiting_buffers = []
                context.waiting_bytes = 0
            if not context.done:
                context.set_paused(self.is_write_paused)
                return
            contexts.popleft()
            if not context.keep_alive:
                self._owner.end()
                return

    def _write(self, buffers: list[Buffer]) -> None:
        if self.transport.is_closing():
            # The connection was dropped, but the loop has not reported it yet.
            return
        if len(buffers) == 1:
            self.transport.write(buffers[0])
        else:
            self.transport.writelines(buffers)


def _gather(head: bytes, parts: Sequence[Buffer]) -> list[Buffer]:
    """Return headers and body in few buffers: small parts are joined, large ones stay as they are."""
    buffers: list[Buffer] = []
    small: list[Buffer] = [head]
    for part in parts:
        if len(part) <= _COPY_LIMIT_BYTES:
            small.append(part)
            continue
        if small:
            buffers.append(b"".join(small))
            small = []
        buffers.append(part)
    if small:
        buffers.append(b"".join(small))
    return buffers


def _chunk(parts: Sequence[Buffer]) -> list[Buffer]:
    """Return the parts as one chunk of the chunked coding; nothing for an empty chunk, which would end the body."""
    length = sum(map(len, parts))
    if not length:
        return []
    buffers = [b"%x\r\n" % length, *parts, b"\r\n"]
    return [b"".join(buffers)] if length <= _COPY_LIMIT_BYTES else buffers

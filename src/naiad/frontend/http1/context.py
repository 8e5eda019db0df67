"""One HTTP/1.1 request and its response: the `HttpContext` that routes see.

Responses are encoded to status line, fields and framing; repeated headers are cached.
"""

import http
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import TYPE_CHECKING, Protocol

from naiad.core.request_limits import RequestBudget
from naiad.core.tensor import Buffer
from naiad.frontend.context import CancelReason
from naiad.telemetry.metrics.responses import http_responses
from naiad.telemetry.server_timing import RequestTiming
from naiad.wire.header_fields import Headers
from naiad.wire.http1 import RequestHead

if TYPE_CHECKING:
    from naiad.frontend.context import OnCancel

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus}
_CACHED_PREFIXES = 256
_COPY_LIMIT_BYTES = 32768
"""Parts up to this size are joined with adjacent ones; larger ones are written without a copy."""


class Http1ResponseHeaders:
    """Encodes response headers, and counts them; caches the headers of successful responses, which repeat."""

    def __init__(self) -> None:
        self._prefixes: dict[object, bytes] = {}
        self._framing = b""
        self.set_date(0.0)

    def set_date(self, wall_s: float) -> None:
        """Set the Date of the following responses; called about once a second."""
        self._framing = b"Date: %s\r\nContent-Length: %%d\r\n\r\n" % formatdate(wall_s, usegmt=True).encode()

    def complete(self, status: int, headers: Headers, length: int, connection: bytes) -> bytes:
        """Return the headers of a response of `length` bytes; `connection` is a Connection option or empty."""
        http_responses[status] += 1
        key = (status, headers, connection) if type(headers) is tuple else None
        prefix = self._prefixes.get(key)
        if prefix is None:
            prefix = self._prefix(status, headers, connection)
            if key is not None and status == http.HTTPStatus.OK:
                if len(self._prefixes) >= _CACHED_PREFIXES:
                    self._prefixes.clear()
                self._prefixes[key] = prefix
        return prefix + self._framing % length

    def streamed(self, status: int, headers: Headers, connection: bytes, *, chunked: bool) -> bytes:
        """Return the headers of a response of unknown length."""
        http_responses[status] += 1
        date = self._framing.partition(b"\r\n")[0]
        coding = b"Transfer-Encoding: chunked\r\n" if chunked else b""
        return b"%s%s\r\n%s\r\n" % (self._prefix(status, headers, connection), date, coding)

    def _prefix(self, status: int, headers: Headers, connection: bytes) -> bytes:
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
        fields = b"".join([b"%s: %s\r\n" % field for field in headers])
        return line + fields + (b"Connection: %s\r\n" % connection if connection else b"")


def gather(head: bytes, parts: Sequence[Buffer]) -> list[Buffer]:
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


def chunk(parts: Sequence[Buffer]) -> list[Buffer]:
    """Return the parts as one chunk of the chunked coding; nothing for an empty chunk, which would end the body."""
    length = sum(map(len, parts))
    if not length:
        return []
    buffers = [b"%x\r\n" % length, *parts, b"\r\n"]
    return [b"".join(buffers)] if length <= _COPY_LIMIT_BYTES else buffers


class ResponseSink(Protocol):
    """The connection, as a request context uses it."""

    response_headers: Http1ResponseHeaders
    budget: RequestBudget

    def connection_option(self, context: "Http1Context") -> bytes:
        """Return the Connection option for a response that begins now; decides whether it is the last one."""

    def emit(self, context: "Http1Context", buffers: list[Buffer], *, done: bool) -> None:
        """Send a piece of a response, or keep it until the earlier responses are sent."""

    def streamed(self, context: "Http1Context", byte_count: int) -> None:
        """Apply back pressure after a piece of a streamed response."""


class Http1Context:
    """One request that waits for its response; responses are sent in request order."""

    __slots__ = (
        "_connection",
        "_is_chunked",
        "_is_paused",
        "arrival_ns",
        "body",
        "done",
        "first_byte_ns",
        "has_begun",
        "headers",
        "is_http_1_0",
        "keep_alive",
        "method",
        "on_disconnect",
        "on_pause",
        "path",
        "reserved_bytes",
        "timing",
        "waiting_buffers",
        "waiting_bytes",
    )

    first_byte_ns: int
    """Set only for a request that was not delivered at once."""

    def __init__(self, connection: ResponseSink, head: RequestHead, body: Buffer, arrival_ns: int) -> None:
        self._connection: ResponseSink | None = connection
        self.is_http_1_0 = head.is_http_1_0
        """Whether the peer speaks HTTP/1.0 and needs `keep-alive` to reuse the connection."""
        self._is_chunked = False
        self._is_paused = False
        self.method = head.method
        self.path = head.path
        self.headers = head.headers
        self.keep_alive = head.keep_alive
        self.body = body
        self.arrival_ns = arrival_ns
        self.timing: RequestTiming | None = None
        self.reserved_bytes = 0
        """Bytes reserved in the budget until the response."""
        self.on_disconnect: OnCancel | None = None
        self.on_pause: Callable[[bool], object] | None = None
        self.waiting_buffers: list[Buffer] = []
        """Pieces of the response that wait for earlier responses."""
        self.waiting_bytes = 0
        """Bytes of the waiting pieces that were streamed."""
        self.done = False
        self.has_begun = False
        """A streamed response has begun."""

    @property
    def client(self) -> object:
        """The connection of the request."""
        return self._connection

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
        head = connection.response_headers.complete(status, headers, length, connection.connection_option(self))
        if self.method == "HEAD":
            # RFC 9110 9.3.2: a HEAD response has the fields of GET, including Content-Length, without the body.
            connection.emit(self, [head], done=True)
        elif length <= _COPY_LIMIT_BYTES:
            connection.emit(self, [b"".join((head, *parts))], done=True)
        else:
            connection.emit(self, gather(head, parts), done=True)

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
            buffers = chunk(parts) if self._is_chunked else list(parts)
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
            last: list[Buffer] = [LAST_CHUNK] if self._is_chunked and self.method != "HEAD" else []
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

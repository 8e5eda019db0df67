"""A client's HTTP/1.1 connection (RFC 9112), sans-IO: one request at a time out, its response in.

llhttp parses responses: heads, bodies with a length, chunked bodies, and bodies that end with the connection.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import httptools

from naiad.core.limits.bounded_cache import BoundedCache
from naiad.core.tensor import Buffer
from naiad.wire.header_fields import HeaderFields, check_field
from naiad.wire.http1 import HttpError, allocate_body

_FORBIDDEN_IN_TARGET = re.compile(r"[^!-~]")
_FIRST_FINAL_STATUS = 200
_SWITCHING_PROTOCOLS = 101
_GROWN_BYTES = 64 * 1024
"""Bodies up to this size grow with what arrives; memory for larger ones is allocated at once."""


@dataclass(frozen=True, slots=True)
class Http1ClientLimits:
    """What a server may make this client hold."""

    head_bytes: int = 64 * 1024
    """Status line and fields together."""
    header_count: int = 128
    body_bytes: int = 1 << 34
    """The body of a response. Memory is only taken for what arrives."""


class ResponseError(Exception):
    """A response that breaks a rule or a limit, or is cut short; the connection cannot be used any more."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response."""

    status: int
    headers: HeaderFields
    """By lower-case names."""
    body: Buffer


def encode_request(
    method: str, target: str, headers: Iterable[tuple[str, str]], body: Sequence[Buffer] = ()
) -> list[Buffer]:
    """Return the bytes of a request: the head, and the parts of the body uncopied. `headers` include Host.

    Raises ValueError for a target or a field that HTTP cannot carry.
    """
    if _FORBIDDEN_IN_TARGET.search(target) or not target:
        raise ValueError(f"the request target {target[:200]!r} has characters that must be percent-encoded")
    lines = [f"{method} {target} HTTP/1.1".encode()]
    for name, value in headers:
        lines.append(b"%s: %s" % check_field(name, value))
    size = sum(map(len, body))
    if size or method not in ("GET", "HEAD"):
        lines.append(b"Content-Length: %d" % size)
    return [b"\r\n".join((*lines, b"\r\n")), *body]


_KNOWN_HEADS = 64
_KNOWN_HEAD_BYTES = 2048


class ResponseHeads:
    """Heads of responses that a server repeats byte for byte, of bodies with a length; connections may share one."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: BoundedCache[bytes, tuple[int, HeaderFields, int]] = BoundedCache(
            max_entries=_KNOWN_HEADS, max_bytes=_KNOWN_HEADS * _KNOWN_HEAD_BYTES, max_entry_bytes=_KNOWN_HEAD_BYTES
        )

    def find(self, data: bytes) -> Response | None:
        """Return the response that `data` is, if it is whole and its head is known."""
        # hot: bench/micro_perf.py
        end = data.find(b"\r\n\r\n") + 4
        known = self._known.get(data[:end])
        if known is None or len(data) != end + known[2]:
            return None
        return Response(known[0], known[1], memoryview(data)[end:])

    def remember(self, data: bytes, response: Response) -> None:
        """Keep the head of a response that `data` is, if the connection stays open after it."""
        head = data[: data.find(b"\r\n\r\n") + 4]
        if len(data) != len(head) + len(response.body):
            return  # An interim response precedes it, or it is chunked.
        if response.headers.get(b"content-length", b"").isdigit():
            self._known.remember(head, (response.status, response.headers, len(response.body)), len(head))


class Http1ClientConnection:
    """The receiving side: `expect` a response after each request, then feed what arrives."""

    def __init__(self, limits: Http1ClientLimits | None = None, heads: ResponseHeads | None = None) -> None:
        self._limits = limits or Http1ClientLimits()
        self._heads = ResponseHeads() if heads is None else heads
        self._reader: _ResponseReader | None = None
        self._is_expecting = False
        self.can_send = True
        """Whether a request may be sent: none is outstanding and the server keeps the connection open."""

    def expect(self) -> None:
        """Note that a request was sent. Raises RuntimeError unless `can_send`."""
        if not self.can_send:
            raise RuntimeError("the connection takes no request; look at can_send first")
        self.can_send = False
        self._is_expecting = True

    def receive_data(self, data: bytes) -> Response | None:
        """Take received bytes, cut anywhere; return the response that they complete. Raises ResponseError."""
        if not self._is_expecting:
            self.can_send = False
            raise ResponseError("the server sent bytes that no request asked for")
        is_first = self._reader is None
        response = self._heads.find(data) if is_first else None
        if response is not None:
            self._is_expecting = False
            self.can_send = True
            return response
        reader = self._reader = self._reader or _ResponseReader(self._limits)
        response = reader.feed(data)
        if response is not None:
            self._reader = None
            self._is_expecting = False
            self.can_send = reader.keeps_alive
            if is_first and reader.keeps_alive:
                self._heads.remember(data, response)
        return response

    def receive_eof(self) -> Response | None:
        """The server has closed the connection; return the response that ends with it, None between responses.

        Raises ResponseError when a response is outstanding or cut short.
        """
        self.can_send = False
        if not self._is_expecting:
            return None
        self._is_expecting = False
        reader, self._reader = self._reader or _ResponseReader(self._limits), None
        return reader.finish()


class _ResponseReader:
    """One response; the target of llhttp's callbacks."""

    def __init__(self, limits: Http1ClientLimits) -> None:
        self._limits = limits
        self._parser = httptools.HttpResponseParser(self)
        self._headers = HeaderFields()
        self._head_bytes = 0
        self._body = bytearray()
        self._block: memoryview | None = None
        """The body, where its length is known and large."""
        self._filled_bytes = 0
        self._has_head = False
        self._is_complete = False
        self.keeps_alive = False
        """The server keeps the connection open for the next request."""
        self._error: ResponseError | None = None

    def feed(self, data: bytes) -> Response | None:
        """Take the next bytes. Raises ResponseError."""
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise ResponseError("the server switched protocols, which no request asked for") from None
        except httptools.HttpParserError as error:
            raise self._error or ResponseError(f"malformed HTTP response: {error}") from None
        if not self._has_head and self._head_bytes > self._limits.head_bytes:
            raise ResponseError(f"the head of the response has more than {self._limits.head_bytes} bytes")
        return self._response() if self._is_complete else None

    def finish(self) -> Response:
        """Return the response whose body ends with the connection. Raises ResponseError when it is cut short."""
        if not self._has_head:
            raise ResponseError("the server closed the connection before its response")
        has_length = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if has_length:
            raise ResponseError("the server closed the connection within its response")
        return self._response()

    def _response(self) -> Response:
        body = self._body if self._block is None else self._block
        return Response(self._parser.get_status_code(), self._headers, memoryview(body))

    # Callbacks of httptools; what they raise comes out of `feed_data` as HttpParserCallbackError.

    def on_message_begin(self) -> None:
        """Begin a response, again after an interim one."""
        if self._is_complete:
            self._fail("the server sent more than one response to a request")
        self._headers = HeaderFields()
        self._has_head = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field; one behind a chunked body is a trailer, which is dropped."""
        if self._has_head:
            return
        if len(self._headers.written) >= self._limits.header_count:
            self._fail(f"the response has more than {self._limits.header_count} header fields")
        self._headers.add(name, value)

    def on_headers_complete(self) -> None:
        """Prepare for the body."""
        self._has_head = True
        length = int(self._headers.get(b"content-length", b"0"))
        if length > self._limits.body_bytes:
            self._fail(f"the response body of {length} bytes exceeds the limit of {self._limits.body_bytes}")
        if length > _GROWN_BYTES:
            offset = self._headers.get(b"inference-header-content-length", b"")
            try:
                self._block = allocate_body(length, int(offset) if offset.isdigit() and len(offset) < 20 else 0)
            except HttpError:
                self._fail(f"no memory for a response body of {length} bytes")

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        end = self._filled_bytes + len(piece)
        if self._block is not None:
            self._block[self._filled_bytes : end] = piece
        elif end > self._limits.body_bytes:
            self._fail(f"the response body exceeds the limit of {self._limits.body_bytes} bytes")
        else:
            self._body += piece
        self._filled_bytes = end

    def on_message_complete(self) -> None:
        """End the response, unless it is an interim one (RFC 9110 15.2)."""
        status = self._parser.get_status_code()
        if status >= _FIRST_FINAL_STATUS or status == _SWITCHING_PROTOCOLS:
            self._is_complete = True
            self.keeps_alive = bool(self._parser.should_keep_alive())
        else:
            self._has_head = False

    def _fail(self, message: str) -> None:
        self._error = ResponseError(message)
        raise self._error

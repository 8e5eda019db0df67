"""Bodies of HTTP/1.1 requests: a buffer for a body of known length, and the decoder of chunked bodies.

Limits of an HTTP/1.1 endpoint: how much a peer may send, and how long it may take.

Heads of HTTP/1.1 requests: request line and fields, parsed by llhttp, and a cache of whole heads.

Clients repeat their heads byte for byte, so a head that was seen before costs one look-up instead of a callback per
field. A head ends at the first empty line; where llhttp disagrees about that the request is refused, so nothing can
be smuggled past either of the two.
"""

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

import httptools
import numpy as np

from naiad.core.errors import excerpt
from naiad.wire.header_fields import HeaderFields, Headers
from naiad.wire.preface import TLS_REFUSAL, is_tls


@dataclass(frozen=True, slots=True)
class Http1Limits:
    """Limits per connection unless said otherwise; times are seconds."""

    head_bytes: int = 32768
    """Request line and fields together; 431 beyond (414 when the request line alone is too long)."""
    target_bytes: int = 8192
    """The request target; 414 beyond."""
    header_count: int = 128
    """Fields of a request; 431 beyond."""
    body_bytes: int = 1 << 34
    """The body of a request; 413 beyond. Binary tensors are large, and memory is only taken for what arrives."""
    chunk_count: int = 65536
    """Chunks of one body with chunked coding; 400 beyond."""
    pipelined_requests: int = 32
    """Requests that wait for their answers; reading pauses at this number."""
    write_buffer_bytes: int = 1 << 20
    """Unsent bytes at which reading pauses until the peer has taken most of them."""
    streamed_bytes: int = 64 << 20
    """Unsent bytes of a streamed answer at which a peer that does not take them is dropped."""
    connections: int = 16384
    """Open connections of one endpoint; beyond it the longest idle is closed, or else the new one, with 503."""
    head_timeout_s: float = 30.0
    """From the first byte of a request to the end of its fields; 408 beyond."""
    first_byte_timeout_s: float = 30.0
    """From the connection to the first byte of a request; it is closed beyond."""
    body_timeout_s: float = 60.0
    """How far a body may fall behind `body_rate_bytes_per_s`; 408 beyond."""
    body_rate_bytes_per_s: int = 16384
    idle_timeout_s: float = 600.0
    """Between two requests of a connection; it is closed beyond."""
    send_timeout_s: float = 60.0
    """How far a peer may fall behind in taking its answers, at 1 KiB/s; the connection is dropped beyond."""
    linger_s: float = 2.0
    """How long a refused peer may send nothing before the connection is dropped."""
    linger_most_s: float = 30.0
    """How long a refused peer may go on sending, so that it finds the answer when it has sent its body."""


_CACHED_HEAD_LIMIT_BYTES = 4096
_ENCODED_SLASH = re.compile("%(2[fF])")


class HttpError(Exception):
    """A request that is refused by the transport: the status to answer with, and why."""

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers
        """Fields of the answer, beside those that every refusal has."""
        self.head: RequestHead | None = None
        """The head of a request that is refused although its head is valid, for the log."""


class RequestHead:
    """A parsed head; immutable, shared by all requests that repeat it."""

    __slots__ = (
        "binary_offset",
        "content_length",
        "expects_continue",
        "headers",
        "is_chunked",
        "is_http_1_0",
        "keep_alive",
        "method",
        "path",
        "query",
        "target",
    )

    def __init__(self, method: str, target: str, headers: Mapping[bytes, bytes]) -> None:
        self.method = method
        self.target = target
        self.path = decode_path(target)
        self.query = target.partition("?")[2]
        """What follows the question mark, as it was sent."""
        self.headers = headers
        self.is_http_1_0 = False
        self.keep_alive = True
        self.is_chunked = False
        self.content_length = 0
        self.expects_continue = False
        self.binary_offset = 0
        """Where the binary tensors begin in the body (Inference-Header-Content-Length); 0 when unknown."""


CheckHead = Callable[[str, str, Callable[[bytes], bytes | None]], None]
"""Raises HttpError for the method, the path and the fields of a request, by their lower-case names."""


class HeadParser:
    """Parses one head, in one piece or as it arrives."""

    def __init__(self, limits: Http1Limits, check: "CheckHead | None" = None) -> None:
        """`check` raises HttpError for a head that is refused."""
        self._limits = limits
        self._check = check
        self._headers = HeaderFields()
        self.on_header = self._headers.add
        """Callback of httptools."""
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._is_complete = False

    # Callbacks of httptools.

    def on_url(self, piece: bytes) -> None:
        """Take a piece of the request target."""
        self._target += piece

    def on_headers_complete(self) -> None:
        """Note the end of the head."""
        self._is_complete = True

    def feed(self, piece: bytes) -> None:
        """Parse a piece of the head. Raises HttpError as soon as it can no longer become a request."""
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            # RFC 9110 7.8: a server may ignore Upgrade, and then goes on as if it had not been there. What follows is
            # no part of a head: an HTTP/0.9 request has ended here.
            if upgrade.args[0] < len(piece):
                raise HttpError(400, "malformed HTTP request: the head goes on after its end") from None
        except httptools.HttpParserError as error:
            if not self._target and is_tls(piece):
                raise HttpError(400, TLS_REFUSAL) from None
            cause = error.__context__
            raise HttpError(400, f"malformed HTTP request: {cause or error}") from None
        if len(self._target) > self._limits.target_bytes:
            raise HttpError(414, f"request target is longer than {self._limits.target_bytes} bytes")
        if len(self._headers.written) > self._limits.header_count:
            raise HttpError(431, f"request has more than {self._limits.header_count} header fields")

    def finish(self) -> RequestHead:
        """Return the head after its last byte was fed. Raises HttpError for what naiad does not take."""
        if not self._is_complete:
            raise HttpError(400, "malformed HTTP request: the head is incomplete")
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise HttpError(505, f"HTTP version {version} is not supported on this connection")
        headers = self._headers
        head = RequestHead(self._parser.get_method().decode("ascii"), self._target.decode("latin-1"), headers)
        head.is_http_1_0 = version == "1.0"
        head.keep_alive = self._keeps_alive(head, headers.get(b"connection", b""))
        hosts = sum(name.lower() == b"host" for name, _ in headers.written)
        if hosts > 1 or not (hosts or head.is_http_1_0):  # RFC 9112 3.2
            raise HttpError(400, f"the request has {hosts} Host fields, exactly one is needed")
        self._read_framing(head, headers)
        if self._check is not None:
            try:
                self._check(head.method, head.path, headers.get)
            except HttpError as error:
                error.head = head
                raise
        return head

    def _keeps_alive(self, head: RequestHead, connection: bytes) -> bool:
        options = {option.strip() for option in connection.lower().split(b",")}
        if head.is_http_1_0:
            return b"keep-alive" in options
        return b"close" not in options

    def _read_framing(self, head: RequestHead, headers: Mapping[bytes, bytes]) -> None:
        # llhttp has refused a length beside a transfer coding, several lengths and lengths that are no numbers.
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            if coding.strip().lower() != b"chunked":
                raise HttpError(
                    501,
                    f"transfer coding '{excerpt(coding.decode('latin-1'))}' is not supported; send chunked or a "
                    "length",
                )
            if head.is_http_1_0:
                raise HttpError(400, "HTTP/1.0 request with a transfer coding")
            head.is_chunked = True
        head.content_length = int(headers.get(b"content-length", b"0"))
        if head.content_length > self._limits.body_bytes:
            raise HttpError(
                413, f"request body of {head.content_length} bytes exceeds the limit of {self._limits.body_bytes}"
            )
        expectation = headers.get(b"expect")
        if expectation is not None and not head.is_http_1_0:
            if expectation.lower() != b"100-continue":
                raise HttpError(417, f"expectation '{excerpt(expectation.decode('latin-1'))}' is not supported")
            head.expects_continue = True
        offset = headers.get(b"inference-header-content-length", b"")
        if offset.isdigit() and len(offset) < 20:
            head.binary_offset = int(offset)


def decode_path(target: str) -> str:
    """Return the percent-decoded path of a request target, without the query. Raises HttpError(400).

    A slash that is encoded stays so: it is part of a name (RFC 3986 2.2), and must not part the path where a proxy
    that looked at it before saw none.
    """
    path = target.partition("?")[0]
    if not path.startswith("/") and "://" in path:
        # RFC 9112 3.2.2: the absolute form must be accepted.
        path = "/" + path.partition("://")[2].partition("/")[2]
    if "%" not in path:
        return path
    try:
        return unquote(_ENCODED_SLASH.sub(r"%25\1", path), errors="strict")
    except UnicodeDecodeError:
        raise HttpError(400, "the path of the request is not valid UTF-8") from None


class HeadCache:
    """Heads by their bytes; bounded, forgets the oldest. A refused head is not remembered."""

    def __init__(self, limits: Http1Limits, check: CheckHead | None = None, *, size: int = 1024) -> None:
        """`check` raises HttpError for a head that is refused."""
        self._limits = limits
        self._check = check
        self._size = size
        self._heads: dict[bytes, RequestHead] = {}
        self.get = self._heads.get
        """Return the head of exactly these bytes, or None."""

    def parser(self) -> HeadParser:
        """Return the parser of a head that arrives in pieces."""
        return HeadParser(self._limits, self._check)

    def parse(self, text: bytes) -> RequestHead:
        """Parse and remember a complete head. Raises HttpError."""
        parser = self.parser()
        parser.feed(text)
        head = parser.finish()
        if len(text) <= _CACHED_HEAD_LIMIT_BYTES:
            if len(self._heads) >= self._size:
                del self._heads[next(iter(self._heads))]
            self._heads[text] = head
        return head


_ALIGNMENT_BYTES = 64
_LINE_LIMIT_BYTES = 4096
"""A chunk-size line with its extensions, and the trailer section."""
_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n").match
_SIZE_DIGITS = frozenset(b"0123456789abcdefABCDEF")


def allocate_body(length: int, binary_offset: int) -> memoryview:
    """Return a writable buffer of `length` bytes whose byte `binary_offset` is 64-byte aligned.

    The memory is not touched: the kernel provides it page by page as the body arrives, so a length that lies takes
    address space only. Raises HttpError(413) when even that is refused.
    """
    try:
        block = np.empty(length + _ALIGNMENT_BYTES, np.uint8)
    except MemoryError:
        raise HttpError(413, f"no memory for a request body of {length} bytes") from None
    start = -(block.ctypes.data + binary_offset) % _ALIGNMENT_BYTES
    return memoryview(block.data)[start : start + length]


class _Expect(enum.Enum):
    SIZE = enum.auto()
    DATA = enum.auto()
    DATA_END = enum.auto()
    TRAILER = enum.auto()


class ChunkedDecoder:
    """Decodes the chunked transfer coding (RFC 9112 7.1) as it arrives; extensions and trailers are dropped.

    Our own, because httptools does not report where in its input a message ended; pipelining needs that.
    """

    def __init__(self, limits: Http1Limits) -> None:
        self.body = bytearray()
        self.is_done = False
        self._limits = limits
        self._expect = _Expect.SIZE
        self._left = 0
        """Bytes of the current chunk that are still to come."""
        self._chunk_count = 0
        self._line = b""
        """The beginning of a line that is not complete."""
        self._trailer_bytes = 0

    def feed(self, piece: memoryview) -> int:
        """Decode from `piece` and return how many bytes were used: all, unless the body ended before.

        Raises HttpError: 400 for bad framing, 413 for a body beyond the limit.
        """
        position, end = 0, len(piece)
        while position < end and not self.is_done:
            if self._expect is _Expect.SIZE and not self._line:
                position += self._feed_whole_chunks(piece[position:])
                if position == end:
                    break
            if self._expect is _Expect.DATA:
                taken = piece[position : position + self._left]
                self.body += taken
                self._left -= len(taken)
                position += len(taken)
                if not self._left:
                    self._expect = _Expect.DATA_END
            else:
                position += self._feed_line(piece[position : position + _LINE_LIMIT_BYTES])
        return position

    def _feed_whole_chunks(self, piece: memoryview) -> int:
        """Take the chunks at the beginning of `piece` that are complete and return how many bytes that was."""
        # Tiny chunks cost time, not bytes: this is several times as fast as the general way, which is left with a
        # chunk that is cut off, the last one, and any invalid one.
        text, position = bytes(piece), 0
        limits, body, end = self._limits, self.body, len(piece)
        while (found := _SIZE_LINE(text, position, position + _LINE_LIMIT_BYTES)) is not None:
            length, start = int(found[1], 16), found.end()
            stop = start + length
            if not length or stop + 2 > end or not text.startswith(b"\r\n", stop):
                break
            if self._chunk_count >= limits.chunk_count or len(body) + length > limits.body_bytes:
                break
            self._chunk_count += 1
            body += text[start:stop]
            position = stop + 2
        return position

    def _feed_line(self, piece: memoryview) -> int:
        """Take up to the end of a line and return how many bytes that was."""
        known = len(self._line)
        line = self._line + bytes(piece)
        at = line.find(b"\n", known)
        if at < 0:
            if len(line) >= _LINE_LIMIT_BYTES:
                raise HttpError(400, "malformed chunked body: line too long")
            self._line = line
            return len(piece)
        self._line = b""
        # RFC 9112 2.2: a CR alone is invalid; others might take it for the end of the line.
        if not at or line.find(b"\r", 0, at) != at - 1:
            raise HttpError(400, "malformed chunked body: line does not end with CRLF, or has a CR before its end")
        self._take_line(line[: at - 1])
        return at + 1 - known

    def _take_line(self, line: bytes) -> None:
        if self._expect is _Expect.SIZE:
            self._begin_chunk(line)
        elif self._expect is _Expect.DATA_END:
            if line:
                raise HttpError(400, "malformed chunked body: chunk is longer than its size")
            self._expect = _Expect.SIZE
        elif line:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _LINE_LIMIT_BYTES:
                raise HttpError(431, "trailer section is too long")
        else:
            self.is_done = True

    def _begin_chunk(self, line: bytes) -> None:
        digits = line.partition(b";")[0].rstrip(b" \t")
        if not 0 < len(digits) <= 16 or not _SIZE_DIGITS.issuperset(digits):
            raise HttpError(400, f"malformed chunked body: bad chunk size {digits[:32]!r}")
        self._left = int(digits, 16)
        if not self._left:
            self._expect = _Expect.TRAILER
            return
        self._chunk_count += 1
        if self._chunk_count > self._limits.chunk_count:
            raise HttpError(400, f"request body has more than {self._limits.chunk_count} chunks")
        if len(self.body) + self._left > self._limits.body_bytes:
            raise HttpError(413, f"request body exceeds the limit of {self._limits.body_bytes} bytes")
        self._expect = _Expect.DATA

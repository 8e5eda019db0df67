"""Heads of HTTP/1.1 requests: request line and fields, parsed by llhttp, and a cache of whole heads.

Clients repeat their heads byte for byte, so a head that was seen before costs one look-up instead of a callback per
field. A head ends at the first empty line; where llhttp disagrees about that the request is refused, so nothing can
be smuggled past either of the two.
"""

import re
from collections.abc import Mapping
from urllib.parse import unquote

import httptools

from naiad.core.errors import excerpt
from naiad.frontend.http1_limits import Http1Limits
from naiad.wire.header_fields import HeaderFields, Headers
from naiad.wire.preface import TLS_REFUSAL, is_tls

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
        "target",
    )

    def __init__(self, method: str, target: str, headers: Mapping[bytes, bytes]) -> None:
        self.method = method
        self.target = target
        self.path = decode_path(target)
        self.headers = headers
        self.is_http_1_0 = False
        self.keep_alive = True
        self.is_chunked = False
        self.content_length = 0
        self.expects_continue = False
        self.binary_offset = 0
        """Where the binary tensors begin in the body (Inference-Header-Content-Length); 0 when unknown."""


class HeadParser:
    """Parses one head, in one piece or as it arrives."""

    def __init__(self, limits: Http1Limits) -> None:
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._is_complete = False

    # Callbacks of httptools.

    def on_url(self, piece: bytes) -> None:
        """Take a piece of the request target."""
        self._target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field."""
        self._fields.append((name, value))

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
        if len(self._fields) > self._limits.header_count:
            raise HttpError(431, f"request has more than {self._limits.header_count} header fields")

    def finish(self) -> RequestHead:
        """Return the head after its last byte was fed. Raises HttpError for what naiad does not take."""
        if not self._is_complete:
            raise HttpError(400, "malformed HTTP request: the head is incomplete")
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise HttpError(505, f"HTTP version {version} is not supported on this connection")
        headers = _join(self._fields)
        head = RequestHead(self._parser.get_method().decode("ascii"), self._target.decode("latin-1"), headers)
        head.is_http_1_0 = version == "1.0"
        head.keep_alive = self._keeps_alive(head, headers.get(b"connection", b""))
        hosts = sum(name.lower() == b"host" for name, _ in self._fields)
        if hosts > 1 or not (hosts or head.is_http_1_0):  # RFC 9112 3.2
            raise HttpError(400, f"the request has {hosts} Host fields, exactly one is needed")
        self._read_framing(head, headers)
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


def _join(fields: list[tuple[bytes, bytes]]) -> HeaderFields:
    headers = HeaderFields()
    headers.written = fields
    for name, value in fields:
        lower = name.lower()
        known = headers.get(lower)
        headers[lower] = value if known is None else known + b", " + value
    return headers


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
    """Heads by their bytes; bounded, forgets the oldest."""

    def __init__(self, limits: Http1Limits, *, size: int = 1024) -> None:
        self._limits = limits
        self._size = size
        self._heads: dict[bytes, RequestHead] = {}
        self.get = self._heads.get
        """Return the head of exactly these bytes, or None."""

    def parse(self, text: bytes) -> RequestHead:
        """Parse and remember a complete head. Raises HttpError."""
        parser = HeadParser(self._limits)
        parser.feed(text)
        head = parser.finish()
        if len(text) <= _CACHED_HEAD_LIMIT_BYTES:
            if len(self._heads) >= self._size:
                del self._heads[next(iter(self._heads))]
            self._heads[text] = head
        return head

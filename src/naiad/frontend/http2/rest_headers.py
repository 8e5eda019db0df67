"""REST over HTTP/2: request headers, response headers, and the state shared by the connections of an endpoint."""

from collections.abc import Callable
from email.utils import formatdate

from naiad.frontend.context import HttpContext, RejectEarly
from naiad.telemetry.metrics.responses import http_responses
from naiad.wire.header_fields import HeaderFields, Headers
from naiad.wire.http1 import decode_path
from naiad.wire.http2.headers import RequestHead, encode_fields

_CACHED_PREFIXES = 256


class RestHeaders:
    """The headers of a REST request; shared by all requests with the same header block."""

    __slots__ = ("binary_offset", "content_length", "expects_continue", "headers", "method", "path")

    def __init__(self, head: RequestHead) -> None:
        """Raises HttpError for a path that is not valid text."""
        self.method = head.method
        self.path = decode_path(head.path)
        self.headers = _fields_of(head)
        self.content_length = head.content_length
        self.expects_continue = self.headers.get(b"expect", b"").lower() == b"100-continue"
        offset = self.headers.get(b"inference-header-content-length", b"")
        self.binary_offset = int(offset) if offset.isdigit() and len(offset) < 20 else 0
        """Offset of the binary tensors in the body; 0 if unknown."""


def _fields_of(head: RequestHead) -> HeaderFields:
    fields = HeaderFields()
    fields.written = list(head.fields)
    for name, value in head.fields:
        known = fields.get(name)
        # RFC 9113 8.2.3: clients split cookies for better compression.
        separator = b"; " if name == b"cookie" else b", "
        fields[name] = value if known is None else known + separator + value
    if head.authority:
        fields[b"host"] = head.authority.encode("latin-1")  # RFC 9113 8.3.1
    return fields


class Http2ResponseHeaders:
    """Encodes and counts header blocks of responses; caches the blocks of successful responses, which repeat."""

    def __init__(self) -> None:
        self._prefixes: dict[object, bytes] = {}
        self._date = b""
        self.set_date(0.0)

    def set_date(self, wall_s: float) -> None:
        """Set the Date of the following responses; called about once a second."""
        self._date = encode_fields(((b"date", formatdate(wall_s, usegmt=True).encode()),))

    def complete(self, status: int, headers: Headers, length: int) -> bytes:
        """Return the headers of a response of `length` bytes."""
        return self.streamed(status, headers) + encode_fields(((b"content-length", b"%d" % length),))

    def streamed(self, status: int, headers: Headers) -> bytes:
        """Return the headers of a response of unknown length."""
        http_responses[status] += 1
        key = (status, headers) if type(headers) is tuple and status == 200 else None
        prefix = self._prefixes.get(key)
        if prefix is None:
            # RFC 9113 8.2.1: names are lower case.
            fields = [(name.lower(), value) for name, value in headers]
            prefix = encode_fields([(b":status", b"%d" % status), *fields])
            if key is not None:
                if len(self._prefixes) >= _CACHED_PREFIXES:
                    self._prefixes.clear()
                self._prefixes[key] = prefix
        # Blocks without a dynamic table can be joined.
        return prefix + self._date


class RestSide:
    """What the connections of an endpoint share for REST: the route handler and the body limit."""

    def __init__(
        self, handle: Callable[[HttpContext], None], body_bytes: int = 1 << 34, reject: RejectEarly | None = None
    ) -> None:
        """`reject` checks requests before their bodies are read."""
        self.handle = handle
        self.reject = reject
        self.body_bytes = body_bytes
        self.response_headers = Http2ResponseHeaders()

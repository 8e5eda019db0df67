"""HTTP/1.1 responses as bytes: status line, fields and framing; repeated headers are cached."""

import http
from collections.abc import Sequence
from email.utils import formatdate

from naiad.core.tensor import Buffer
from naiad.telemetry.metrics.responses import http_responses
from naiad.wire.header_fields import Headers

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus}
_CACHED_PREFIXES = 256
COPY_LIMIT_BYTES = 32768
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
        if len(part) <= COPY_LIMIT_BYTES:
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
    return [b"".join(buffers)] if length <= COPY_LIMIT_BYTES else buffers

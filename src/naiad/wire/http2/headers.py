"""Header blocks as they come in frames (RFC 9113 6.2, 6.10): HEADERS and the CONTINUATION frames that follow it.

Header fields of HTTP/2: the head of a request, its rules (RFC 9113 8.2, 8.3), and the encoding of answers.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from hpack.table import HeaderTable

from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import (
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    FLAG_PADDED,
    FLAG_PRIORITY,
    Http2Code,
    Http2Error,
    dependency,
)

Field: TypeAlias = tuple[bytes, bytes]
Fields: TypeAlias = tuple[Field, ...]

# RFC 9113 8.2.1: at least no upper case, control, space, DEL or non-ASCII; a colon only in front (pseudo-fields).
_NAME = re.compile(rb":?[!-9;-@\[-~]+")
_FORBIDDEN_IN_VALUE = re.compile(rb"[\x00\r\n]")
_REQUEST_PSEUDO = frozenset((b":method", b":scheme", b":authority", b":path"))
# RFC 9113 8.2.2: these belong to one HTTP/1.1 connection.
_CONNECTION_SPECIFIC = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)


class Head:
    """The fields of a message without its pseudo-fields, in order."""

    __slots__ = ("content_length", "fields")

    def __init__(self, fields: Fields, content_length: int) -> None:
        self.fields = fields
        self.content_length = content_length
        """-1 when not given."""

    def field(self, name: bytes) -> bytes | None:
        """Return the first value of `name` (lower case), None when there is none."""
        for key, value in self.fields:
            if key == name:
                return value
        return None


class RequestHead(Head):
    """The head of a request; immutable but for `memo`, which belongs to the transport.

    Heads are shared by all requests whose header block repeats, so what a transport derives from one it derives once.
    """

    __slots__ = ("authority", "error", "is_plain", "is_too_large", "memo", "method", "path", "scheme")

    def __init__(
        self, pseudo: dict[bytes, bytes], fields: Fields, content_length: int, error: str, is_too_large: bool
    ) -> None:
        super().__init__(fields, content_length)
        self.method = pseudo.get(b":method", b"").decode("latin-1")
        self.scheme = pseudo.get(b":scheme", b"").decode("latin-1")
        self.authority = pseudo.get(b":authority", b"").decode("latin-1")
        self.path = pseudo.get(b":path", b"").decode("latin-1")
        self.error = error
        """Why the request is malformed (RFC 9113 8.1.1); empty when it is not."""
        self.is_too_large = is_too_large
        """Legal or not, it is over the limit of the header list."""
        self.is_plain = not error and not is_too_large
        self.memo: Any = None


class ResponseHead(Head):
    """The head of a response."""

    __slots__ = ("error", "status")

    def __init__(self, status: int, fields: Fields, content_length: int, error: str) -> None:
        super().__init__(fields, content_length)
        self.status = status
        """0 before the head has arrived."""
        self.error = error
        """Why the response is malformed (RFC 9113 8.1.1); empty when it is not."""


NO_RESPONSE_HEAD = ResponseHead(0, (), -1, "")


def is_grpc_content_type(value: bytes | None) -> bool:
    """Return whether a content-type is application/grpc, with or without a +format or parameters."""
    return value is not None and value[:16] == b"application/grpc" and value[16:17] in (b"", b"+", b";")


KEPT_OF_TOO_MANY = frozenset((b":method", b":path", b"content-type"))
"""What the answer to a request with too many fields depends on."""


def too_large_head(fields: Fields) -> RequestHead:
    """Return the head of a request above a limit, of what is kept of its fields.

    Nothing else matters for its answer, and checking costs more than decoding.
    """
    pseudo = {name: value for name, value in fields if name in (b":method", b":path")}
    kept = tuple(field for field in fields if field[0] == b"content-type")
    return RequestHead(pseudo, kept, -1, "", is_too_large=True)


def parse_request_head(fields: Fields) -> RequestHead:
    """Return the head of a request; one that breaks a rule has `error`."""
    # gRPC's PROTOCOL-HTTP2 lets metadata have outer spaces, which RFC 9113 8.2.1 forbids, and strips them.
    strips_values = any(name == b"content-type" and is_grpc_content_type(value.strip()) for name, value in fields)
    pseudo: dict[bytes, bytes] = {}
    regular: list[Field] = []
    error = ""
    for name, value in fields:
        if name[:1] == b":":
            error = error or _pseudo_error(name, pseudo, bool(regular))
            pseudo[name] = value
        else:
            if strips_values:
                value = value.strip(b" \t")  # noqa: PLW2901
            regular.append((name, value))
        error = error or _field_error(name, value)
    content_length, length_error = _content_length(regular)
    error = error or length_error or _missing_pseudo(pseudo)
    return RequestHead(pseudo, tuple(regular), content_length, error, is_too_large=False)


def parse_response_head(fields: Fields) -> ResponseHead:
    """Return the head of a response; one that breaks a rule has `error`."""
    status, error = b"", ""
    regular: list[Field] = []
    for name, value in fields:
        if name[:1] != b":":
            regular.append((name, value))
            error = error or _field_error(name, value)
        elif name != b":status" or status or regular:
            error = error or f"unknown, repeated or late pseudo-field {name[:200]!r}"
        else:
            status = value
    content_length, length_error = _content_length(regular)
    if not (status.isdigit() and len(status) == 3):
        error = error or f"invalid :status {status[:200]!r}"
    return ResponseHead(0 if error else int(status), tuple(regular), content_length, error or length_error)


def trailers_error(fields: Fields) -> str:
    """Return why `fields` are no legal trailers, empty when they are."""
    for name, value in fields:
        if name[:1] == b":":
            return f"pseudo-field {name[:200]!r} in trailers"
        error = _field_error(name, value)
        if error:
            return error
    return ""


def _pseudo_error(name: bytes, seen: dict[bytes, bytes], after_regular: bool) -> str:
    if name not in _REQUEST_PSEUDO:
        return f"unknown pseudo-field {name[:200]!r}"
    if name in seen:
        return f"repeated pseudo-field {name[:200]!r}"
    return f"pseudo-field {name[:200]!r} after a regular field" if after_regular else ""


def _field_error(name: bytes, value: bytes) -> str:
    if not _NAME.fullmatch(name):
        return f"invalid field name {name[:200]!r}"
    if _FORBIDDEN_IN_VALUE.search(value) or value != value.strip(b" \t"):
        return f"invalid value of field {name[:200]!r}"
    if name in _CONNECTION_SPECIFIC or (name == b"te" and value.lower() != b"trailers"):
        return f"connection-specific field {name[:200]!r}"
    return ""


def _missing_pseudo(pseudo: dict[bytes, bytes]) -> str:
    method = pseudo.get(b":method", b"")
    if not method:
        return "no :method"
    if method == b"CONNECT":  # RFC 9113 8.5
        return "" if b":authority" in pseudo and len(pseudo) == 2 else "malformed CONNECT"
    if not pseudo.get(b":scheme"):
        return "no :scheme"
    path = pseudo.get(b":path", b"")
    if not path or (path[:1] != b"/" and not (path == b"*" and method == b"OPTIONS")):
        return "no valid :path"
    return ""


def _content_length(fields: Sequence[Field]) -> tuple[int, str]:
    values = {value for name, value in fields if name == b"content-length"}
    if not values:
        return -1, ""
    value = values.pop()
    if values or not value.isdigit() or len(value) > 18:
        return -1, "invalid content-length"
    return int(value), ""


def encode_fields(fields: Iterable[Field]) -> bytes:
    """Return a header block without the dynamic table, so that it is valid on any connection at any time."""
    return b"".join(map(_encode_field, fields))


def _encode_field(field: Field) -> bytes:
    name, value = field
    index, values = HeaderTable.STATIC_TABLE_MAPPING.get(name, (0, {}))
    exact = values.get(value, 0)
    if exact:
        return _encode_integer(exact, 7, 0x80)
    encoded_name = _encode_integer(index, 4, 0) if index else b"\x00" + _encode_string(name)
    return encoded_name + _encode_string(value)


def _encode_string(text: bytes) -> bytes:
    return _encode_integer(len(text), 7, 0) + text


def _encode_integer(number: int, prefix_bits: int, pattern: int) -> bytes:
    limit = (1 << prefix_bits) - 1
    if number < limit:
        return bytes((pattern | number,))
    encoded = bytearray((pattern | limit,))
    number -= limit
    while number >= 128:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_PRIORITY_BYTES = 5


class HeaderBlock(NamedTuple):
    """A whole block, not decoded yet."""

    stream_id: int
    data: bytes
    ends_stream: bool
    depends_on_itself: bool
    """Its priority fields make the stream its own parent (RFC 7540 5.3.1)."""


class HeaderBlocks:
    """Puts header blocks together, one at a time."""

    __slots__ = ("_begun", "_data", "_frames", "_limits", "open_stream_id")

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._data = bytearray()
        self._frames = 0
        self._begun: HeaderBlock | None = None
        self.open_stream_id = 0
        """The stream of a block that is not complete; 0 when none is."""

    def begin(self, flags: int, stream_id: int, payload: memoryview) -> HeaderBlock | None:
        """Take a HEADERS frame; return its block unless CONTINUATION frames follow. Raises Http2Error."""
        if not stream_id & 1:  # RFC 9113 5.1.1: also stream 0
            raise Http2Error(Http2Code.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        fragment = _unpad(flags, payload)
        depends_on_itself = False
        if flags & FLAG_PRIORITY:
            if len(fragment) < _PRIORITY_BYTES:
                raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "HEADERS too short for its priority fields")
            depends_on_itself = dependency(fragment) == stream_id
            fragment = fragment[_PRIORITY_BYTES:]
        block = HeaderBlock(stream_id, bytes(fragment), bool(flags & FLAG_END_STREAM), depends_on_itself)
        if flags & FLAG_END_HEADERS:
            return block
        self._begun = block
        self._data = bytearray(block.data)
        self._frames = 0
        self.open_stream_id = stream_id
        return None

    def go_on(self, flags: int, payload: memoryview) -> HeaderBlock | None:
        """Take a CONTINUATION frame; return the block when it is complete. Raises Http2Error."""
        begun, limits = self._begun, self._limits
        if begun is None:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._data += payload
        self._frames += 1
        if self._frames > limits.continuation_frames or len(self._data) > limits.discarded_block_bytes:
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, "header block in too many or too large CONTINUATION frames")
        if not flags & FLAG_END_HEADERS:
            return None
        block = begun._replace(data=bytes(self._data))
        self._begun = None
        self._data = bytearray()
        self.open_stream_id = 0
        return block


def _unpad(flags: int, payload: memoryview) -> memoryview:
    if not flags & FLAG_PADDED:
        return payload
    if not payload:
        raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "padded HEADERS without a pad length")
    padding = payload[0]
    if padding >= len(payload):  # RFC 9113 6.2
        raise Http2Error(Http2Code.PROTOCOL_ERROR, "padding exceeds the HEADERS frame")
    return payload[1 : len(payload) - padding]

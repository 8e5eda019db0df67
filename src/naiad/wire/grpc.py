"""gRPC over HTTP/2: length-prefixed messages, timeouts, status text (the protocol's "PROTOCOL-HTTP2" document)."""

import enum
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from naiad.wire.compression import (
    MAX_INLINE_BYTES,
    MAX_INLINE_PLAIN_BYTES,
    WINDOW_BITS,
    CorruptError,
    TooLargeError,
    decompress,
    most_plain_bytes,
    plain_limit,
)
from naiad.wire.http2.headers import Field, encode_fields

if TYPE_CHECKING:
    from naiad.core.tensor import Buffer

PREFIX = struct.Struct(">BI")
PREFIX_BYTES = 5

_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_UNIT_NS = {b"H": 3_600_000_000_000, b"M": 60_000_000_000, b"S": 1_000_000_000, b"m": 1_000_000, b"u": 1_000, b"n": 1}
ENCODINGS = (b"gzip", b"deflate")
"""Compressions of messages, the preferred first."""
_MUST_ESCAPE = re.compile(rb"[^\x20-\x24\x26-\x7e]")
_MAX_STATUS_TEXT_BYTES = 4096  # clients refuse long header lists

_BEGINNING_BYTES = 4096
"""Enough for the fields before the tensors of a request."""
MAX_DECOMPRESSION_RATIO = 200
"""Default of --grpc-max-decompression-ratio."""
_ANY_RATIO_BYTES = 64 * 1024 * 1024
"""A message up to this size may be compressed by any ratio."""
_EARNED_BYTES = 1024 * 1024
"""So much of a message must have come before memory for all of it is asked for."""

ACCEPTED_ENCODINGS = b"identity, deflate, gzip"


class GrpcStatus(enum.IntEnum):
    """Status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GrpcError(Exception):
    """A call that cannot go on, with the status it ends with."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


HEADER_FIELDS: Sequence[Field] = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", ACCEPTED_ENCODINGS),
)
HEADER_BLOCK = encode_fields(HEADER_FIELDS)
"""The header block of every answer."""
COMPRESSED_HEADER_BLOCKS: Mapping[bytes, bytes] = {
    encoding: encode_fields((*HEADER_FIELDS, (b"grpc-encoding", encoding))) for encoding in ENCODINGS
}
"""The header block of answers with compressed messages, by encoding."""
OK_TRAILER_BLOCK = encode_fields(((b"grpc-status", b"0"),))


def parse_timeout_ns(value: bytes) -> int:
    """Return a grpc-timeout in nanoseconds. Raises GrpcError(INTERNAL) when it is malformed."""
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise GrpcError(
            GrpcStatus.INTERNAL, f"malformed grpc-timeout {value[:32]!r}: 1 to 8 digits and one of HMSmun"
        )
    # A deadline of 0 means "none" elsewhere; 1 ns has passed as well.
    return max(1, int(match[1]) * _UNIT_NS[match[2]])


def encode_trailers(status: int, message: str = "", fields: Iterable[Field] = (), *, is_only: bool = False) -> bytes:
    """Return the trailer block of a status; with `is_only` it is the whole answer.

    `fields` are metadata as they go on the wire: lower-case names, values of "-bin" names in base64.
    """
    if not status and not message and not fields and not is_only:
        return OK_TRAILER_BLOCK
    block = list(HEADER_FIELDS) if is_only else []
    block.append((b"grpc-status", str(int(status)).encode()))
    if message:
        block.append((b"grpc-message", encode_status_text(message)))
    block.extend(fields)
    return encode_fields(block)


def encode_status_text(text: str) -> bytes:
    """Return the percent-encoded form of a status message, cut to what clients accept."""
    raw = text.encode("utf-8", "replace")
    if len(raw) > _MAX_STATUS_TEXT_BYTES:
        raw = raw[: _MAX_STATUS_TEXT_BYTES - 3].decode("utf-8", "ignore").encode() + b"..."
    encoded = _MUST_ESCAPE.sub(lambda match: b"%%%02X" % match[0][0], raw)
    # HTTP/2 forbids values that begin or end with a space (RFC 9113 8.2.1).
    stripped = encoded.strip(b" ")
    if len(stripped) == len(encoded):
        return encoded
    left = len(encoded) - len(encoded.lstrip(b" "))
    return b"%20" * left + stripped + b"%20" * (len(encoded) - left - len(stripped))


class MessageAssembler:
    """Cuts a request body into messages.

    A message that lies within one piece of the body is a view on it. Any other is collected, see `_Collector`.
    A small compressed message is decompressed; one that would take long comes out as `CompressedMessage`.
    """

    __slots__ = (
        "_collector",
        "_is_compressed",
        "_length",
        "_max_message_bytes",
        "_max_plain_bytes",
        "_max_ratio",
        "_prefix",
        "_window_bits",
    )

    def __init__(
        self,
        max_message_bytes: int,
        encoding: bytes | None = None,
        *,
        max_decompressed_bytes: int | None = None,
        max_ratio: int = MAX_DECOMPRESSION_RATIO,
    ) -> None:
        self._max_ratio = max_ratio
        self._max_message_bytes = max_message_bytes
        self._max_plain_bytes = min(max_message_bytes, max_decompressed_bytes or max_message_bytes)
        self._window_bits = window_bits(encoding)
        self._prefix = bytearray()
        self._collector: _Collector | None = None
        self._length = 0
        self._is_compressed = False

    @property
    def pending_bytes(self) -> int:
        """Bytes held of a message that is not complete."""
        return len(self._prefix) + (0 if self._collector is None else self._collector.filled_bytes)

    def beginning(self) -> memoryview:
        """Return what has come of a plain message that is not complete; empty for a compressed one."""
        if self._collector is None or self._is_compressed:
            return memoryview(b"")
        return self._collector.beginning()

    def feed(self, data: memoryview) -> "list[Buffer | CompressedMessage]":
        """Take a piece of the body and return the messages it completes. Raises GrpcError: RESOURCE_EXHAUSTED above
        the size limit, INTERNAL for a malformed prefix or bad compression.
        """
        messages: list[Buffer | CompressedMessage] = []
        position, end = 0, len(data)
        while position < end:
            if self._collector is not None:
                position = self._fill(self._collector, data, position, messages)
            elif self._prefix or end - position < PREFIX_BYTES:
                position = self._read_prefix(data, position, messages)
            else:
                self._start(*PREFIX.unpack_from(data, position))
                position += PREFIX_BYTES
                stop = position + self._length
                if stop <= end:
                    messages.append(self._finish(data[position:stop]))
                    position = stop
                else:
                    self._collector = _Collector(self._length)
        return messages

    def finish(self) -> None:
        """End the body. Raises GrpcError(INTERNAL) when a message is cut short."""
        if self._prefix or self._collector is not None:
            raise GrpcError(GrpcStatus.INTERNAL, "the request ends within a message")

    def _read_prefix(self, data: memoryview, position: int, messages: "list[Buffer | CompressedMessage]") -> int:
        stop = min(len(data), position + PREFIX_BYTES - len(self._prefix))
        self._prefix += data[position:stop]
        if len(self._prefix) == PREFIX_BYTES:
            self._start(*PREFIX.unpack(self._prefix))
            self._prefix.clear()
            if self._length:
                self._collector = _Collector(self._length)
            else:
                messages.append(self._finish(data[:0]))
        return stop

    def _start(self, flag: int, length: int) -> None:
        if flag > 1:
            raise GrpcError(GrpcStatus.INTERNAL, f"malformed message prefix: compressed flag {flag}")
        if flag and self._window_bits == 0:
            raise GrpcError(GrpcStatus.INTERNAL, "compressed message without a grpc-encoding")
        if length > self._max_message_bytes:
            raise _too_large(length, self._max_message_bytes)
        self._is_compressed = flag == 1
        self._length = length

    def _fill(
        self, collector: "_Collector", data: memoryview, position: int, messages: "list[Buffer | CompressedMessage]"
    ) -> int:
        stop = min(len(data), position + self._length - collector.filled_bytes)
        collector.append(data[position:stop])
        if collector.filled_bytes == self._length:
            self._collector = None
            messages.append(self._finish(collector.message()))
        return stop

    def _finish(self, message: memoryview) -> "Buffer | CompressedMessage":
        if not self._is_compressed:
            return message
        limit = plain_limit(len(message), self._max_plain_bytes, self._max_ratio, _ANY_RATIO_BYTES)
        compressed = CompressedMessage(message, self._window_bits, limit)
        plain = compressed.decompressed_if_small()
        return compressed if plain is None else plain


class CompressedMessage:
    """A message that is still compressed."""

    __slots__ = ("_bits", "_data", "_max_plain_bytes")

    def __init__(self, data: memoryview, bits: int, max_plain_bytes: int) -> None:
        self._data = data
        self._bits = bits
        self._max_plain_bytes = max_plain_bytes

    def __len__(self) -> int:
        """Bytes of the compressed message."""
        return len(self._data)

    @property
    def most_plain_bytes(self) -> int:
        """How much memory its decompression may take."""
        return most_plain_bytes(self._data, self._bits, self._max_plain_bytes)

    def decompressed_if_small(self) -> "Buffer | None":
        """Return the message when that takes no time worth mentioning. Raises GrpcError as `decompress` does."""
        if len(self._data) > MAX_INLINE_BYTES:
            return None
        if self._max_plain_bytes <= MAX_INLINE_PLAIN_BYTES:
            return self.decompress()
        try:
            return decompress(self._data, self._bits, MAX_INLINE_PLAIN_BYTES)
        except TooLargeError:
            return None
        except CorruptError as error:
            raise _corrupt(error) from None

    def decompress(self) -> "Buffer":
        """Return the message.

        Raises GrpcError: RESOURCE_EXHAUSTED when it is larger than allowed, INTERNAL when the data is corrupt.
        """
        try:
            return decompress(self._data, self._bits, self._max_plain_bytes)
        except TooLargeError:
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"the message exceeds the limit of {self._max_plain_bytes} bytes when it is decompressed; send less",
            ) from None
        except CorruptError as error:
            raise _corrupt(error) from None


def _corrupt(error: CorruptError) -> GrpcError:
    return GrpcError(GrpcStatus.INTERNAL, f"cannot decompress the message: {error}")


class _Collector:
    """A message as it arrives.

    It begins in a bytearray that grows with what comes, for any announced length. A peer that has sent
    `_EARNED_BYTES` gets a block of the announced length: the kernel provides it page by page, and numpy asks for huge
    pages, which is several times faster than growing. A length that lies then takes address space only.
    """

    __slots__ = ("_block", "_grown", "_length", "filled_bytes")

    def __init__(self, length: int) -> None:
        self._length = length
        self._grown = bytearray()
        self._block: memoryview | None = None
        self.filled_bytes = 0

    def append(self, piece: memoryview) -> None:
        """Take the next bytes, which are not more than are missing. Raises GrpcError when there is no memory."""
        filled = self.filled_bytes + len(piece)
        if self._block is None and filled > _EARNED_BYTES:
            self._block = _allocate(self._length)
            self._block[: self.filled_bytes] = self._grown
            self._grown = bytearray()
        if self._block is None:
            self._grown += piece
        else:
            self._block[self.filled_bytes : filled] = piece
        self.filled_bytes = filled

    def beginning(self) -> memoryview:
        """Return a copy of the first bytes, as far as they have come."""
        known = self._grown if self._block is None else self._block[: self.filled_bytes]
        return memoryview(bytes(known[:_BEGINNING_BYTES]))

    def message(self) -> memoryview:
        """Return the whole message."""
        return memoryview(self._grown) if self._block is None else self._block


def _allocate(size: int) -> memoryview:
    try:
        return memoryview(np.empty(size, np.uint8).data)
    except MemoryError:
        raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, f"no memory for a message of {size} bytes") from None


def window_bits(encoding: bytes | None) -> int:
    """Return zlib's window bits for a grpc-encoding, 0 for identity. Raises GrpcError(UNIMPLEMENTED) for others."""
    if encoding is None or encoding == b"identity":
        return 0
    if encoding not in ENCODINGS:
        name = encoding[:64].decode("latin-1")
        accepted = ACCEPTED_ENCODINGS.decode()
        raise GrpcError(GrpcStatus.UNIMPLEMENTED, f"grpc-encoding '{name}' is not supported; use one of: {accepted}")
    return WINDOW_BITS[encoding]


def _too_large(length: int, limit: int) -> GrpcError:
    return GrpcError(
        GrpcStatus.RESOURCE_EXHAUSTED, f"Received message larger than max ({length} vs. {limit} bytes); send less"
    )


_TIMEOUT_UNITS = ((b"n", 1), (b"u", 1_000), (b"m", 1_000_000), (b"S", 1_000_000_000), (b"M", 60_000_000_000))
_MAX_TIMEOUT_DIGITS = 99_999_999
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_STATUS_OF_HTTP = {
    400: GrpcStatus.INTERNAL,
    401: GrpcStatus.UNAUTHENTICATED,
    403: GrpcStatus.PERMISSION_DENIED,
    404: GrpcStatus.UNIMPLEMENTED,
    429: GrpcStatus.UNAVAILABLE,
    502: GrpcStatus.UNAVAILABLE,
    503: GrpcStatus.UNAVAILABLE,
    504: GrpcStatus.UNAVAILABLE,
}
"""What a response without grpc-status means, from proxies for example (gRPC's "http-grpc-status-mapping")."""


def encode_timeout(timeout_ns: int) -> bytes:
    """Return a grpc-timeout of at least `timeout_ns`, in the finest unit that has room for it."""
    for unit, size_ns in _TIMEOUT_UNITS:
        count = -(-timeout_ns // size_ns)
        if count <= _MAX_TIMEOUT_DIGITS:
            return b"%d%s" % (max(count, 0), unit)
    hours = -(-timeout_ns // _UNIT_NS[b"H"])
    return b"%dH" % min(hours, _MAX_TIMEOUT_DIGITS)


def request_fields(path: str, authority: str, scheme: str, metadata: Iterable[Field] = ()) -> list[Field]:
    """Return the header fields of a call without a deadline; `encode_timeout` makes the value of `grpc-timeout`.

    `metadata` are as they go on the wire: lower-case names, values of "-bin" names in base64.
    """
    return [
        (b":method", b"POST"),
        (b":scheme", scheme.encode()),
        (b":path", path.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *metadata,
    ]


def frame_message(parts: "Sequence[Buffer]") -> "list[Buffer]":
    """Return a message with its prefix; `parts` are not copied. Raises ValueError for 4 GiB or more."""
    size = sum(map(len, parts))
    if size >= 1 << 32:
        raise ValueError(f"a gRPC message of {size} bytes is too large; its length must fit into 32 bits")
    return [PREFIX.pack(0, size), *parts]


def decode_status_text(encoded: bytes) -> str:
    """Return a status message; the inverse of `encode_status_text`. Malformed escapes stay as they are."""
    return _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), encoded).decode("utf-8", "replace")


def call_status(http_status: int, head: Iterable[Field], trailers: Iterable[Field]) -> tuple[int, str]:
    """Return status and message of a finished call; a response without a body has them in its headers."""
    found = dict((*head, *trailers))
    status = found.get(b"grpc-status")
    if status is not None and status.isdigit() and len(status) < 10:
        return int(status), decode_status_text(found.get(b"grpc-message", b""))
    if http_status == 200:
        return GrpcStatus.UNKNOWN, "the server ended the call without a grpc-status"
    return _STATUS_OF_HTTP.get(http_status, GrpcStatus.UNKNOWN), f"the server answered with HTTP status {http_status}"

"""HTTP/2 frames: numbers of RFC 9113, errors, the bytes of sent frames, and received bytes that wait."""

import enum
import struct

FRAME_HEADER_BYTES = 9
# The 24-bit length and the 8-bit type are read and written as one number: length << 8 | type.
FRAME_HEADER = struct.Struct(">IBI")
STREAM_ID_MASK = 0x7FFFFFFF
MAX_WINDOW = 0x7FFFFFFF
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_BYTES = 16_384

DATA = 0
HEADERS = 1
PRIORITY = 2
RST_STREAM = 3
SETTINGS = 4
PUSH_PROMISE = 5
PING = 6
GOAWAY = 7
WINDOW_UPDATE = 8
CONTINUATION = 9

FLAG_ACK = 0x1
FLAG_END_STREAM = 0x1
FLAG_END_HEADERS = 0x4
FLAG_PADDED = 0x8
FLAG_PRIORITY = 0x20

SETTING = struct.Struct(">HI")
SETTING_HEADER_TABLE_SIZE = 1
SETTING_ENABLE_PUSH = 2
SETTING_MAX_CONCURRENT_STREAMS = 3
SETTING_INITIAL_WINDOW_SIZE = 4
SETTING_MAX_FRAME_SIZE = 5
SETTING_MAX_HEADER_LIST_SIZE = 6

UINT32 = struct.Struct(">I")


class Http2Code(enum.IntEnum):
    """Error codes of RFC 9113 section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Http2Error(Exception):
    """A connection error (RFC 9113 5.4.1): GOAWAY has been queued and the connection must be closed."""

    def __init__(self, code: Http2Code, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


class StreamError(Exception):
    """A stream error (RFC 9113 5.4.2): the stream is reset, the connection goes on. Stays inside `wire`."""

    def __init__(self, stream_id: int, code: Http2Code) -> None:
        super().__init__(f"stream {stream_id}: {code.name}")
        self.stream_id = stream_id
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return the bytes of one frame."""
    return FRAME_HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, UINT32.pack(increment))


def rst_stream(stream_id: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, UINT32.pack(code))


def goaway(last_stream_id: int, code: int, debug: str = "") -> bytes:
    """Return a GOAWAY frame whose debug data is `debug`."""
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream_id, code) + debug.encode("utf-8", "replace")[:256])


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(key, value) for key, value in values.items()))


SETTINGS_ACK = frame(SETTINGS, FLAG_ACK, 0)


def dependency(priority: bytes | memoryview) -> int:
    """Return the stream that priority fields (RFC 7540 6.3) make the parent."""
    stream_id: int = UINT32.unpack_from(priority)[0] & STREAM_ID_MASK
    return stream_id


_SLICE_BYTES = 16 * 1024
_SLOW_SLICE_BYTES = 2 * 1024


class UnreadBytes:
    """Received bytes that are not handled yet: an incomplete frame, or the rest behind a slice."""

    __slots__ = ("_position", "needed_bytes", "rest", "slice_bytes", "tail")

    def __init__(self) -> None:
        self.slice_bytes = _SLICE_BYTES
        """Frames that begin in this many bytes are handled at a time."""
        self.rest = b""
        """Bytes that no slice has reached yet, from `_position` on."""
        self._position = 0
        self.tail = bytearray()
        """The begin of an incomplete frame."""
        self.needed_bytes = 0
        """Length of the tail with which the frame can be handled."""

    def slow_down(self, is_slow: bool) -> None:
        """Make slices small for a peer whose bytes take long, or large again."""
        self.slice_bytes = _SLOW_SLICE_BYTES if is_slow else _SLICE_BYTES

    def join(self, data: bytes) -> tuple[bytes, int] | None:
        """Take back what is kept, with `data` behind it: the bytes and the position to go on at.

        None while the frame is still incomplete.
        """
        if self.rest:
            begin, rest = self._position, self.rest
            self.rest = b""
            return (rest[begin:] + data, 0) if data else (rest, begin)
        self.tail += data
        if len(self.tail) < self.needed_bytes:
            return None
        joined = bytes(self.tail)
        self.tail.clear()
        return joined, 0

    def postpone(self, data: bytes) -> None:
        """Keep bytes that no slice has looked at, behind what is kept."""
        if self.rest:
            self.rest = self.rest[self._position :] + data
        elif self.tail:
            self.rest = bytes(self.tail) + data
            self.tail.clear()
        else:
            self.rest = data
        self._position = 0

    def take(self) -> bytes:
        """Take back the bytes that no slice has reached."""
        rest, self.rest = self.rest[self._position :], b""
        return rest

    @property
    def rest_bytes(self) -> int:
        """Number of bytes that no slice has reached."""
        return len(self.rest) - self._position if self.rest else 0

    def keep(self, data: bytes, position: int, limit: int) -> None:
        """Keep the bytes from `position` on: a slice ended at `limit`, or a frame is incomplete."""
        end = len(data)
        if limit <= position < end - 8:
            self.rest, self._position = data, position
        elif position < end:
            self.keep_tail(data, position, self.needed_bytes)

    def keep_tail(self, data: bytes, position: int, needed_bytes: int) -> None:
        """Keep the begin of a frame until `needed_bytes` of it have arrived, at least its header."""
        self.tail += memoryview(data)[position:]
        self.needed_bytes = needed_bytes if len(self.tail) >= FRAME_HEADER_BYTES else FRAME_HEADER_BYTES

    def clear(self) -> None:
        """Drop everything."""
        self.rest = b""
        self.tail.clear()

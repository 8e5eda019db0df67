"""HTTP/2 frames: numbers of RFC 9113, errors, and the bytes of frames that this server sends."""

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

"""Header blocks as they come in frames (RFC 9113 6.2, 6.10): HEADERS and the CONTINUATION frames that follow it."""

from typing import NamedTuple

from naiad.wire.http2_frames import (
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    FLAG_PADDED,
    FLAG_PRIORITY,
    Http2Code,
    Http2Error,
    dependency,
)
from naiad.wire.limits import Http2Limits

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
        if self._frames > limits.continuation_frames or len(self._data) > 2 * limits.header_list_bytes:
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

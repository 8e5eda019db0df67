"""Received bytes that a connection has not handled yet: an incomplete frame, or the rest behind a slice."""

from naiad.wire.http2 import frames as wire

_SLICE_BYTES = 16 * 1024
_SLOW_SLICE_BYTES = 2 * 1024


class UnreadBytes:
    """Keeps the end of received bytes until more arrive, or until the next slice is handled."""

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
        self.needed_bytes = needed_bytes if len(self.tail) >= wire.FRAME_HEADER_BYTES else wire.FRAME_HEADER_BYTES

    def clear(self) -> None:
        """Drop everything."""
        self.rest = b""
        self.tail.clear()

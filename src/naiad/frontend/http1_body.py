"""Bodies of HTTP/1.1 requests: a buffer for a body of known length, and the decoder of chunked bodies."""

import enum
import re

import numpy as np

from naiad.frontend.http1_head import HttpError
from naiad.frontend.http1_limits import Http1Limits

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

    Ours because httptools does not tell where in its input a message ended, which pipelining needs.
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
        # chunk that is cut off, the last one, and whatever is wrong.
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
        if line.find(b"\r", 0, at) != at - 1:
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

"""What a held call has received and not handed over: it waits until the service takes messages again."""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from naiad.core.tensor import Buffer
    from naiad.wire.grpc import CompressedMessage
    from naiad.wire.http2_headers import Fields

_CHUNK_BYTES = 64 * 1024


class HeldBody:
    """Complete messages first, then the bytes that came after them. Bounded by the stream's window."""

    __slots__ = ("_chunks", "end_trailers", "messages", "unread_bytes")

    def __init__(self) -> None:
        self.messages: deque[Buffer | CompressedMessage] = deque()
        """Cut out of the piece of the body during which the call was held."""
        self._chunks: deque[bytearray] = deque()
        self.unread_bytes = 0
        """Bytes that are not cut into messages yet."""
        self.end_trailers: Fields | None = None
        """Set when the peer has ended its side."""

    def append(self, data: memoryview) -> None:
        """Keep a copy of received bytes."""
        # Small pieces share a chunk: a peer may send its window byte by byte.
        if self._chunks and len(self._chunks[-1]) < _CHUNK_BYTES:
            self._chunks[-1].extend(data)
        else:
            self._chunks.append(bytearray(data))
        self.unread_bytes += len(data)

    def take_chunk(self) -> memoryview:
        """Return the oldest bytes; there are some when `unread_bytes` says so."""
        chunk = self._chunks.popleft()
        self.unread_bytes -= len(chunk)
        return memoryview(chunk)

"""The sending side of an HTTP/2 connection: frames, the peer's windows, and what waits for them (RFC 9113 5.2, 6.9).

Rules: data that fits the windows becomes frames at once. The rest waits in its stream's queue. Streams whose own
window is open take turns. Frames collect in `take`'s list until the transport writes them.

The window of a stream is `stream.window_offset + peer_window`: a change of SETTINGS_INITIAL_WINDOW_SIZE, which
applies to all open streams (RFC 9113 6.9.2), changes one number. Only streams that wait for their window are looked
at.
"""

from collections import deque
from collections.abc import Sequence

from naiad.core.tensor import Buffer
from naiad.wire.http2.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    FRAME_HEADER,
    HEADERS,
    MAX_WINDOW,
    Http2Code,
    Http2Error,
    StreamError,
    frame,
    rst_stream,
)
from naiad.wire.http2.stream_state import Stream

_TURN_BYTES = 256 * 1024
_DRIP_BYTES = 256
_REMEMBERED_RESETS = 1024
_MOST_DROPPING = 256
_JOINED_BYTES = 64 * 1024
_UNCOPIED_BYTES = 8 * 1024  # measured: below it, copying is cheaper than one more buffer for the kernel
_EMPTY_TABLE = b"\x20"  # RFC 7541 6.3: dynamic table size update to 0
_DEFAULT_TABLE_BYTES = 4096
_pack = FRAME_HEADER.pack


class Http2Output:
    """Frames and queues of everything that is sent on one connection."""

    __slots__ = (
        "_blocked",
        "_frames_bytes",
        "_highest_offset",
        "_must_resize_table",
        "_ready",
        "_streams",
        "_swept_drops",
        "_write_buffer_bytes",
        "accepted_bytes",
        "data_count",
        "drip_count",
        "dropping",
        "frames",
        "is_paused",
        "peer_frame_bytes",
        "peer_max_streams",
        "peer_window",
        "queued_bytes",
        "recently_reset",
        "window",
    )

    def __init__(self, streams: dict[int, Stream], write_buffer_bytes: int) -> None:
        self._streams = streams
        self.frames: list[Buffer] = []
        """What `take` would return, in pieces."""
        self._frames_bytes = 0
        self._write_buffer_bytes = write_buffer_bytes
        # Streams with a queue: those whose window is open, in the order of their turns, and those whose is not. The
        # peer may close windows of the first by a setting; they are found when it is their turn.
        self._ready: dict[int, Stream] = {}
        self._blocked: dict[int, Stream] = {}
        self._highest_offset = 0  # no stream's `window_offset` is above it
        self._must_resize_table = False
        self.window = DEFAULT_WINDOW
        self.peer_frame_bytes = DEFAULT_FRAME_BYTES
        self.peer_window = DEFAULT_WINDOW
        """The peer's SETTINGS_INITIAL_WINDOW_SIZE."""
        self.peer_max_streams = MAX_WINDOW
        """The peer's SETTINGS_MAX_CONCURRENT_STREAMS; without a value there is no limit (RFC 9113 6.5.2)."""
        self.queued_bytes = 0
        """Bytes that wait for windows, over all streams."""
        self.accepted_bytes = 0
        """What was ever queued, over all streams."""
        self.data_count = 0
        """Heads, messages and frames of bodies sent so far. Grows while a long answer flows: gRPC forgives every PING
        that comes between two frames of it, and clients that measure the bandwidth send one per round trip."""
        self.drip_count = 0
        """Frames of `data_count` that were small only because the peer opens its windows by a few bytes."""
        self.is_paused = False
        """The socket takes no more; frames of queues are not made."""
        self.recently_reset: dict[int, None] = {}
        """Streams whose peer may not know yet that they are gone; frames for them are ignored."""
        self.dropping: dict[int, int] = {}
        """Answered streams whose request goes on, and how much more the peer may send of it, which is dropped."""
        self._swept_drops: set[int] = set()

    # Sending

    def send_answer(
        self, stream: Stream, header_block: bytes, payload: Sequence[Buffer], payload_bytes: int, trailers: bytes
    ) -> None:
        """Send a whole answer: header block, body, trailer block."""
        if (
            payload_bytes <= self.peer_frame_bytes
            and payload_bytes <= self.window
            and payload_bytes <= stream.window_offset + self.peer_window
            and not self._ready
            and not self._must_resize_table
        ):
            # hot: bench/micro_http2.py
            stream_id = stream.id
            self.window -= payload_bytes
            self.data_count += 1
            header_bytes, trailer_bytes = len(header_block), len(trailers)
            self.frames += (
                _pack(header_bytes << 8 | HEADERS, FLAG_END_HEADERS, stream_id),
                header_block,
                _pack(payload_bytes << 8, 0, stream_id),
                *payload,
                _pack(trailer_bytes << 8 | HEADERS, FLAG_END_HEADERS | FLAG_END_STREAM, stream_id),
                trailers,
            )
            self._frames_bytes += header_bytes + payload_bytes + trailer_bytes + 27
            if stream.is_remote_closed:
                stream.is_local_closed = True
                del self._streams[stream_id]
            else:
                self._end_local(stream)
            return
        self.send_headers(stream, header_block)
        self.send_data(stream, payload)
        self.send_end(stream, trailers)

    def send_headers(self, stream: Stream, block: bytes, *, ends_stream: bool = False) -> None:
        """Send a header block, split into CONTINUATION frames where the peer's frame size asks for it."""
        if self._must_resize_table:
            self._must_resize_table = False
            block = _EMPTY_TABLE + block
        limit = self.peer_frame_bytes
        flags = FLAG_END_STREAM if ends_stream else 0
        kind = HEADERS
        self.data_count += 1
        while len(block) > limit:
            self.send_control(frame(kind, flags, stream.id, block[:limit]))
            block, flags, kind = block[limit:], 0, CONTINUATION
        self.send_control(frame(kind, flags | FLAG_END_HEADERS, stream.id, block))
        if ends_stream:
            self._end_local(stream)

    def send_data(self, stream: Stream, payload: Sequence[Buffer]) -> None:
        """Send body bytes, or queue what the windows do not let pass. The buffers must not change any more."""
        # hot: bench/micro_stream.py
        size = 0
        for piece in payload:
            size += len(piece)
        if (
            stream.queue is None
            and 0 < size <= self.peer_frame_bytes
            and size <= self.window
            and size <= stream.window_offset + self.peer_window
            and not self._ready
            and not self.is_paused
            and self._frames_bytes < self._write_buffer_bytes
        ):
            self.data_count += 1
            self.window -= size
            stream.window_offset -= size
            self.frames += (_pack(size << 8, 0, stream.id), *payload)
            self._frames_bytes += size + 9
            return
        self._queue_data(stream, payload)

    def _queue_data(self, stream: Stream, payload: Sequence[Buffer]) -> None:
        self.data_count += 1
        queue = stream.queue
        if queue is None:
            queue = deque()
        size = 0
        for piece in payload:
            if piece:
                queue.append(memoryview(piece))
                size += len(piece)
        if not size:
            return
        stream.queue = queue
        stream.queued_bytes += size
        stream.accepted_bytes += size
        self.queued_bytes += size
        self.accepted_bytes += size
        if stream.window_offset + self.peer_window > 0:
            self._ready[stream.id] = stream
            self.pump()
        else:
            self._blocked[stream.id] = stream

    def send_end(self, stream: Stream, trailers: bytes = b"") -> None:
        """End the answer after all queued data, with a trailer block if one is given."""
        stream.is_local_closed = True
        stream.end_block = trailers
        if stream.queue is None:
            self._send_end_block(stream)

    def reset(self, stream: Stream, code: Http2Code) -> None:
        """Reset a stream and drop what is queued for it."""
        self.forget(stream)
        self.send_reset(stream.id, code)

    def send_reset(self, stream_id: int, code: Http2Code) -> None:
        """Send RST_STREAM and remember that frames of the peer may still arrive."""
        self.dropping.pop(stream_id, None)
        self._remember_reset(stream_id)
        self.send_control(rst_stream(stream_id, code))

    def send_control(self, frame_bytes: bytes) -> None:
        """Send a complete frame."""
        self.frames.append(frame_bytes)
        self._frames_bytes += len(frame_bytes)

    def forget(self, stream: Stream) -> None:
        """Take a stream out of the tables; nothing more is sent for it."""
        stream.is_local_closed = stream.is_remote_closed = True
        self._streams.pop(stream.id, None)
        self.dropping.pop(stream.id, None)
        self._ready.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        self.queued_bytes -= stream.queued_bytes
        stream.queued_bytes = 0
        stream.queue = None

    # What the peer allows

    def open_window(self, increment: int) -> None:
        """The peer takes `increment` more bytes. Raises Http2Error when its window overflows (RFC 9113 6.9.1)."""
        self.window += increment
        if self.window > MAX_WINDOW:
            raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, "the connection's window exceeds 2**31 - 1")
        self.pump()

    def open_stream_window(self, stream: Stream, increment: int) -> None:
        """The peer takes `increment` more bytes of one stream. Raises StreamError when its window overflows."""
        stream.window_offset += increment
        window = stream.window_offset + self.peer_window
        if window > MAX_WINDOW:
            raise StreamError(stream.id, Http2Code.FLOW_CONTROL_ERROR)
        self._highest_offset = max(self._highest_offset, stream.window_offset)
        if stream.queue is not None and window > 0:
            self._blocked.pop(stream.id, None)
            self._ready[stream.id] = stream
            self.pump()

    def widen(self, stream_id: int, increment: int) -> bool:
        """Open a window when nothing waits for it and no rule is broken; return whether it was."""
        if stream_id == 0:
            if 0 < increment <= MAX_WINDOW - self.window and not self._ready:
                self.window += increment
                return True
            return False
        stream = self._streams.get(stream_id)
        if stream is None or stream.queue is not None or increment <= 0:
            return False
        offset = stream.window_offset + increment
        if offset + self.peer_window > MAX_WINDOW:
            return False
        stream.window_offset = offset
        if offset > self._highest_offset:
            self._highest_offset = offset
        return True

    def window_of(self, stream: Stream) -> int:
        """Return how much the peer takes of a stream; negative after it has shrunk its initial window."""
        return stream.window_offset + self.peer_window

    def set_initial_window(self, size: int) -> int:
        """Apply SETTINGS_INITIAL_WINDOW_SIZE to new and open streams (RFC 9113 6.9.2). Raises Http2Error.

        Return how many streams it may have set going, which is what the frame costs beside its bytes.

        The caller acknowledges the setting, and only then has `pump` send what it allows: grpc-core counts data that
        come before the acknowledgement against the window of before, and resets their stream.
        """
        is_wider = size > self.peer_window
        self.peer_window = size
        if size + self._highest_offset > MAX_WINDOW:
            self._highest_offset = max((stream.window_offset for stream in self._streams.values()), default=0)
            if size + self._highest_offset > MAX_WINDOW:
                raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, "a stream's window exceeds 2**31 - 1")
        if not is_wider or not self._blocked:
            return 0
        waiting, self._blocked = self._blocked, {}
        for stream_id, stream in waiting.items():
            (self._ready if stream.window_offset + size > 0 else self._blocked)[stream_id] = stream
        return len(waiting)

    def set_peer_table_bytes(self, size: int) -> None:
        """Apply SETTINGS_HEADER_TABLE_SIZE. Our blocks use no table, but a smaller one must be acknowledged."""
        # RFC 7541 4.2: the next block begins with a size update. To 0, so no later change needs another.
        if size < _DEFAULT_TABLE_BYTES:
            self._must_resize_table = True

    # Making frames of queues

    def pump(self) -> None:
        """Make frames of queued data as far as windows and the write buffer allow, streams taking turns."""
        ready = self._ready
        while ready and self.window > 0 and not self.is_paused and self._frames_bytes < self._write_buffer_bytes:
            stream_id = next(iter(ready))
            stream = ready.pop(stream_id)
            self._take_turn(stream)
            if stream.queue is None:
                if stream.end_block is not None:
                    self._send_end_block(stream)
            elif stream.window_offset + self.peer_window > 0:
                ready[stream_id] = stream
            else:
                self._blocked[stream_id] = stream

    def _take_turn(self, stream: Stream) -> None:
        sent = 0
        while stream.queue is not None and sent < _TURN_BYTES:
            room = min(self.peer_frame_bytes, stream.window_offset + self.peer_window, self.window)
            if room <= 0:
                break
            sent += self._send_frame(stream, stream.queue, room)

    def _send_frame(self, stream: Stream, queue: deque[memoryview], room: int) -> int:
        pieces: list[memoryview] = []
        left = room
        while queue and left:
            piece = queue[0]
            if len(piece) <= left:
                pieces.append(queue.popleft())
                left -= len(piece)
            else:
                pieces.append(piece[:left])
                queue[0] = piece[left:]
                left = 0
        size = room - left
        self.frames += (_pack(size << 8 | DATA, 0, stream.id), *pieces)
        self._frames_bytes += size + 9
        self.data_count += 1
        if size < _DRIP_BYTES and queue:
            self.drip_count += 1
        self.window -= size
        self.queued_bytes -= size
        stream.window_offset -= size
        stream.queued_bytes -= size
        if not queue:
            stream.queue = None
        return size

    def _send_end_block(self, stream: Stream) -> None:
        if stream.end_block:
            self.send_headers(stream, stream.end_block, ends_stream=True)
        else:
            self.send_control(frame(DATA, FLAG_END_STREAM, stream.id))
            self._end_local(stream)

    def _end_local(self, stream: Stream) -> None:
        stream.is_local_closed = True
        self._streams.pop(stream.id, None)
        if stream.is_remote_closed:
            self.dropping.pop(stream.id, None)
            return
        stream.is_remote_closed = True
        if stream.id in self.dropping and stream.receive_window > 0:
            self.dropping[stream.id] = stream.receive_window
        else:
            # RFC 9113 8.1: the answer is complete, the rest of the request is not wanted.
            self.send_reset(stream.id, Http2Code.NO_ERROR)

    # Requests that are answered before their end

    def drop_body(self, stream: Stream) -> None:
        """Let the peer send the rest of its window after the answer to this stream, for a second or two.

        RFC 9113 8.1 allows a reset at once, but clients lose an answer with which it comes (curl 7.88).
        """
        if not stream.is_remote_closed and len(self.dropping) < _MOST_DROPPING:
            self.dropping[stream.id] = 0

    def dropped(self, stream_id: int, size: int, *, ends_stream: bool) -> None:
        """Count a DATA frame of an answered stream. Raises StreamError when its window is exceeded."""
        left = self.dropping.pop(stream_id) - size
        if left < 0:
            raise StreamError(stream_id, Http2Code.FLOW_CONTROL_ERROR)
        if ends_stream:
            return
        if left:
            self.dropping[stream_id] = left
        else:
            self.send_reset(stream_id, Http2Code.NO_ERROR)

    def end_drops(self) -> None:
        """Reset the answered streams that were here at the last call, too."""
        for stream_id in self._swept_drops:
            if stream_id in self.dropping and stream_id not in self._streams:
                self.send_reset(stream_id, Http2Code.NO_ERROR)
        self._swept_drops = set(self.dropping)

    def _remember_reset(self, stream_id: int) -> None:
        remembered = self.recently_reset
        remembered[stream_id] = None
        if len(remembered) > _REMEMBERED_RESETS:
            del remembered[next(iter(remembered))]

    # Handing over

    def take(self) -> list[Buffer]:
        """Return what must be written, in order: small pieces joined, large ones uncopied."""
        frames, size = self.frames, self._frames_bytes
        self.frames = []
        self._frames_bytes = 0
        if size <= _JOINED_BYTES:
            return [b"".join(frames)] if frames else []
        return _join_small(frames)


def _join_small(frames: list[Buffer]) -> list[Buffer]:
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for piece in frames:
        if len(piece) < _UNCOPIED_BYTES:
            small.append(piece)
            continue
        if small:
            joined.append(b"".join(small))
            small.clear()
        joined.append(piece)
    if small:
        joined.append(b"".join(small))
    return joined

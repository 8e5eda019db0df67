"""What both roles of an HTTP/2 connection share (RFC 9113), sans-IO: bytes in, calls to a sink, bytes out.

Rules: `receive_data` makes every call to the sink; the sink may send from within. Time is an argument. The only
exception that leaves is Http2Error, after GOAWAY has been queued; the owner of the connection then closes it.

`server.ServerConnection` and `client.ClientConnection` add what differs: the preface, header blocks, and what GOAWAY
means. Calls for one stream are in the order of its frames; how calls for different streams interleave depends on how
the bytes were cut.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import REOPENED_STREAM, SMALL_FRAME, FloodGuard, Http2Limits
from naiad.wire.http2.frame_output import Http2Output
from naiad.wire.http2.frames import Http2Code, Http2Error, StreamError, UnreadBytes
from naiad.wire.http2.headers import Fields, HeaderBlock, HeaderBlocks, trailers_error
from naiad.wire.http2.hpack import HeaderListTooLargeError, HpackError
from naiad.wire.http2.sink import Http2Sink
from naiad.wire.http2.stream_state import Stream
from naiad.wire.http2.windows import ReceiveWindows, apply_settings

S = TypeVar("S", bound=Stream)
T = TypeVar("T")

FrameHandlers: TypeAlias = Mapping[int, Callable[[Any, int, int, memoryview], None]]
"""Frame type to a method that takes flags, stream id and payload."""
INCOMPLETE = -1
NO_TRAILERS: Fields = ()
_KEEPALIVE_PING = b"alive..?"
_SMALL_DATA_BYTES = 256
"""A DATA frame with less, after which the body goes on, is counted."""


class Http2Connection(Generic[S]):
    """The state of one connection: `receive_data` in, `output` out."""

    _handlers: ClassVar[FrameHandlers]
    """Frame type to the method that handles it; each role completes `FRAME_HANDLERS`."""

    def __init__(
        self, sink: Http2Sink[S], limits: Http2Limits, opening: bytes, output_type: type[Http2Output] = Http2Output
    ) -> None:
        """`opening` is what this side sends first."""
        self._sink: Http2Sink[S] = sink
        self._limits = limits
        self._streams: dict[int, S] = {}
        self.output = output_type(self._streams, limits.write_buffer_bytes)  # type: ignore[arg-type]  # it adds none
        self._now_ns = 0
        self._last_stream_id = 0
        """The last stream that the client has opened, whichever side this is."""
        self.windows = ReceiveWindows(self.output, limits)
        """What the peer may send."""
        self._unread = UnreadBytes()
        self.slow_down = self._unread.slow_down
        self._has_preface = False
        self._has_settings = False
        # The DATA frame in progress; its stream is None when its bytes are dropped.
        self._data_stream: S | None = None
        self._data_left = 0
        self._data_padding = 0
        self._data_ends_stream = False
        self._blocks = HeaderBlocks(limits)
        self._floods = FloodGuard(limits)
        self.message_count = 0
        """Messages of streaming calls; counted by the sink, since only it sees them. They earn frames."""
        self._goaway_last_id = -1
        """The last stream that this side has promised to handle in its GOAWAY; -1 before one was sent."""
        self._is_closed = False
        self.incomplete_since_ns = 0
        """Since when a frame or header block has been incomplete; 0 when none is."""
        self.output.send_control(opening)
        self.windows.announce()

    @property
    def streams(self) -> dict[int, S]:
        """Open streams by id."""
        return self._streams

    @property
    def is_set_up(self) -> bool:
        """The peer's first SETTINGS have arrived."""
        return self._has_settings

    def ping(self) -> None:
        """Ask the peer for a sign of life; anything it sends next is one."""
        if not self._is_closed:
            self.output.send_control(wire.frame(wire.PING, 0, 0, _KEEPALIVE_PING))

    def close(self) -> None:
        """Look at nothing that is received from now on."""
        self._is_closed = True

    def lose(self) -> None:
        """The connection is lost: nothing more is received, and the sink is not referred to any more."""
        self._is_closed = True
        self._unread.clear()
        del self._sink

    def fail(self, code: Http2Code, message: str) -> None:
        """Queue the GOAWAY of a connection error; nothing received later is looked at."""
        if not self._is_closed:
            self._is_closed = True
            self.output.send_control(wire.goaway(self._last_peer_stream_id, code, message))

    @property
    def _last_peer_stream_id(self) -> int:
        """The last stream that the peer has opened, for GOAWAY."""
        raise NotImplementedError

    @property
    def has_unread(self) -> bool:
        """`receive_slice` has left some of the bytes that it was given."""
        return bool(self._unread.rest) and not self._is_closed

    def postpone(self, data: bytes) -> int:
        """Keep received bytes for the next `receive_slice`; return how many wait for it now."""
        if self._is_closed:
            return 0
        self._unread.postpone(data)
        return self._unread.rest_bytes

    def take_unread(self) -> bytes:
        """Take back what the next `receive_slice` would begin with, to give it again."""
        return self._unread.take()

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Take received bytes, cut anywhere. Raises Http2Error when the connection must be closed."""
        has_unread = self.receive_slice(data, now_ns)
        while has_unread:
            has_unread = self.receive_slice(b"", now_ns)

    def receive_slice(self, data: bytes, now_ns: int) -> bool:
        """Take received bytes, cut anywhere, and look at the frames that begin in the next slice of them.

        Return whether a rest waits for the next call: a peer that sends thousands of tiny frames at once does not
        keep the loop from others. Raises Http2Error when the connection must be closed.
        """
        if self._is_closed:
            return False
        self._now_ns = now_ns
        begin, unread = 0, self._unread
        if unread.rest or unread.tail:
            joined = unread.join(data)
            if joined is None:
                return False
            data, begin = joined
        try:
            position = begin if self._has_preface else self._receive_preface(data)
            self._receive_frames(data, position)
        except Http2Error as error:
            self.fail(error.code, error.message)
            raise
        if not unread.tail and not self._blocks.open_stream_id:
            self.incomplete_since_ns = 0
        elif not self.incomplete_since_ns:
            self.incomplete_since_ns = now_ns
        return not self._is_closed if unread.rest else False

    # Frames

    def _receive_preface(self, data: bytes) -> int:
        """Check what the peer sends before its first frame and return where that begins."""
        raise NotImplementedError

    def _receive_frames(self, data: bytes, position: int) -> None:
        """Handle the frames from `position` on; keep what is incomplete or beyond the slice."""
        end = len(data)
        view = memoryview(data)
        if self._data_left or self._data_padding:
            position = self._continue_data(view, position)
        # Frames that begin before it are handled: whole headers, and not more than a slice.
        limit = min(end - 8, position + self._unread.slice_bytes)
        while position < limit:
            following = self._receive_frame(data, view, position)
            if following < 0:
                limit = end
                break
            position = following
        self._unread.keep(data, position, limit)

    def _receive_frame(self, data: bytes, view: memoryview, position: int) -> int:
        """Handle the frame at `position` and return where the next begins, or INCOMPLETE."""
        word: int
        word, flags, stream_id = wire.FRAME_HEADER.unpack_from(data, position)
        kind, length = word & 0xFF, word >> 8
        stream_id &= wire.STREAM_ID_MASK
        body = position + wire.FRAME_HEADER_BYTES
        self._check_frame(kind, length, stream_id)
        if kind == wire.DATA:
            return self._data_frame(view, body, flags, stream_id, length)
        if len(data) - body < length:
            self._unread.needed_bytes = wire.FRAME_HEADER_BYTES + length
            return INCOMPLETE
        handler = self._handlers.get(kind)
        if handler is None:
            self._count_frame("unknown")
            return body + length
        try:
            handler(self, flags, stream_id, view[body : body + length])
        except StreamError as error:
            self._reset_stream(error.stream_id, error.code)
        return body + length

    def _check_frame(self, kind: int, length: int, stream_id: int) -> None:
        """Check what holds for every frame, before its payload is waited for."""
        if length > self._limits.frame_bytes:  # RFC 9113 4.2
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, f"frame of {length} bytes; the limit is advertised")
        if not self._has_settings and kind != wire.SETTINGS:  # RFC 9113 3.4
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        block_stream_id = self._blocks.open_stream_id
        if block_stream_id and (kind != wire.CONTINUATION or stream_id != block_stream_id):
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "a header block is interrupted by another frame")  # 6.10
        if kind != wire.DATA and length > self._limits.discarded_block_bytes:
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, f"frame of type {kind} with {length} bytes")

    # DATA

    def _data_frame(self, view: memoryview, body: int, flags: int, stream_id: int, length: int) -> int:
        padding = 0
        content = body
        if flags & wire.FLAG_PADDED:
            if length == 0:
                raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "padded DATA without a pad length")
            if body >= len(view):
                self._unread.needed_bytes = wire.FRAME_HEADER_BYTES + 1
                return INCOMPLETE
            padding = view[body]
            content += 1
            if padding >= length:  # RFC 9113 6.1
                raise Http2Error(Http2Code.PROTOCOL_ERROR, "padding exceeds the DATA frame")
        self.windows.take(length)
        self._data_ends_stream = bool(flags & wire.FLAG_END_STREAM)
        self._data_left = length - padding - (content - body)
        self._data_padding = padding
        if self._data_left < _SMALL_DATA_BYTES and not self._data_ends_stream:
            if self._data_left:
                self._count_frame("small DATA", SMALL_FRAME)
            else:
                self._count_frame("empty DATA")
        try:
            self._data_stream = self._find_data_stream(stream_id, length)
        except StreamError as error:
            self._data_stream = None
            self._reset_stream(error.stream_id, error.code)
        if not length:
            self._finish_data()
            return content
        return self._continue_data(view, content)

    def _find_data_stream(self, stream_id: int, length: int) -> S | None:
        """Return the open stream that DATA belongs to, None when it is dropped. Raises StreamError, Http2Error."""
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_not_idle(stream_id, "DATA")
            if stream_id in self.output.dropping:
                self.output.dropped(stream_id, length, ends_stream=self._data_ends_stream)
                return None
            if stream_id in self.output.recently_reset or self._is_refused(stream_id):
                return None
            raise StreamError(stream_id, Http2Code.STREAM_CLOSED)
        if stream.is_remote_closed:
            raise StreamError(stream_id, Http2Code.STREAM_CLOSED)
        stream.receive_window -= length
        if stream.receive_window < 0:
            raise StreamError(stream_id, Http2Code.FLOW_CONTROL_ERROR)
        if not stream.is_held and not self._data_ends_stream:
            self.windows.refill_stream(stream)
        stream.received_bytes += self._data_left
        expected = stream.head.content_length
        if 0 <= expected < stream.received_bytes:  # RFC 9113 8.1.1
            raise StreamError(stream_id, Http2Code.PROTOCOL_ERROR)
        return stream

    def _continue_data(self, view: memoryview, position: int) -> int:
        """Deliver what has arrived of the DATA frame in progress and return where it ends here."""
        available = len(view) - position
        if self._data_left:
            size = min(available, self._data_left)
            self._data_left -= size
            stream = self._data_stream
            if stream is not None and size and not stream.is_remote_closed:
                self._sink.body_received(stream, view[position : position + size])
            position += size
            available -= size
        skipped = min(available, self._data_padding)
        self._data_padding -= skipped
        if not self._data_left and not self._data_padding:
            self._finish_data()
        return position + skipped

    def _finish_data(self) -> None:
        stream, self._data_stream = self._data_stream, None
        if stream is not None and self._data_ends_stream and not stream.is_remote_closed:
            self._end_remote(stream, NO_TRAILERS)

    def _end_remote(self, stream: S, trailers: Fields) -> None:
        if self._close_remote(stream):
            self._sink.end_received(stream, trailers)

    def _close_remote(self, stream: S) -> bool:
        """Note that the peer has sent all; return False and reset the stream if it is not the announced length."""
        expected = stream.head.content_length
        if expected >= 0 and expected != stream.received_bytes:  # RFC 9113 8.1.1
            self._reset_stream(stream.id, Http2Code.PROTOCOL_ERROR)
            return False
        stream.is_remote_closed = True
        return True

    def hold(self, stream: S) -> None:
        """Let the peer send only what the stream's window still allows, until `release`."""
        stream.is_held = True

    def release(self, stream: S) -> None:
        """Let the peer go on sending."""
        stream.is_held = False
        if not stream.is_remote_closed:
            self.windows.refill_stream(stream)

    # HEADERS and CONTINUATION

    def _headers_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        block = self._blocks.begin(flags, stream_id, payload)
        if block is not None:
            self._header_block(block)

    def _continuation_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        block = self._blocks.go_on(flags, payload)
        if block is not None:
            self._header_block(block)

    def _header_block(self, block: HeaderBlock) -> None:
        """Decode a block, also of a stream that is refused: it may change the table (RFC 9113 4.3)."""
        raise NotImplementedError

    def _decode(self, decode: Callable[[bytes], T], block: HeaderBlock) -> T:
        try:
            return decode(block.data)
        except HpackError as error:
            raise Http2Error(Http2Code.COMPRESSION_ERROR, str(error)) from error
        except HeaderListTooLargeError as error:
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, str(error)) from error

    def _receive_trailers(self, block: HeaderBlock, fields: Fields) -> None:
        stream_id = block.stream_id
        stream = self._streams.get(stream_id)
        if stream is None:
            if self.output.dropping.pop(stream_id, None) is not None:
                return
            if stream_id in self.output.recently_reset or self._is_refused(stream_id):
                return
            raise Http2Error(Http2Code.STREAM_CLOSED, f"HEADERS on closed stream {stream_id}")  # RFC 9113 5.1
        if stream.is_remote_closed:
            raise StreamError(stream_id, Http2Code.STREAM_CLOSED)
        if not block.ends_stream or trailers_error(fields):  # RFC 9113 8.1
            raise StreamError(stream_id, Http2Code.PROTOCOL_ERROR)
        self._end_remote(stream, fields)

    # Other frames

    def _priority_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id == 0:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._count_frame("PRIORITY")
        if len(payload) != 5:
            raise StreamError(stream_id, Http2Code.FRAME_SIZE_ERROR)
        if wire.dependency(payload) == stream_id:  # RFC 7540 5.3.1
            raise StreamError(stream_id, Http2Code.PROTOCOL_ERROR)

    def _rst_stream_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if len(payload) != 4:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "RST_STREAM is not 4 bytes long")
        self._check_not_idle(stream_id, "RST_STREAM")
        stream = self._streams.get(stream_id)
        if stream is None:
            self._count_frame("RST_STREAM", SMALL_FRAME)
            # The peer knows now that the stream is gone: what follows on it is a mistake.
            self.output.recently_reset.pop(stream_id, None)
            self.output.dropping.pop(stream_id, None)
            return
        # Before the stream is forgotten: if this ends the connection, its owner cancels the streams in the table.
        self._floods.count_reset(self._now_ns)
        self.output.forget(stream)
        (code,) = wire.UINT32.unpack(payload)
        self._sink.stream_reset(stream, code)

    def _settings_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & wire.FLAG_ACK:
            if payload:
                raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "SETTINGS ACK with a payload")
            if not self._has_settings:
                raise Http2Error(Http2Code.PROTOCOL_ERROR, "the first frame is a SETTINGS ACK")
            self._count_frame("SETTINGS ACK")
            return
        if len(payload) % wire.SETTING.size:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "SETTINGS is no multiple of 6 bytes long")
        reopened = apply_settings(payload, self.output)
        self._count_frame("SETTINGS", 1 + reopened * REOPENED_STREAM)
        self.output.send_control(wire.SETTINGS_ACK)
        self.output.pump()
        self._has_settings = True

    def _ping_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "PING is not 8 bytes long")
        self._count_frame("PING")
        if flags & wire.FLAG_ACK:
            self._ping_acknowledged(payload)
        else:
            self._check_ping_rate()
            self.output.send_control(wire.frame(wire.PING, wire.FLAG_ACK, 0, bytes(payload)))

    def _ping_acknowledged(self, payload: memoryview) -> None:
        """The peer has answered a PING; any byte from the peer shows that it is alive."""

    def _check_ping_rate(self) -> None:
        """Raise Http2Error when the peer sends PING too often."""

    def _goaway_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "GOAWAY is too short")
        self._count_frame("GOAWAY")
        (last_stream_id,) = wire.UINT32.unpack_from(payload)
        (code,) = wire.UINT32.unpack_from(payload, 4)
        self._peer_goes_away(last_stream_id & wire.STREAM_ID_MASK, code)

    def _peer_goes_away(self, last_stream_id: int, code: int) -> None:
        self._sink.goaway_received(code)

    def _window_update_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if len(payload) != 4:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE is not 4 bytes long")
        self._count_frame("WINDOW_UPDATE", SMALL_FRAME)
        increment = wire.UINT32.unpack(payload)[0] & wire.MAX_WINDOW
        if stream_id == 0:
            if not increment:
                raise Http2Error(Http2Code.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self.output.open_window(increment)
            return
        self._check_not_idle(stream_id, "WINDOW_UPDATE")
        if not increment:
            raise StreamError(stream_id, Http2Code.PROTOCOL_ERROR)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self.output.open_stream_window(stream, increment)

    # Mistakes and floods

    def _check_not_idle(self, stream_id: int, name: str) -> None:
        # RFC 9113 5.1: only HEADERS and PRIORITY on idle streams. The even ones are the server's, which opens none.
        if stream_id == 0 or not stream_id & 1 or stream_id > self._last_stream_id:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, f"{name} on idle stream {stream_id}")

    def _is_refused(self, stream_id: int) -> bool:
        """Return whether the peer opened the stream after our last GOAWAY; it is ignored (RFC 9113 6.8)."""
        return 0 <= self._goaway_last_id < stream_id

    def _reset_stream(self, stream_id: int, code: Http2Code) -> None:
        """Reset a stream for a mistake of the peer's; one that is idle cannot be reset (RFC 9113 5.1)."""
        if stream_id > self._last_stream_id or not stream_id & 1:
            raise Http2Error(code, f"illegal frame on idle stream {stream_id}")
        # Resets that the peer provokes count as its own (CVE-2025-8671), including resets of excess streams.
        self._floods.count_reset(self._now_ns)
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id not in self.output.recently_reset:
                self.output.send_reset(stream_id, code)
            return
        self.output.reset(stream, code)
        self._sink.stream_broken(stream, code)

    def _count_frame(self, name: str, cost: float = 1.0) -> None:
        output = self.output
        streams, kibibytes = self._last_stream_id // 2, self.windows.received_bytes >> 10
        useful = streams + self.message_count + kibibytes + output.data_count - output.drip_count
        self._floods.count_frame(name, self._now_ns, useful, cost)


FRAME_HANDLERS: FrameHandlers = {
    wire.HEADERS: Http2Connection._headers_frame,
    wire.PRIORITY: Http2Connection._priority_frame,
    wire.RST_STREAM: Http2Connection._rst_stream_frame,
    wire.SETTINGS: Http2Connection._settings_frame,
    wire.PING: Http2Connection._ping_frame,
    wire.GOAWAY: Http2Connection._goaway_frame,
    wire.WINDOW_UPDATE: Http2Connection._window_update_frame,
    wire.CONTINUATION: Http2Connection._continuation_frame,
}
"""Frame type to the method of the base class."""

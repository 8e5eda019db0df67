"""A server's HTTP/2 connection (RFC 9113), sans-IO: bytes in, calls to a sink, bytes out.

Rules: `receive_data` makes every call to the sink; the sink may answer from within. Time is an argument. The only
exception that leaves is Http2Error, after GOAWAY has been queued; the connection is then closed by its owner.

A request whose header block repeats and whose body is one DATA frame takes the short way in `_receive_frames` when
one call brings all of it, also when other requests lie between its frames (nghttp2 sends the heads of several first).
Everything else goes frame by frame through `_receive_frame`. Calls for one stream are in the order of its frames; how
calls for different streams interleave depends on how the bytes were cut.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from naiad.wire.http2 import frames as wire
from naiad.wire.http2.flood import REOPENED_STREAM, SMALL_FRAME, FloodGuard
from naiad.wire.http2.frames import Http2Code, Http2Error, StreamError
from naiad.wire.http2.headers import Fields, HeaderBlock, HeaderBlocks, RequestHead, encode_fields, trailers_error
from naiad.wire.http2.hpack import HeaderDecoder, HeaderListTooLargeError, HpackError
from naiad.wire.http2.keepalive import PingStrikes
from naiad.wire.http2.limits import Http2Limits
from naiad.wire.http2.output import Http2Output
from naiad.wire.http2.stream import Stream
from naiad.wire.http2.windows import ReceiveWindows, apply_settings, own_settings
from naiad.wire.preface import PREFACE, TLS_REFUSAL, is_tls

S = TypeVar("S", bound=Stream)

_HEADERS_PLAIN = wire.FLAG_END_HEADERS | wire.FLAG_END_STREAM | wire.FLAG_PADDED | wire.FLAG_PRIORITY
_INCOMPLETE = -1
_DRAIN_PING = b"drain..."
_KEEPALIVE_PING = b"alive..?"
_TOO_LARGE_BLOCK = encode_fields(((b":status", b"431"),))
_NO_TRAILERS: Fields = ()
_SMALL_DATA_BYTES = 256
"""A DATA frame with less, after which the body goes on, is counted."""
_FREE_UPDATES = 16
"""So many WINDOW_UPDATE frames of one read are not counted: reading costs more than they do."""
_SLICE_BYTES = 16 * 1024
_SLOW_SLICE_BYTES = 2 * 1024


class Http2Sink(Protocol[S]):
    """Who is told what the peer does. Streams are of the sink's own class."""

    def new_stream(self, stream_id: int, head: RequestHead, receive_window: int) -> S:
        """Make the object of a new stream."""

    def request_received(self, stream: S, body: memoryview) -> None:
        """Take a whole request that came in one piece; stands for the next three calls."""

    def headers_received(self, stream: S) -> None:
        """Take the head of a request."""

    def body_received(self, stream: S, data: memoryview) -> None:
        """Take a non-empty piece of a body; a view on the received bytes, which stay as they are."""

    def end_received(self, stream: S, trailers: Fields) -> None:
        """The request is complete."""

    def stream_reset(self, stream: S, code: int) -> None:
        """The stream is gone before its end, by the peer's wish."""

    def stream_broken(self, stream: S, code: int) -> None:
        """The stream was reset before its end, for a mistake of the peer's."""

    def goaway_received(self, code: int) -> None:
        """The peer opens no more streams; those that are open go on."""


class Http2Connection(Generic[S]):
    """The state of one connection: `receive_data` in, `output` out."""

    def __init__(self, sink: Http2Sink[S], limits: Http2Limits) -> None:
        self._sink = sink
        self._limits = limits
        self._streams: dict[int, S] = {}
        self.output = Http2Output(self._streams, limits.write_buffer_bytes)  # type: ignore[arg-type]  # it adds none
        self._decoder = HeaderDecoder(limits.header_list_bytes, limits.header_fields)
        self._now_ns = 0
        self._last_stream_id = 0
        self.windows = ReceiveWindows(self.output, limits)
        """What the peer may send."""
        # Received bytes that are not yet a complete frame, and how many it takes to go on.
        self._tail = bytearray()
        self._needed_bytes = 0
        # Received bytes that no slice has come to yet, from a position on.
        self._unread = b""
        self._unread_position = 0
        self._slice_bytes = _SLICE_BYTES
        self._has_preface = False
        self._has_settings = False
        # New requests may take the short way: SETTINGS have come, no header block is unfinished, no GOAWAY was sent.
        self._takes_short_way = False
        # The DATA frame in progress; its stream is None when its bytes are dropped.
        self._data_stream: S | None = None
        self._data_left = 0
        self._data_padding = 0
        self._data_ends_stream = False
        self._blocks = HeaderBlocks(limits)
        self._floods = FloodGuard(limits)
        self._ping_strikes = PingStrikes(limits.keepalive)
        self.message_count = 0
        """Messages of streaming calls; counted by the sink, since only it sees them. They earn frames."""
        self._goaway_last_id = -1
        self.is_draining = False
        """The connection ends with its last stream: a GOAWAY has been sent."""
        self._is_closed = False
        self.incomplete_since_ns = 0
        """Since when a frame or header block has been incomplete; 0 when none is."""
        self.output.send_control(own_settings(limits))
        self.windows.announce()

    @property
    def streams(self) -> dict[int, S]:
        """Open streams by id."""
        return self._streams

    @property
    def is_set_up(self) -> bool:
        """The peer's preface and first SETTINGS have arrived."""
        return self._has_settings

    @property
    def is_drained(self) -> bool:
        """The last GOAWAY has been sent and no stream is open."""
        return self._goaway_last_id >= 0 and not self._streams

    def forget_memos(self) -> None:
        """Drop what the transport has derived from request heads."""
        self._decoder.forget_memos()

    def start_drain(self) -> None:
        """Ask the peer to open no more streams (RFC 9113 6.8): GOAWAY twice, the second after a round trip."""
        if self.is_draining or self._is_closed:
            return
        self.is_draining = True
        self.output.send_control(wire.goaway(wire.STREAM_ID_MASK, Http2Code.NO_ERROR))
        self.output.send_control(wire.frame(wire.PING, 0, 0, _DRAIN_PING))

    def finish_drain(self) -> None:
        """Refuse streams from now on; called by itself when the peer has answered `start_drain`."""
        if self._goaway_last_id < 0 and not self._is_closed:
            self.is_draining = True
            self._takes_short_way = False
            self._goaway_last_id = self._last_stream_id
            self.output.send_control(wire.goaway(self._last_stream_id, Http2Code.NO_ERROR))

    def ping(self) -> None:
        """Ask the peer for a sign of life; whatever it sends next is one."""
        if not self._is_closed:
            self.output.send_control(wire.frame(wire.PING, 0, 0, _KEEPALIVE_PING))

    def close(self) -> None:
        """Look at nothing that is received from now on."""
        self._is_closed = True

    def lose(self) -> None:
        """The connection is lost: nothing more is received, and the sink is not referred to any more."""
        self._is_closed = True
        self._unread = b""
        self._tail.clear()
        del self._sink

    def fail(self, code: Http2Code, message: str) -> None:
        """Queue the GOAWAY of a connection error; nothing received later is looked at."""
        if not self._is_closed:
            self._is_closed = True
            self.output.send_control(wire.goaway(self._last_stream_id, code, message))

    @property
    def has_unread(self) -> bool:
        """`receive_slice` has left some of the bytes that it was given."""
        return bool(self._unread) and not self._is_closed

    def slow_down(self, is_slow: bool) -> None:
        """Make slices small for a peer whose bytes take long, or large again."""
        self._slice_bytes = _SLOW_SLICE_BYTES if is_slow else _SLICE_BYTES

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
        begin = 0
        if self._unread:
            data, begin = self._take_unread(data)
        elif self._tail:
            self._tail += data
            if len(self._tail) < self._needed_bytes:
                return False
            data = bytes(self._tail)
            self._tail.clear()
        try:
            position = begin if self._has_preface else self._receive_preface(data)
            self._receive_frames(data, position)
        except Http2Error as error:
            self.fail(error.code, error.message)
            raise
        if not self._tail and not self._blocks.open_stream_id:
            self.incomplete_since_ns = 0
        elif not self.incomplete_since_ns:
            self.incomplete_since_ns = now_ns
        return not self._is_closed if self._unread else False

    def _take_unread(self, data: bytes) -> tuple[bytes, int]:
        """Return what an earlier slice has left, and `data` behind it, and the position to begin at."""
        begin, unread = self._unread_position, self._unread
        self._unread = b""
        return (unread[begin:] + data, 0) if data else (unread, begin)

    # Frames

    def _receive_preface(self, data: bytes) -> int:
        size = len(PREFACE)
        if not PREFACE.startswith(data[:size]):
            reason = TLS_REFUSAL if is_tls(data) else "invalid connection preface"
            raise Http2Error(Http2Code.PROTOCOL_ERROR, reason)
        if len(data) < size:
            return 0  # `_receive_frames` keeps them
        self._has_preface = True
        return size

    def _receive_frames(self, data: bytes, position: int) -> None:  # noqa: C901, PLR0912, PLR0915 - hot
        # hot: bench/micro_http2.py
        end = len(data)
        if not self._has_preface:
            self._keep_tail(data, position, len(PREFACE))
            return
        view = memoryview(data)
        unpack, unpack_uint32 = wire.FRAME_HEADER.unpack_from, wire.UINT32.unpack_from
        streams, output, limits = self._streams, self.output, self._limits
        cached_get, static_get = self._decoder.cached.get, self._decoder.cached_static.get
        max_frame_bytes, max_streams = limits.frame_bytes, limits.concurrent_streams
        receive_window, window = limits.stream_window_bytes, self.windows
        new_stream, request_received = self._sink.new_stream, self._sink.request_received
        # Streams whose head the sink has not been told: their body may follow in these bytes.
        untold: dict[int, S] = {}
        updates = 0
        if self._data_left or self._data_padding:
            position = self._continue_data(view, position)
        # Frames that begin before it are looked at: whole headers, and not more than a slice.
        limit = end - 8
        if end > self._slice_bytes:
            limit = min(limit, position + self._slice_bytes)
        while position < limit:
            word, flags, stream_id = unpack(data, position)
            body = position + 9
            length = word >> 8
            stop = body + length
            kind = word & 0xFF
            if kind == 0 and flags & 9 == 1 and stop <= end and stream_id in untold:  # END_STREAM, not PADDED
                stream = untold[stream_id]
                expected = stream.head.content_length
                if (expected < 0 or expected == length) and length <= max_frame_bytes and length <= window.left_bytes:
                    del untold[stream_id]
                    window.left_bytes -= length
                    if window.left_bytes < window.half_bytes:
                        window.refill()
                    stream.is_remote_closed = True
                    request_received(stream, view[body:stop])
                    position = stop
                    continue
            elif kind == 1 and flags & _HEADERS_PLAIN == 4 and stop <= end and self._takes_short_way:
                block = data[body:stop]
                head = cached_get(block) or static_get(block)
                if (
                    head is not None
                    and head.is_plain
                    and self._last_stream_id < stream_id <= 0x7FFFFFFF
                    and stream_id & 1
                    and len(streams) < max_streams
                ):
                    self._last_stream_id = stream_id
                    stream = new_stream(stream_id, head, receive_window)
                    streams[stream_id] = untold[stream_id] = stream
                    position = stop
                    continue
            elif kind == 8 and length == 4 and stop <= end and output.widen(stream_id, unpack_uint32(data, body)[0]):
                # grpc-core sends one between the head and the body of every request.
                updates += 1
                position = stop
                continue
            if untold:
                self._tell_heads(untold)
            following = self._receive_frame(data, view, position)
            if following < 0:
                limit = end
                break
            position = following
        if untold:
            self._tell_heads(untold)
        if updates > _FREE_UPDATES:
            self._count_frame("WINDOW_UPDATE", updates * SMALL_FRAME)
        if position < end:
            if limit <= position < end - 8:
                self._unread, self._unread_position = data, position
            else:
                self._keep_tail(data, position, self._needed_bytes)

    def _tell_heads(self, untold: dict[int, S]) -> None:
        for stream in untold.values():
            self._sink.headers_received(stream)
        untold.clear()

    def _keep_tail(self, data: bytes, position: int, needed_bytes: int) -> None:
        self._tail += memoryview(data)[position:]
        self._needed_bytes = needed_bytes if len(self._tail) >= wire.FRAME_HEADER_BYTES else wire.FRAME_HEADER_BYTES

    def _receive_frame(self, data: bytes, view: memoryview, position: int) -> int:
        """Handle the frame at `position` and return where the next begins, or _INCOMPLETE."""
        word: int
        word, flags, stream_id = wire.FRAME_HEADER.unpack_from(data, position)
        kind, length = word & 0xFF, word >> 8
        stream_id &= wire.STREAM_ID_MASK
        body = position + wire.FRAME_HEADER_BYTES
        self._check_frame(kind, length, stream_id)
        if kind == wire.DATA:
            return self._data_frame(view, body, flags, stream_id, length)
        if len(data) - body < length:
            self._needed_bytes = wire.FRAME_HEADER_BYTES + length
            return _INCOMPLETE
        handler = _HANDLERS.get(kind)
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
        if kind != wire.DATA and length > 2 * self._limits.header_list_bytes:
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, f"frame of type {kind} with {length} bytes")

    # DATA

    def _data_frame(self, view: memoryview, body: int, flags: int, stream_id: int, length: int) -> int:
        padding = 0
        content = body
        if flags & wire.FLAG_PADDED:
            if length == 0:
                raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "padded DATA without a pad length")
            if body >= len(view):
                self._needed_bytes = wire.FRAME_HEADER_BYTES + 1
                return _INCOMPLETE
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
            self._end_remote(stream, _NO_TRAILERS)

    def _end_remote(self, stream: S, trailers: Fields) -> None:
        expected = stream.head.content_length
        if expected >= 0 and expected != stream.received_bytes:  # RFC 9113 8.1.1
            self._reset_stream(stream.id, Http2Code.PROTOCOL_ERROR)
            return
        stream.is_remote_closed = True
        self._sink.end_received(stream, trailers)

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
        if block is None:
            self._takes_short_way = False
        else:
            self._header_block(block)

    def _continuation_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        block = self._blocks.go_on(flags, payload)
        if block is not None:
            self._takes_short_way = self._goaway_last_id < 0
            self._header_block(block)

    def _header_block(self, block: HeaderBlock) -> None:
        # Every block is decoded, also that of a stream we refuse: it may change the table (RFC 9113 4.3).
        try:
            if block.stream_id > self._last_stream_id:
                self._open_stream(block, self._decoder.decode_request(block.data))
            else:
                self._receive_trailers(block, self._decoder.decode_fields(block.data))
        except HpackError as error:
            raise Http2Error(Http2Code.COMPRESSION_ERROR, str(error)) from error
        except HeaderListTooLargeError as error:
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, str(error)) from error

    def _open_stream(self, block: HeaderBlock, head: RequestHead) -> None:
        self._last_stream_id = stream_id = block.stream_id
        if self._is_refused(stream_id):
            return
        limits, output = self._limits, self.output
        if len(self._streams) >= limits.concurrent_streams:
            raise StreamError(stream_id, Http2Code.REFUSED_STREAM)  # RFC 9113 8.7: safe to retry
        ends_stream = block.ends_stream
        # RFC 9113 8.1.1: a body of another size than announced. RFC 7540 5.3.1: a stream that depends on itself.
        if head.error or (ends_stream and head.content_length > 0) or block.depends_on_itself:
            raise StreamError(stream_id, Http2Code.PROTOCOL_ERROR)
        stream = self._sink.new_stream(stream_id, head, limits.stream_window_bytes)
        self._streams[stream_id] = stream
        # Before the sink answers: a stream that both sides have ended needs no RST_STREAM.
        stream.is_remote_closed = ends_stream
        if head.is_too_large:
            output.send_headers(stream, _TOO_LARGE_BLOCK, ends_stream=True)
            return
        self._sink.headers_received(stream)
        if ends_stream and not stream.is_local_closed:
            self._sink.end_received(stream, _NO_TRAILERS)

    def _receive_trailers(self, block: HeaderBlock, fields: Fields) -> None:
        stream_id = block.stream_id
        stream = self._streams.get(stream_id)
        if stream is None:
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
            return
        self.output.forget(stream)
        self._floods.count_reset(self._now_ns)
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
        if not self._has_settings:
            self._has_settings = True
            self._takes_short_way = self._goaway_last_id < 0

    def _push_promise_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        raise Http2Error(Http2Code.PROTOCOL_ERROR, "PUSH_PROMISE from a client")  # RFC 9113 8.4

    def _ping_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "PING is not 8 bytes long")
        self._count_frame("PING")
        if not flags & wire.FLAG_ACK:
            if self._ping_strikes.is_one_too_many(
                self._now_ns, self.output.data_count, has_calls=bool(self._streams)
            ):
                # gRPC clients know this text and ask less often from then on.
                raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, "too_many_pings")
            self.output.send_control(wire.frame(wire.PING, wire.FLAG_ACK, 0, bytes(payload)))
        elif self.is_draining and payload == _DRAIN_PING:
            self.finish_drain()

    def _goaway_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "GOAWAY is too short")
        self._count_frame("GOAWAY")
        (code,) = wire.UINT32.unpack_from(payload, 4)
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
        # RFC 9113 5.1: nothing but HEADERS and PRIORITY on idle streams. The even ones are ours, and we open none.
        if stream_id == 0 or not stream_id & 1 or stream_id > self._last_stream_id:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, f"{name} on idle stream {stream_id}")

    def _is_refused(self, stream_id: int) -> bool:
        """Tell whether the peer opened the stream after our last GOAWAY; it is ignored (RFC 9113 6.8)."""
        return 0 <= self._goaway_last_id < stream_id

    def _reset_stream(self, stream_id: int, code: Http2Code) -> None:
        """Reset a stream for a mistake of the peer's; one that is idle cannot be reset (RFC 9113 5.1)."""
        if stream_id > self._last_stream_id or not stream_id & 1:
            raise Http2Error(code, f"illegal frame on idle stream {stream_id}")
        # Resets that the peer provokes count as its own (CVE-2025-8671), also those of streams that are too many.
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


_HANDLERS: dict[int, Callable[[Http2Connection[Any], int, int, memoryview], None]] = {
    wire.HEADERS: Http2Connection._headers_frame,
    wire.PRIORITY: Http2Connection._priority_frame,
    wire.RST_STREAM: Http2Connection._rst_stream_frame,
    wire.SETTINGS: Http2Connection._settings_frame,
    wire.PUSH_PROMISE: Http2Connection._push_promise_frame,
    wire.PING: Http2Connection._ping_frame,
    wire.GOAWAY: Http2Connection._goaway_frame,
    wire.WINDOW_UPDATE: Http2Connection._window_update_frame,
    wire.CONTINUATION: Http2Connection._continuation_frame,
}

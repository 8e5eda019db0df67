"""A server's HTTP/2 connection (RFC 9113), sans-IO: bytes in, calls to a sink, bytes out.

A request whose header block repeats and whose body is one DATA frame takes the fast path in `_receive_frames` when
one call brings all of it, also when other requests lie between its frames (nghttp2 sends the heads of several first).
Everything else goes frame by frame through `_receive_frame`.
"""

from typing import ClassVar, TypeVar

from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection import FRAME_HANDLERS, NO_TRAILERS, FrameHandlers, Http2Connection
from naiad.wire.http2.connection_limits import SMALL_FRAME, Http2Limits
from naiad.wire.http2.frames import Http2Code, Http2Error, StreamError
from naiad.wire.http2.headers import HeaderBlock, RequestHead, encode_fields, is_grpc_content_type
from naiad.wire.http2.hpack import RequestHeadDecoder
from naiad.wire.http2.keepalive import PingStrikes
from naiad.wire.http2.sink import ServerSink
from naiad.wire.http2.stream_state import Stream
from naiad.wire.http2.windows import server_settings
from naiad.wire.preface import PREFACE, TLS_REFUSAL, is_tls

S = TypeVar("S", bound=Stream)

_HEADERS_PLAIN = wire.FLAG_END_HEADERS | wire.FLAG_END_STREAM | wire.FLAG_PADDED | wire.FLAG_PRIORITY
_DRAIN_PING = b"drain..."
_TOO_LARGE_BLOCK = encode_fields(((b":status", b"431"), (b"content-type", b"application/json")))
_GRPC_TOO_LARGE = ((b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-status", b"8"))
_FREE_UPDATES = 16
"""WINDOW_UPDATE frames of one read that are not counted: reading costs more than they do."""


class ServerConnection(Http2Connection[S]):
    """The state of one connection: `receive_data` in, `output` out."""

    _sink: ServerSink[S]

    def __init__(self, sink: ServerSink[S], limits: Http2Limits) -> None:
        super().__init__(sink, limits, server_settings(limits))
        self._decoder = RequestHeadDecoder(limits)
        # New requests may take the fast path: SETTINGS have come, no header block is unfinished, no GOAWAY was sent.
        self._takes_fast_path = False
        self._ping_strikes = PingStrikes(limits.keepalive)
        self.is_draining = False
        """The connection ends with its last stream: a GOAWAY has been sent."""

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
            self._takes_fast_path = False
            self._goaway_last_id = self._last_stream_id
            self.output.send_control(wire.goaway(self._last_stream_id, Http2Code.NO_ERROR))

    @property
    def _last_peer_stream_id(self) -> int:
        return self._last_stream_id

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
            self._unread.keep_tail(data, position, len(PREFACE))
            return
        view = memoryview(data)
        unpack, unpack_uint32 = wire.FRAME_HEADER.unpack_from, wire.UINT32.unpack_from
        streams, output, limits = self._streams, self.output, self._limits
        cached_get, static_get = self._decoder.cached.get, self._decoder.cached_static.get
        max_frame_bytes, max_streams = limits.frame_bytes, limits.concurrent_streams
        receive_window, window = limits.stream_window_bytes, self.windows
        new_stream, request_received = self._sink.new_stream, self._sink.request_received
        # Streams whose head was not reported to the sink yet: their body may follow in these bytes.
        unreported: dict[int, S] = {}
        updates = 0
        if self._data_left or self._data_padding:
            position = self._continue_data(view, position)
        # Frames that begin before it are handled: whole headers, and not more than a slice.
        limit = end - 8
        unread = self._unread
        if end > unread.slice_bytes:
            limit = min(limit, position + unread.slice_bytes)
        while position < limit:
            word, flags, stream_id = unpack(data, position)
            body = position + 9
            length = word >> 8
            stop = body + length
            kind = word & 0xFF
            if kind == 0 and flags & 9 == 1 and stop <= end and stream_id in unreported:  # END_STREAM, not PADDED
                stream = unreported[stream_id]
                expected = stream.head.content_length
                if (expected < 0 or expected == length) and length <= max_frame_bytes and length <= window.left_bytes:
                    del unreported[stream_id]
                    window.left_bytes -= length
                    if window.left_bytes < window.half_bytes:
                        window.refill()
                    stream.is_remote_closed = True
                    request_received(stream, view[body:stop])
                    position = stop
                    continue
            elif kind == 1 and flags & _HEADERS_PLAIN == 4 and stop <= end and self._takes_fast_path:
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
                    streams[stream_id] = unreported[stream_id] = stream
                    position = stop
                    continue
            elif kind == 8 and length == 4 and stop <= end and output.widen(stream_id, unpack_uint32(data, body)[0]):
                # grpc-core sends one between the head and the body of every request.
                updates += 1
                position = stop
                continue
            if unreported:
                self._report_heads(unreported)
            following = self._receive_frame(data, view, position)
            if following < 0:
                limit = end
                break
            position = following
        if unreported:
            self._report_heads(unreported)
        if updates > _FREE_UPDATES:
            self._count_frame("WINDOW_UPDATE", updates * SMALL_FRAME)
        if position < end:
            unread.keep(data, position, limit)

    def _report_heads(self, unreported: dict[int, S]) -> None:
        for stream in unreported.values():
            self._sink.headers_received(stream)
        unreported.clear()

    # HEADERS and CONTINUATION

    def _headers_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        block = self._blocks.begin(flags, stream_id, payload)
        if block is None:
            self._takes_fast_path = False
        else:
            self._header_block(block)

    def _continuation_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        block = self._blocks.go_on(flags, payload)
        if block is not None:
            self._takes_fast_path = self._goaway_last_id < 0
            self._header_block(block)

    def _header_block(self, block: HeaderBlock) -> None:
        if block.stream_id > self._last_stream_id:
            self._open_stream(block, self._decode(self._decoder.decode, block))
        else:
            self._receive_trailers(block, self._decode(self._decoder.decode_fields, block))

    def _open_stream(self, block: HeaderBlock, head: RequestHead) -> None:
        self._last_stream_id = stream_id = block.stream_id
        if self._is_refused(stream_id):
            return
        limits = self._limits
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
            self._refuse_head(stream)
            return
        self._sink.headers_received(stream)
        if ends_stream and not stream.is_local_closed:
            self._sink.end_received(stream, NO_TRAILERS)

    def _refuse_head(self, stream: S) -> None:
        """Answer a request with too many or too large fields; other requests of the connection go on."""
        limits, output = self._limits, self.output
        reason = f"more than {limits.header_list_bytes} bytes or {limits.header_fields} fields of"
        if is_grpc_content_type(stream.head.field(b"content-type")):
            text = f"{reason} metadata; raise --grpc-max-header-size or --grpc-max-header-count"
            # RESOURCE_EXHAUSTED; `wire.grpc`, which encodes other answers of gRPC, is above this package.
            block = encode_fields((*_GRPC_TOO_LARGE, (b"grpc-message", text.encode())))
            output.send_headers(stream, block, ends_stream=True)
            return
        text = f'{{"error":"{reason} headers; raise --grpc-max-header-size or --grpc-max-header-count"}}'
        output.drop_body(stream)
        output.send_headers(stream, _TOO_LARGE_BLOCK)
        output.send_data(stream, (text.encode(),))
        output.send_end(stream)

    # Other frames

    def _settings_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        had_settings = self._has_settings
        super()._settings_frame(flags, stream_id, payload)
        if not had_settings:
            self._takes_fast_path = self._goaway_last_id < 0

    def _push_promise_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        raise Http2Error(Http2Code.PROTOCOL_ERROR, "PUSH_PROMISE from a client")  # RFC 9113 8.4

    def _ping_acknowledged(self, payload: memoryview) -> None:
        if self.is_draining and payload == _DRAIN_PING:
            self.finish_drain()

    def _check_ping_rate(self) -> None:
        if self._ping_strikes.is_one_too_many(self._now_ns, self.output.data_count, has_calls=bool(self._streams)):
            # gRPC clients know this text and ask less often from then on.
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, "too_many_pings")

    _handlers: ClassVar[FrameHandlers] = {
        **FRAME_HANDLERS,
        wire.HEADERS: _headers_frame,
        wire.CONTINUATION: _continuation_frame,
        wire.SETTINGS: _settings_frame,
        wire.PUSH_PROMISE: _push_promise_frame,
    }

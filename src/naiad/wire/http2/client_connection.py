"""A client's HTTP/2 connection (RFC 9113), sans-IO: streams opened here, responses to a sink, bytes out.

The owner asks `can_open`, opens a stream with a header block, and sends the body through `output`. A stream ends
with `end_received`, or with one of `stream_reset` and `stream_broken`. Streams that the server has not processed when
it goes away end with `stream_reset` and REFUSED_STREAM: their requests may be sent again on another connection.
"""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from naiad.core.tensor import Buffer
from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection import FRAME_HANDLERS, NO_TRAILERS, FrameHandlers, Http2Connection
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frame_output import Http2Output
from naiad.wire.http2.frames import Http2Code, Http2Error, StreamError
from naiad.wire.http2.headers import NO_RESPONSE_HEAD, HeaderBlock, ResponseHead
from naiad.wire.http2.hpack import ResponseHeadDecoder
from naiad.wire.http2.sink import ClientSink
from naiad.wire.http2.stream_state import Stream
from naiad.wire.http2.windows import client_settings
from naiad.wire.preface import PREFACE

_FIRST_FINAL_STATUS = 200
_TLS_ALERT = b"\x15"


class ClientStream(Stream):
    """A request and its response; transports derive their calls from it."""

    __slots__ = ()

    head: ResponseHead

    def __init__(self) -> None:
        super().__init__(0, NO_RESPONSE_HEAD, 0)


C = TypeVar("C", bound=ClientStream)


class ClientOutput(Http2Output):
    """The sending side of a client: the end of a request leaves its stream open for the response."""

    __slots__ = ()

    def send_body(self, stream: Stream, payload: Sequence[Buffer]) -> None:
        """Send a whole body and end the request: as one DATA frame where the windows allow it."""
        size = sum(map(len, payload))
        if (
            size <= self.peer_frame_bytes
            and size <= self.window
            and size <= stream.window_offset + self.peer_window
            and not self._ready
            and not self.is_paused
            and self._frames_bytes < self._write_buffer_bytes
        ):
            self.data_count += 1
            self.window -= size
            stream.window_offset -= size
            self.frames += (wire.FRAME_HEADER.pack(size << 8 | wire.DATA, wire.FLAG_END_STREAM, stream.id), *payload)
            self._frames_bytes += size + wire.FRAME_HEADER_BYTES
            self._end_local(stream)
            return
        self.send_data(stream, payload)
        self.send_end(stream)

    def _end_local(self, stream: Stream) -> None:
        stream.is_local_closed = True
        if stream.is_remote_closed:
            self._streams.pop(stream.id, None)


class ClientConnection(Http2Connection[C]):
    """The state of one connection: `receive_data` in, `output` out."""

    output: ClientOutput
    _sink: ClientSink[C]

    def __init__(self, sink: ClientSink[C], limits: Http2Limits) -> None:
        super().__init__(sink, limits, PREFACE + client_settings(limits), ClientOutput)
        self._decoder = ResponseHeadDecoder(limits.header_list_bytes, limits.header_fields)
        self.is_going_away = False
        """The server has sent GOAWAY: open streams end, new ones need another connection."""

    @property
    def can_open(self) -> bool:
        """Whether `open` may be called: the server takes one more stream."""
        # Before its SETTINGS the server's limit is not known; 100 is what RFC 9113 6.5.2 recommends at least.
        limit = min(self._limits.concurrent_streams, self.output.peer_max_streams if self._has_settings else 100)
        return not self._is_closed and not self.is_retired and len(self._streams) < limit

    @property
    def is_retired(self) -> bool:
        """No stream can be opened any more: the server goes away, or the stream ids are used up (RFC 9113 5.1.1)."""
        return self.is_going_away or self._last_stream_id >= wire.STREAM_ID_MASK - 2

    def open(self, stream: C, header_block: bytes, *, ends_stream: bool = False) -> None:
        """Open a stream with the header block of a request, which `encode_fields` makes, pseudo-fields first.

        Raises RuntimeError unless `can_open`.
        """
        if not self.can_open:
            raise RuntimeError("the connection takes no more streams; look at can_open first")
        self._last_stream_id = stream.id = self._last_stream_id + 2 if self._last_stream_id else 1
        stream.receive_window = self._limits.stream_window_bytes
        self._streams[stream.id] = stream
        self.output.send_headers(stream, header_block, ends_stream=ends_stream)

    def cancel(self, stream: C) -> None:
        """Reset a stream whose response is not wanted; its sink hears no more of it."""
        if stream.id in self._streams:
            self.output.reset(stream, Http2Code.CANCEL)

    @property
    def _last_peer_stream_id(self) -> int:
        return 0  # Servers open streams for pushed responses only, which are turned off.

    def _receive_preface(self, data: bytes) -> int:
        self._has_preface = True
        if data.startswith(b"HTTP/1"):
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "the server answers in HTTP/1: is this its gRPC port?")
        if data[:1] == _TLS_ALERT:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "the server expects TLS")
        return 0

    def _header_block(self, block: HeaderBlock) -> None:
        fields, head = self._decode(self._decoder.decode, block)
        self._check_not_idle(block.stream_id, "HEADERS")
        stream = self._streams.get(block.stream_id)
        if stream is None or stream.head is not NO_RESPONSE_HEAD or stream.is_remote_closed:
            self._receive_trailers(block, fields)
        else:
            self._receive_head(stream, block, head)

    def _receive_head(self, stream: C, block: HeaderBlock, head: ResponseHead) -> None:
        is_interim = 0 < head.status < _FIRST_FINAL_STATUS
        # RFC 9113 8.1: an interim response does not end a stream. 8.6: there is no 101 in HTTP/2.
        if head.error or (is_interim and (block.ends_stream or head.status == 101)):
            raise StreamError(stream.id, Http2Code.PROTOCOL_ERROR)
        if is_interim:
            self._count_frame("interim response")
            return
        if block.ends_stream and head.content_length > 0:  # RFC 9113 8.1.1
            raise StreamError(stream.id, Http2Code.PROTOCOL_ERROR)
        stream.head = head
        self._sink.headers_received(stream)
        if block.ends_stream and not stream.is_remote_closed:
            self._end_remote(stream, NO_TRAILERS)

    def _find_data_stream(self, stream_id: int, length: int) -> C | None:
        stream = super()._find_data_stream(stream_id, length)
        if stream is not None and stream.head is NO_RESPONSE_HEAD:  # RFC 9113 8.1
            raise StreamError(stream_id, Http2Code.PROTOCOL_ERROR)
        return stream

    def _close_remote(self, stream: C) -> bool:
        if not super()._close_remote(stream):
            return False
        # Before the sink hears of the end: it may open the next stream in the place of this one.
        if stream.is_local_closed and stream.queue is None:
            self._streams.pop(stream.id, None)
        else:
            # RFC 9113 8.1: the response is complete, so the rest of the request is not wanted.
            self.output.reset(stream, Http2Code.CANCEL)
        return True

    def _settings_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if not flags & wire.FLAG_ACK and len(payload) % wire.SETTING.size == 0:
            for key, value in wire.SETTING.iter_unpack(payload):
                if key == wire.SETTING_ENABLE_PUSH and value:  # RFC 9113 6.5.2
                    raise Http2Error(Http2Code.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH from a server")
        super()._settings_frame(flags, stream_id, payload)

    def _push_promise_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        raise Http2Error(Http2Code.PROTOCOL_ERROR, "PUSH_PROMISE, which the client has turned off")  # RFC 9113 6.6

    def _peer_goes_away(self, last_stream_id: int, code: int) -> None:
        self.is_going_away = True
        for stream in [each for each in self._streams.values() if each.id > last_stream_id]:
            self.output.forget(stream)
            self._sink.stream_reset(stream, Http2Code.REFUSED_STREAM)
        super()._peer_goes_away(last_stream_id, code)

    _handlers: ClassVar[FrameHandlers] = {
        **FRAME_HANDLERS,
        wire.SETTINGS: _settings_frame,
        wire.PUSH_PROMISE: _push_promise_frame,
    }

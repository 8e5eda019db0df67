"""A client that speaks HTTP/2 frame by frame with a server's protocol object, without sockets.

Frames are made and read by this package's own code (`support.raw_http2`), not by the server's.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

import hpack

from naiad.frontend.context import GrpcService
from naiad.frontend.http2.connection import Http2Server
from naiad.frontend.long_work.thread_pool import RunInThread, run_at_once
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.keepalive import KeepaliveRules
from support.raw_http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
    grpc_head,
    grpc_message,
)

HOLD, ECHO, STREAM = "/test.Service/Hold", "/test.Service/Echo", "/test.Service/Stream"
"""What the service does: never answer; answer with the message; answer with each message, end with the request."""

Fields = Iterable[tuple[str, str]]


class Frame(NamedTuple):
    """A frame that the server has sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of a RST_STREAM or GOAWAY."""
        offset = 4 if self.kind == GOAWAY else 0
        return int.from_bytes(self.payload[offset : offset + 4], "big")


class Service:
    """Answers as the path says."""

    def unary(self, call, message) -> None:
        if call.path == ECHO:
            call.respond((message,))

    def message_began(self, call: object, beginning: object) -> None:
        """Refuse nothing."""

    def rejection(self, path: str) -> None:
        """Answer every path."""

    def is_streaming(self, path: str) -> bool:
        return path == STREAM

    def stream_message(self, call, message) -> None:
        call.send((message,))

    def stream_half_closed(self, call) -> None:
        call.finish(0)

    def stream_writable(self, call) -> None:
        pass

    def stream_draining(self, call) -> None:
        pass


class Loop:
    """Runs scheduled callbacks on request; timers never fire."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "Loop":
        return self

    def cancel(self) -> None:
        pass

    def run(self) -> None:
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_closed = False
        self.is_ended = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed, "written after the connection was closed"
        self.written += data

    def writelines(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.write(piece)

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass


class Conversation:
    """One connection. Bytes are handed over in pieces of `piece_bytes`, 0 for all at once."""

    def __init__(
        self,
        piece_bytes: int = 0,
        limits: Http2Limits | None = None,
        *,
        opened: bool = True,
        service: GrpcService | None = None,
        run_in_thread: RunInThread = run_at_once,
    ) -> None:
        self._piece_bytes = piece_bytes
        self._loop = Loop()
        self.transport = Transport()
        # A PING after every step shows the tests that it was read.
        limits = replace(limits or Http2Limits(), keepalive=KeepaliveRules(peer_strikes=0))
        self._protocol = Http2Server(service or Service(), self._loop, limits, run_in_thread=run_in_thread).protocol()
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._protocol.connection_made(self.transport)
        if opened:
            self.send(PREFACE + frame(SETTINGS, 0, 0))
            self.frames()

    # What the client sends

    def send(self, data: bytes) -> None:
        """Hand over bytes until the server closes the connection."""
        size = self._piece_bytes or len(data) or 1
        for begin in range(0, len(data), size):
            if self.transport.is_closed:
                return
            self._protocol.data_received(data[begin : begin + size])
            while self._protocol._connection.has_unread:
                self._loop.run()

    def block(self, path: str = HOLD, *more: tuple[str, str], fields: Fields | None = None) -> bytes:
        """Return the header block of a gRPC request, or of `fields`."""
        return self._encoder.encode([*grpc_head(path), *more] if fields is None else list(fields))

    def headers(
        self,
        stream_id: int,
        path: str = HOLD,
        *more: tuple[str, str],
        fields: Fields | None = None,
        end: bool = False,
    ) -> bytes:
        """Return the HEADERS frame of a gRPC request, or of `fields`."""
        flags = END_HEADERS | (END_STREAM if end else 0)
        return frame(HEADERS, flags, stream_id, self.block(path, *more, fields=fields))

    def request(self, stream_id: int, message: bytes, path: str = ECHO) -> bytes:
        """Return a whole unary gRPC request."""
        return self.headers(stream_id, path) + frame(DATA, END_STREAM, stream_id, grpc_message(message))

    # What the server sends

    @property
    def streams(self) -> Collection[int]:
        """The streams that the server has not forgotten."""
        return self._protocol._connection.streams

    def run_soon(self) -> None:
        """Let the server do what it has put off until the end of a callback."""
        self._loop.run()

    def frames(self) -> list[Frame]:
        """Return what has been written since the last call."""
        self._loop.run()
        data, self.transport.written = bytes(self.transport.written), bytearray()
        frames = []
        while data:
            length = int.from_bytes(data[:3], "big")
            stream_id = int.from_bytes(data[5:9], "big")
            frames.append(Frame(data[3], data[4], stream_id, data[9 : 9 + length]))
            assert len(frames[-1].payload) == length, "the server wrote half a frame"
            data = data[9 + length :]
        return frames

    def body(self, frames: Iterable[Frame], stream_id: int = 1) -> bytes:
        """Return what the DATA frames of a stream carry."""
        return b"".join(each.payload for each in frames if each.kind == DATA and each.stream_id == stream_id)

    def fields(self, frames: Iterable[Frame], stream_id: int = 1) -> dict[str, str]:
        """Return the header and trailer fields of a stream; blocks must be decoded in the order of their arrival."""
        fields: dict[str, str] = {}
        for each in frames:
            if each.kind in (HEADERS, CONTINUATION) and each.stream_id == stream_id:
                fields.update(self._decoder.decode(each.payload))
        return fields

    # What is expected of it

    def accepts(self, data: bytes) -> list[Frame]:
        """Send bytes that break no rule and return what is answered."""
        self.send(data)
        frames = self.frames()
        broken = [each for each in frames if each.kind in (RST_STREAM, GOAWAY)]
        assert not broken
        self._assert_alive()
        return frames

    def stream_error(self, data: bytes, stream_id: int = 1) -> int:
        """Send bytes that end one stream (RFC 9113 5.4.2) and return the code of its RST_STREAM."""
        self.send(data)
        frames = self.frames()
        assert [each.stream_id for each in frames if each.kind in (RST_STREAM, GOAWAY)] == [stream_id]
        self._assert_alive()
        return next(each.code for each in frames if each.kind == RST_STREAM)

    def connection_error(self, data: bytes) -> int:
        """Send bytes that end the connection (RFC 9113 5.4.1) and return the code of the GOAWAY, which is last."""
        self.send(data)
        frames = self.frames()
        assert self.transport.is_closed
        assert [each.kind for each in frames].count(GOAWAY) == 1
        assert frames[-1].kind == GOAWAY
        return frames[-1].code

    def _assert_alive(self) -> None:
        # No PING: gRPC servers count those that no call justifies.
        self.send(frame(SETTINGS, 0, 0))
        assert self.frames() == [Frame(SETTINGS, ACK, 0, b"")]
        assert not self.transport.is_closed

"""What HTTP/2 tests share: a sink that records, and frames as a client makes them."""

from collections.abc import Iterator
from typing import Any

import hpack

from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import (
    DATA,
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    FRAME_HEADER,
    HEADERS,
    SETTINGS,
    frame,
    settings,
)
from naiad.wire.http2.server_connection import ServerConnection
from naiad.wire.http2.stream_state import Stream
from naiad.wire.preface import PREFACE

GRPC_FIELDS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "localhost:8001"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
SETTINGS_FRAME = frame(SETTINGS, 0, 0)
OPENING = PREFACE + SETTINGS_FRAME


class RecordingSink:
    """Records per stream what arrives; a request in one piece is recorded as its parts."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.bodies: dict[int, bytearray] = {}
        self.streams: dict[int, Stream] = {}
        self.one_piece = 0

    def new_stream(self, stream_id, head, receive_window):
        stream = self.streams[stream_id] = Stream(stream_id, head, receive_window)
        return stream

    def request_received(self, stream, body):
        self.one_piece += 1
        self.headers_received(stream)
        if body:
            self.body_received(stream, body)
        self.end_received(stream, ())

    def headers_received(self, stream):
        self.bodies[stream.id] = bytearray()
        self.calls.append(("headers", stream.id, stream.head.path, stream.head.fields))

    def body_received(self, stream, data):
        assert isinstance(data, memoryview)
        assert len(data)
        self.bodies[stream.id] += data

    def end_received(self, stream, trailers):
        assert stream.is_remote_closed
        self.calls.append(("end", stream.id, bytes(self.bodies[stream.id]), trailers))

    def stream_broken(self, stream, code):
        self.calls.append(("broken", stream.id, int(code), bytes(self.bodies.get(stream.id, b""))))

    def stream_reset(self, stream, code):
        self.calls.append(("reset", stream.id, int(code), bytes(self.bodies.get(stream.id, b""))))

    def goaway_received(self, code):
        self.calls.append(("goaway", code))


class Peer:
    """A client that writes frames by hand to a connection and reads what it answers."""

    def __init__(self, limits: Http2Limits | None = None, *, opened: bool = True) -> None:
        self.sink = RecordingSink()
        self.connection = ServerConnection(self.sink, limits or Http2Limits())
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.now_ns = 1_000_000_000
        if opened:
            self.send(OPENING)
            self.frames()

    def send(self, data: bytes) -> None:
        self.connection.receive_data(data, self.now_ns)

    def headers(self, stream_id: int, fields=None, *, end: bool = False) -> bytes:
        block = self.encoder.encode(GRPC_FIELDS if fields is None else fields)
        return frame(HEADERS, FLAG_END_HEADERS | (FLAG_END_STREAM if end else 0), stream_id, block)

    def request(self, stream_id: int, body: bytes = b"", fields=None) -> bytes:
        return self.headers(stream_id, fields) + data_frame(stream_id, body, end=True)

    def raw(self) -> bytes:
        return b"".join(self.connection.output.take())

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Return (type, flags, stream, payload) of what the connection has sent since the last call."""
        return list(split_frames(self.raw()))


def data_frame(stream_id: int, body: bytes, *, end: bool = False) -> bytes:
    return frame(DATA, FLAG_END_STREAM if end else 0, stream_id, body)


def settings_frame(values: dict[int, int]) -> bytes:
    return settings(values)


def split_frames(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    position = 0
    while position < len(data):
        word, flags, stream_id = FRAME_HEADER.unpack_from(data, position)
        position += 9 + (word >> 8)
        yield word & 0xFF, flags, stream_id, data[position - (word >> 8) : position]

"""An HTTP/2 client that writes frames by hand, for what no well-behaved client would send."""

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import hpack

from support.raw_http1 import connect

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8

GRPC_INFER = "/inference.GRPCInferenceService/ModelInfer"
GRPC_LIVE = "/inference.GRPCInferenceService/ServerLive"


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


def grpc_message(payload: bytes, *, flag: int = 0, length: int | None = None) -> bytes:
    """Return a length-prefixed message; `length` makes the prefix lie."""
    return struct.pack(">BI", flag, len(payload) if length is None else length) + payload


def grpc_head(path: str = GRPC_LIVE, **fields: str) -> list[tuple[str, str]]:
    """Return the fields of a gRPC request; `content_type="text/plain"` overrides or adds one."""
    head = {
        ":method": "POST",
        ":scheme": "http",
        ":authority": "test",
        ":path": path,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    head.update({name.replace("_", "-"): value for name, value in fields.items()})
    return list(head.items())


class Http2Answer:
    """What came back on one stream."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.body = b""
        self.is_ended = False
        self.reset_code: int | None = None

    @property
    def grpc_status(self) -> int:
        """The status number; fails when there is none."""
        return int(self.fields["grpc-status"])

    @property
    def grpc_message(self) -> str:
        """The status message, still percent-encoded."""
        return self.fields.get("grpc-message", "")


class Http2Peer:
    """A connection to a gRPC port."""

    def __init__(self, url: str, *, opening: bytes = PREFACE + frame(SETTINGS, 0, 0)) -> None:
        self._socket = connect(url)
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._received = b""
        self._answers: dict[int, Http2Answer] = {}
        self.goaway_code: int | None = None
        self.goaway_text = b""
        self.pings: list[bytes] = []
        self.raw = b""
        """Everything that has been received."""
        self.send(opening)

    def __enter__(self) -> "Http2Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> bool:
        """Send bytes; False when the server has closed already."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def block(self, fields: Iterable[tuple[str, str]]) -> bytes:
        """Return a header block."""
        return self._encoder.encode(list(fields))

    def headers(self, stream_id: int, fields: Iterable[tuple[str, str]] | None = None, *, end: bool = False) -> bytes:
        """Return a HEADERS frame with a whole block."""
        block = self.block(grpc_head() if fields is None else fields)
        return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream_id, block)

    def call(self, stream_id: int, path: str, message: bytes, **fields: str) -> Http2Answer:
        """Make a unary gRPC call and return its answer."""
        body = frame(DATA, END_STREAM, stream_id, grpc_message(message))
        self.send(self.headers(stream_id, grpc_head(path, **fields)) + body)
        return self.answer(stream_id)

    def answer(self, stream_id: int) -> Http2Answer:
        """Wait for the end of a stream."""
        answer = self._answers.setdefault(stream_id, Http2Answer())
        while not answer.is_ended and answer.reset_code is None:
            if not self._receive():
                raise AssertionError(
                    f"connection closed without an answer on stream {stream_id}; "
                    f"GOAWAY {self.goaway_code} {self.goaway_text!r}"
                )
        return answer

    def wait_ping(self, payload: bytes) -> None:
        """Wait for the answer to a PING, which shows that everything before it was read."""
        while payload not in self.pings:
            assert self._receive(), f"closed before the PING was answered; GOAWAY {self.goaway_code}"

    def goes_on(self, data: bytes) -> bool:
        """Send bytes and return whether the server has read them all and not closed.

        What is still on its way when a server closes makes the kernel drop the GOAWAY that it has sent.
        """
        payload = len(self.pings).to_bytes(8, "big")
        if not self.send(data + frame(PING, 0, 0, payload)):
            return False
        while payload not in self.pings:
            if not self._receive():
                return False
        return True

    def wait_goaway(self) -> int:
        """Wait for a GOAWAY and the end of the connection, and return its code."""
        while self._receive():
            pass
        assert self.goaway_code is not None, f"closed without GOAWAY, after {self.raw[-300:]!r}"
        return self.goaway_code

    def _receive(self) -> bool:
        try:
            piece = self._socket.recv(65536)
        except ConnectionResetError:
            piece = b""
        self.raw += piece
        self._received += piece
        for kind, flags, stream_id, payload in self._frames():
            self._take(kind, flags, stream_id, payload)
        return bool(piece)

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + length:
                return
            kind, flags, stream_id = struct.unpack_from(">BBI", self._received, 3)
            payload, self._received = self._received[9 : 9 + length], self._received[9 + length :]
            yield kind, flags, stream_id, payload

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        answer = self._answers.setdefault(stream_id, Http2Answer())
        if kind == HEADERS:
            answer.fields.update({str(name): str(value) for name, value in self._decode(payload)})
        elif kind == DATA:
            answer.body += payload
        elif kind == RST_STREAM:
            answer.reset_code = int.from_bytes(payload, "big")
        elif kind == GOAWAY:
            self.goaway_code = int.from_bytes(payload[4:8], "big")
            self.goaway_text = payload[8:]
        elif kind == PING and flags & ACK:
            self.pings.append(payload)
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            answer.is_ended = True

    def _decode(self, block: bytes) -> Iterator[tuple[Any, Any]]:
        for name, value in self._decoder.decode(block, raw=True):
            yield name.decode("latin-1"), value.decode("latin-1")

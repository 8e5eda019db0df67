"""Times the two directions of one large gRPC call apart: a blocking HTTP/2 client that does this and nothing else.

Like gRPC's own library it sends frames as large as the server's SETTINGS_MAX_FRAME_SIZE allows and opens its windows
wide, so that the server is measured and not the client.
"""

import socket
import struct
import time
from collections.abc import Sequence

import hpack

from bench.transfer import Transfer

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5
_WINDOW_BYTES = (1 << 31) - 1
_FRAME_BYTES = 1 << 22
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload) << 8 | kind) + struct.pack(">BI", flags, stream) + payload


class GrpcConnection:
    """One HTTP/2 connection that carries one call at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb", buffering=1 << 16)
        self._encoder = hpack.Encoder()
        self._stream = -1
        self._frame_bytes = 1 << 14
        self._initial_window = self._stream_window = self._connection_window = (1 << 16) - 1
        self._received = 0
        self._ended = False
        settings = struct.pack(">HIHI", _INITIAL_WINDOW_SIZE, _WINDOW_BYTES, _MAX_FRAME_SIZE, _FRAME_BYTES)
        update = struct.pack(">I", _WINDOW_BYTES - self._connection_window)
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW_UPDATE, 0, 0, update))
        self._read_frame()  # the server's settings come first (RFC 9113 section 3.4)

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()
        self._socket.close()

    def call(self, path: str, headers: Sequence[tuple[str, str]], body: bytes, answer_bytes: int) -> Transfer:
        """Send a framed message and read the answer. Raises RuntimeError when it is not of that length."""
        self._stream += 2
        self._stream_window = self._initial_window
        self._received, self._ended = 0, False
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "127.0.0.1"), *headers]
        began = time.perf_counter()
        self._socket.sendall(_frame(_HEADERS, _END_HEADERS, self._stream, self._encoder.encode(fields)))
        self._send(memoryview(body))
        sent = time.perf_counter()
        while not self._received and not self._ended:
            self._read_frame()
        first = time.perf_counter()
        while not self._ended:
            self._read_frame()
        done = time.perf_counter()
        if self._received != answer_bytes:
            raise RuntimeError(f"the server answered {self._received} bytes instead of {answer_bytes}")
        # The windows were given in full at the start; what this answer took of the connection's is given back.
        self._socket.sendall(_frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received)))
        return Transfer(sent - began, first - sent, done - first)

    def _send(self, body: memoryview) -> None:
        position = 0
        while position < len(body):
            room = min(self._frame_bytes, self._stream_window, self._connection_window, len(body) - position)
            if room <= 0:
                self._read_frame()
                continue
            flags = _END_STREAM if position + room == len(body) else 0
            head = _frame(_DATA, flags, self._stream, b"")
            self._socket.sendall(struct.pack(">I", room << 8 | _DATA) + head[4:])
            self._socket.sendall(body[position : position + room])
            position += room
            self._stream_window -= room
            self._connection_window -= room

    def _read_frame(self) -> None:
        head = self._read(9)
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        stream = int.from_bytes(head[5:], "big")
        payload = self._read(length)
        if kind == _DATA:
            self._received += length
        elif kind == _WINDOW_UPDATE:
            self._open_window(stream, int.from_bytes(payload, "big"))
        elif kind == _SETTINGS and not flags & _ACK:
            self._apply(payload)
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind in (_RST_STREAM, _GOAWAY):
            raise RuntimeError(f"the server ended the call with frame type {kind}: {payload!r}")
        if kind in (_DATA, _HEADERS) and stream == self._stream and flags & _END_STREAM:
            self._ended = True

    def _read(self, count: int) -> bytes:
        data: bytes = self._reader.read(count)
        if len(data) != count:
            raise RuntimeError("the server closed the connection")
        return data

    def _open_window(self, stream: int, increment: int) -> None:
        if stream == 0:
            self._connection_window += increment
        elif stream == self._stream:
            self._stream_window += increment

    def _apply(self, payload: bytes) -> None:
        for identifier, value in struct.iter_unpack(">HI", payload):
            if identifier == _INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._initial_window
                self._initial_window = value
            elif identifier == _MAX_FRAME_SIZE:
                self._frame_bytes = value
        self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))

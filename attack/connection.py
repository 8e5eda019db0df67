"""Connections of an attacker: sockets that read while they write, and what a request is on each protocol.

`send` never waits for a server that has stopped reading longer than `_PATIENCE_S`, and discards or parses what comes
back meanwhile, so that neither side can make the other wait for good.
"""

import select
import socket
import struct
import time
from collections.abc import Iterable, Mapping

from naiad.wire.http2 import frames as wire
from naiad.wire.http2.headers import Field, encode_fields
from naiad.wire.preface import PREFACE

_PATIENCE_S = 5.0
_PIECE_BYTES = 256 * 1024
_FRAME_BYTES = 16 * 1024
GRPC_INFER = "/inference.GRPCInferenceService/ModelInfer"
GRPC_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
GRPC_LIVE = "/inference.GRPCInferenceService/ServerLive"


class Connection:
    """A socket to the server; `is_open` turns false when the server closes or stops reading."""

    def __init__(self, port: int) -> None:
        self.sent_bytes = 0
        self.is_open = True
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, data: bytes, *, reads: bool = True) -> bool:
        """Send bytes, and take what arrives meanwhile; return whether the connection is still open."""
        view = memoryview(data)
        while view and self.is_open:
            readable, writable = self._poll(_PATIENCE_S, (select.POLLIN if reads else 0) | select.POLLOUT)
            if not readable and not writable:
                self.is_open = False
            if readable:
                self._receive()
            if writable and self.is_open:
                view = view[self._send_some(view) :]
        return self.is_open

    def wait(self, seconds: float) -> bool:
        """Take what arrives next; return whether anything did."""
        readable, _ = self._poll(seconds, select.POLLIN)
        if readable:
            self._receive()
        return readable

    def _poll(self, seconds: float, events: int) -> tuple[bool, bool]:
        """Return whether the socket can be read, and whether it can be written; an error counts as both."""
        poll = select.poll()  # not select(), whose descriptors end at 1023
        poll.register(self._socket, events)
        found = poll.poll(1000 * seconds)
        mask = found[0][1] if found else 0
        broken = select.POLLERR | select.POLLHUP
        return bool(mask & (select.POLLIN | broken)), bool(mask & (select.POLLOUT | broken))

    def _send_some(self, view: memoryview) -> int:
        try:
            sent = self._socket.send(view[:_PIECE_BYTES])
        except BlockingIOError:
            return 0
        except OSError:
            self.is_open = False
            return 0
        self.sent_bytes += sent
        return sent

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.take(data)
        else:
            self.is_open = False

    def take(self, data: bytes) -> None:
        """Look at received bytes."""


class Http1Peer(Connection):
    """An HTTP/1.1 client; `status` is that of the latest response, 0 before it."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.status = 0

    def take(self, data: bytes) -> None:
        """Find a status line; bodies of responses here are small."""
        place = data.find(b"HTTP/1.1 ")
        if place >= 0:
            self.status = int(data[place + 9 : place + 12] or b"0")

    def head(self, path: str, fields: Mapping[str, str], *, method: str = "POST") -> bytes:
        """Return a request line and its fields."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"{method} {path} HTTP/1.1\r\nhost: attack\r\n{lines}\r\n".encode()

    def request(
        self, path: str, body: bytes, fields: Mapping[str, str] | None = None, *, most_s: float = 30.0
    ) -> int:
        """Send a POST and return the status of the answer, 0 when none came."""
        self.status = 0
        self.send(self.head(path, {"content-length": str(len(body)), **(fields or {})}) + body)
        end_s = time.monotonic() + most_s
        while self.is_open and not self.status and time.monotonic() < end_s:
            self.wait(0.1)
        return self.status


class Http2Peer(Connection):
    """An HTTP/2 client that can break every rule, and keeps the server's windows where it does not mean to."""

    def __init__(self, port: int, *, is_grpc: bool, settings: bytes = b"") -> None:
        super().__init__(port)
        self.is_grpc = is_grpc
        self.goaway = b""
        """The payload of the server's GOAWAY frame."""
        self.next_id = 1
        self._received = bytearray()
        self._answered: set[int] = set()
        self._pings: set[bytes] = set()
        self._window = wire.DEFAULT_WINDOW
        self._stream_window = wire.DEFAULT_WINDOW
        self._stream_credits: dict[int, int] = {}
        """Windows less the server's initial one, whose changes are for open streams too (RFC 9113 6.9.2)."""
        self.send(PREFACE + wire.frame(wire.SETTINGS, 0, 0, settings))

    def take(self, data: bytes) -> None:
        """Cut frames."""
        received = self._received
        received += data
        position = 0
        while len(received) - position >= wire.FRAME_HEADER_BYTES:
            word, flags, stream_id = wire.FRAME_HEADER.unpack_from(received, position)
            stop = position + wire.FRAME_HEADER_BYTES + (word >> 8)
            if stop > len(received):
                break
            payload = bytes(received[position + wire.FRAME_HEADER_BYTES : stop])
            self._frame(word & 0xFF, flags, stream_id, payload)
            position = stop
        del received[:position]

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind in (wire.HEADERS, wire.RST_STREAM):
            self._answered.add(stream_id)
        elif kind == wire.WINDOW_UPDATE:
            (increment,) = wire.UINT32.unpack(payload)
            if stream_id:
                self._stream_credits[stream_id] = self._stream_credits.get(stream_id, 0) + increment
            else:
                self._window += increment
        elif kind == wire.SETTINGS and not flags & wire.FLAG_ACK:
            for key, value in wire.SETTING.iter_unpack(payload):
                if key == wire.SETTING_INITIAL_WINDOW_SIZE:
                    self._stream_window = value
        elif kind == wire.PING and flags & wire.FLAG_ACK:
            self._pings.add(payload)
        elif kind == wire.GOAWAY:
            self.goaway = payload

    def _left(self, stream_id: int) -> int:
        return self._stream_window + self._stream_credits.get(stream_id, 0)

    def new_id(self) -> int:
        """Return the number of a new stream."""
        stream_id = self.next_id
        self.next_id += 2
        return stream_id

    def fields(self, path: str, more: Iterable[Field] = ()) -> bytes:
        """Return the header block of a request."""
        content_type = b"application/grpc" if self.is_grpc else b"application/octet-stream"
        return encode_fields(
            (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", path.encode()),
                (b":authority", b"localhost"),
                (b"te", b"trailers"),
                (b"content-type", content_type),
                *more,
            )
        )

    def open_stream(self, path: str, more: Iterable[Field] = ()) -> tuple[int, bytes]:
        """Return the number of a new stream and its HEADERS frame; a body may follow."""
        stream_id = self.new_id()
        return stream_id, wire.frame(wire.HEADERS, wire.FLAG_END_HEADERS, stream_id, self.fields(path, more))

    def send_body(self, stream_id: int, body: bytes, *, ends: bool = True, most_s: float = 30.0) -> None:
        """Send DATA as the windows allow, until the server answers or closes."""
        view, end_s = memoryview(body), time.monotonic() + most_s
        while self.is_open and stream_id not in self._answered and time.monotonic() < end_s:
            room = min(len(view), self._window, self._left(stream_id), _FRAME_BYTES)
            if view and room <= 0:
                self.wait(0.1)
                continue
            is_last = room == len(view)
            flags = wire.FLAG_END_STREAM if is_last and ends else 0
            self.send(wire.frame(wire.DATA, flags, stream_id, bytes(view[:room])))
            self._window -= room
            self._stream_credits[stream_id] = self._stream_credits.get(stream_id, 0) - room
            view = view[room:]
            if is_last:
                return

    def request(
        self, path: str, body: bytes, fields: Mapping[str, str] | None = None, *, most_s: float = 30.0
    ) -> int:
        """Send a request and wait for its answer; return whether one came."""
        more = [(name.lower().encode(), value.encode()) for name, value in (fields or {}).items()]
        stream_id, head = self.open_stream(path, more)
        self.send(head)
        self.send_body(stream_id, body, most_s=most_s)
        end_s = time.monotonic() + most_s
        while self.is_open and stream_id not in self._answered and time.monotonic() < end_s:
            self.wait(0.1)
        return int(stream_id in self._answered)

    def call(self, path: str, message: bytes, *, encoding: str = "", most_s: float = 30.0) -> int:
        """Make a gRPC call; `message` is compressed already when `encoding` names how."""
        prefix = struct.pack(">BI", int(bool(encoding)), len(message))
        return self.request(path, prefix + message, {"grpc-encoding": encoding} if encoding else {}, most_s=most_s)

    def wait_read(self, most_s: float = 30.0) -> bool:
        """Wait until the server has read everything that was sent; return whether it has not closed."""
        payload = struct.pack(">Q", time.monotonic_ns())
        self.send(wire.frame(wire.PING, 0, 0, payload))
        end_s = time.monotonic() + most_s
        while self.is_open and payload not in self._pings and time.monotonic() < end_s:
            self.wait(0.1)
        return payload in self._pings

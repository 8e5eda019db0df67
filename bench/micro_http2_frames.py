"""CPU nanoseconds that each kind of HTTP/2 frame costs the server, per frame and per byte, without sockets.

The limits on floods are off, so that the table says what they have to bound: docs/security.md has its budgets.

    python -m bench.micro_http2_frames [--frames 50000]
"""

import argparse
import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.micro_http2 import CountingTransport, EchoService
from naiad.core.tensor import Buffer
from naiad.frontend.context import GrpcCall
from naiad.frontend.http2.connection import Http2Server
from naiad.wire.http2 import frames as wire
from naiad.wire.http2.frames import frame
from naiad.wire.http2.headers import encode_fields
from naiad.wire.http2.keepalive import KeepaliveRules
from naiad.wire.http2.limits import Http2Limits
from naiad.wire.preface import PREFACE

_UNBOUNDED = 1 << 40
_READ_BYTES = 64 * 1024
_STREAM = "/bench.Service/Stream"


class StreamService(EchoService):
    """Takes the messages of streams and answers none."""

    def is_streaming(self, path: str) -> bool:
        return path == _STREAM

    def stream_message(self, call: GrpcCall, message: Buffer) -> None:
        pass


@dataclass
class Flood:
    """What is sent: once, then again and again."""

    opening: bytes
    frames: Iterator[bytes] | bytes
    frames_each: int = 1
    """Frames in an element of `frames`."""


def _head(stream_id: int, path: str = _STREAM, more: bytes = b"", flags: int = wire.FLAG_END_HEADERS) -> bytes:
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode())]
    block = encode_fields([*fields, (b"content-type", b"application/grpc")])
    return frame(wire.HEADERS, flags, stream_id, block + more)


def _distinct_heads(fields: int) -> Iterator[bytes]:
    for stream_id in range(1, 1 << 30, 2):
        name = b"\x00\x04%04d\x00" % (stream_id // 2 % 10_000)
        more = b"\x90" * (fields - 5) + name
        yield _head(stream_id, more=more) + wire.rst_stream(stream_id, 8)


def _huffman_heads(size: int) -> Iterator[bytes]:
    """Give heads with a Huffman-coded value of `size` bytes, 5 bits a character, which is the most work a byte."""
    length = size - 127
    value = b"\xff" + bytes((length & 127 | 128, length >> 7)) + b"\x18\xc6\x31\x8c\x63" * (size // 5)
    for stream_id in range(1, 1 << 30, 2):
        yield _head(stream_id, more=b"\x00\x04%04d" % (stream_id // 2 % 10_000) + value) + wire.rst_stream(
            stream_id, 8
        )


def _inserting_heads(fields: int) -> Iterator[bytes]:
    """Give heads whose fields enter the dynamic table and throw out others."""
    more = b"\x40\x01a\x00" * fields
    for stream_id in range(1, 1 << 30, 2):
        yield _head(stream_id, more=more) + wire.rst_stream(stream_id, 8)


def _repeated_heads() -> Iterator[bytes]:
    for stream_id in range(1, 1 << 30, 2):
        yield _head(stream_id) + wire.rst_stream(stream_id, 8)


def floods() -> Mapping[str, Flood]:
    opened = _head(1)
    reset = opened + wire.rst_stream(1, 8)
    settings = wire.SETTING.pack(wire.SETTING_INITIAL_WINDOW_SIZE, 1)
    return {
        "PING": Flood(b"", frame(wire.PING, 0, 0, bytes(8))),
        "SETTINGS, empty": Flood(b"", frame(wire.SETTINGS, 0, 0)),
        "SETTINGS, 64 values": Flood(opened, frame(wire.SETTINGS, 0, 0, settings * 64)),
        "SETTINGS ACK": Flood(b"", wire.SETTINGS_ACK),
        "PRIORITY": Flood(b"", frame(wire.PRIORITY, 0, 1, b"\0\0\0\0\x10")),
        "unknown type, empty": Flood(b"", frame(99, 0, 0)),
        "GOAWAY": Flood(opened, wire.goaway(0, 0)),
        "WINDOW_UPDATE, connection": Flood(b"", wire.window_update(0, 1)),
        "WINDOW_UPDATE, stream": Flood(opened, wire.window_update(1, 1)),
        "WINDOW_UPDATE, closed stream": Flood(reset, wire.window_update(1, 1)),
        "DATA, empty": Flood(opened, frame(wire.DATA, 0, 1)),
        "DATA, 1 byte": Flood(opened + frame(wire.DATA, 0, 1, b"\0\x7f\xff\xff\xff"), frame(wire.DATA, 0, 1, b"x")),
        "DATA, 1 byte and padding": Flood(
            opened + frame(wire.DATA, 0, 1, b"\0\x7f\xff\xff\xff"),
            frame(wire.DATA, wire.FLAG_PADDED, 1, b"\xffx" + bytes(255)),
        ),
        "DATA, an empty message": Flood(opened, frame(wire.DATA, 0, 1, bytes(5))),
        "RST_STREAM, closed stream": Flood(reset, wire.rst_stream(1, 8)),
        "HEADERS and RST_STREAM": Flood(b"", _repeated_heads(), 2),
        "HEADERS of 10 new fields and RST_STREAM": Flood(b"", _distinct_heads(10), 2),
        "HEADERS of 128 new fields and RST_STREAM": Flood(b"", _distinct_heads(128), 2),
        "HEADERS of 100 inserted fields and RST_STREAM": Flood(b"", _inserting_heads(100), 2),
        "HEADERS of 5,000 Huffman bytes and RST_STREAM": Flood(b"", _huffman_heads(5000), 2),
    }


def measure(flood: Flood, count: int) -> tuple[float, float]:
    """Return nanoseconds for each frame and for each byte."""
    loop = asyncio.new_event_loop()
    limits = Http2Limits(
        control_frames_burst=_UNBOUNDED, resets_burst=_UNBOUNDED, keepalive=KeepaliveRules(peer_strikes=0)
    )
    protocol = Http2Server(StreamService(), loop, limits).protocol()
    protocol.connection_made(CountingTransport())
    protocol.data_received(PREFACE + frame(wire.SETTINGS, 0, 0) + flood.opening)
    reads = list(_reads(flood, count))
    connection = protocol._connection
    began_s = time.process_time()
    for data in reads:
        connection.receive_data(data, time.monotonic_ns())
        protocol._flow.flush()
    elapsed_ns = (time.process_time() - began_s) * 1e9
    loop.close()
    return elapsed_ns / count, elapsed_ns / sum(map(len, reads))


def _reads(flood: Flood, count: int) -> Iterator[bytes]:
    pieces = flood.frames
    piece_count = count // flood.frames_each
    data = b"".join(
        (pieces for _ in range(piece_count))
        if isinstance(pieces, bytes)
        else (next(pieces) for _ in range(piece_count))
    )
    for begin in range(0, len(data), _READ_BYTES):
        yield data[begin : begin + _READ_BYTES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=50_000)
    options = parser.parse_args()
    print(f"{'frame':42} {'ns/frame':>9} {'ns/byte':>8}")
    for name, flood in floods().items():
        per_frame_ns, per_byte_ns = measure(flood, options.frames)
        print(f"{name:42} {per_frame_ns:9.0f} {per_byte_ns:8.0f}")


if __name__ == "__main__":
    main()

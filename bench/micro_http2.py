"""CPU microseconds that HTTP/2 and gRPC framing cost per unary request, without sockets or a model.

Requests come as h2load sends them: repeated header blocks of several streams, then one DATA frame for each.

    python -m bench.micro_http2 [--requests 200000] [--per-read 8]
"""

import argparse
import asyncio
import time
from collections.abc import Sequence

import hpack

from bench.in_memory import MemoryTransport
from naiad.core.tensor import Buffer
from naiad.frontend.connections.reading_turns import NEVER_NS
from naiad.frontend.context import GrpcCall
from naiad.frontend.http2.connection import Http2Server
from naiad.wire.http2.frames import DATA, HEADERS, SETTINGS, WINDOW_UPDATE, frame
from naiad.wire.preface import PREFACE

MESSAGE_BYTES = 200
FIELDS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "localhost:8001"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    ("user-agent", "h2load nghttp2/1.52.0"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("content-length", str(MESSAGE_BYTES + 5)),
]


class EchoService:
    """Answers each call with its message."""

    def unary(self, call: GrpcCall, message: Buffer) -> None:
        call.respond((message,))

    def message_began(self, call: object, beginning: object) -> None:
        """Refuse nothing."""

    def rejection(self, path: str) -> None:
        """Answer every path."""

    def is_streaming(self, path: str) -> bool:
        return False

    def stream_message(self, call: GrpcCall, message: Buffer) -> None:
        raise AssertionError

    def stream_half_closed(self, call: GrpcCall) -> None:
        raise AssertionError

    stream_writable = stream_draining = stream_half_closed


def make_reads(requests: int, per_read: int) -> tuple[bytes, list[bytes]]:
    """Return the opening bytes and the reads that follow."""
    encoder = hpack.Encoder()
    first = encoder.encode(FIELDS)
    block = encoder.encode(FIELDS)
    body = b"\0" + MESSAGE_BYTES.to_bytes(4, "big") + bytes(MESSAGE_BYTES)

    def requests_of(stream_ids: Sequence[int], header_block: bytes) -> bytes:
        heads = b"".join(frame(HEADERS, 4, stream_id, header_block) for stream_id in stream_ids)
        return heads + b"".join(frame(DATA, 1, stream_id, body) for stream_id in stream_ids)

    opening = PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, (2**31 - 1 - 65535).to_bytes(4, "big"))
    opening += requests_of([1], first) + requests_of([3], block)
    reads = []
    stream_id = 5
    for _ in range(requests // per_read):
        reads.append(requests_of(range(stream_id, stream_id + 2 * per_read, 2), block))
        stream_id += 2 * per_read
    return opening, reads


def measure(opening: bytes, reads: Sequence[bytes], count: int) -> float:
    """Return the microseconds of each of the `count` requests in `reads`."""
    loop = asyncio.new_event_loop()
    server = Http2Server(EchoService(), loop)
    server.reading_turns.look_ns = NEVER_NS  # the loop, which ends its turns, does not run
    protocol = server.protocol()
    transport = MemoryTransport()
    protocol.connection_made(transport)
    protocol.data_received(opening)
    receive = protocol.data_received
    start = time.process_time()
    for data in reads:
        receive(data)
        while transport.is_paused:  # after 2 ms of long reads a connection lets others pass
            loop.call_soon(loop.stop)
            loop.run_forever()
    elapsed = time.process_time() - start
    assert not protocol._connection.streams
    assert transport.writes >= len(reads)
    loop.close()
    return elapsed / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--per-read", type=int, nargs="*", default=[1, 4, 32])
    options = parser.parse_args()
    for per_read in options.per_read:
        opening, reads = make_reads(options.requests, per_read)
        count = len(reads) * per_read
        best = min(measure(opening, reads, count) for _ in range(3))
        print(f"{per_read:3d} requests per read: {best:.2f} us per request")


if __name__ == "__main__":
    main()

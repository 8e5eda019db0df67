"""CPU microseconds that a load generator's target costs per request, against processes that return canned responses.

python -m bench.micro_perf [--protocol grpc] [--seconds 3] [--concurrency 32]
"""

import argparse
import asyncio
import multiprocessing
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import uvloop

from naiad.core.datatype import DataType
from naiad.core.request import RequestHeader
from naiad.core.tensor import TensorSpec, to_buffer
from naiad.protocol.grpc.walk import encode_varint
from naiad.tools.perf.perf_exchange import RequestTemplate, SentRequest
from naiad.tools.perf.perf_plan import Mode, Protocol, ServerTarget
from naiad.tools.perf.targets import make_target
from naiad.wire.grpc import HEADER_BLOCK, OK_TRAILER_BLOCK, PREFIX
from naiad.wire.http2.frames import DATA, HEADERS, SETTING_INITIAL_WINDOW_SIZE, frame, settings, window_update
from naiad.wire.preface import PREFACE

JSON = (
    b'{"model_name":"identity","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1,4],'
    b'"parameters":{"binary_data_size":16}}]}'
)
HTTP_RESPONSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
)
HTTP_RESPONSE = (HTTP_RESPONSE + b"Content-Length: %d\r\n\r\n") % (len(JSON), len(JSON) + 16) + JSON + bytes(16)
MESSAGE = b"\x0a\x08identity\x12\x011\x2a\x15\x0a\x07OUTPUT0\x12\x04FP32\x1a\x02\x01\x04\x32\x10" + bytes(16)
SCRIPTS = 2
"""Server processes."""


class HttpScript(asyncio.Protocol):
    """Returns a response for each piece that it receives: a small request comes in one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(HTTP_RESPONSE)


class GrpcScript(asyncio.Protocol):
    """Returns a response for each stream that ends."""

    head = b""
    body = PREFIX.pack(0, len(MESSAGE)) + MESSAGE
    response = b"".join((frame(HEADERS, 4, 1, HEADER_BLOCK), frame(DATA, 0, 1, body)))
    response += frame(HEADERS, 5, 1, OK_TRAILER_BLOCK)
    flag = 1
    stream_id = struct.Struct(">I")
    offsets: tuple[int, ...] = (5, 9 + len(HEADER_BLOCK) + 5, 9 + len(HEADER_BLOCK) + 9 + len(body) + 5)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(settings({SETTING_INITIAL_WINDOW_SIZE: 2**31 - 1}) + window_update(0, 2**31 - 1 - 65535))
        self.rest = b""
        self.skip = len(PREFACE)
        self.received = 0

    def data_received(self, data: bytes) -> None:
        data = self.rest + data
        position, self.skip, end = self.skip, 0, len(data)
        responses = []
        while position + 9 <= end:
            word, flags, stream_id = struct.unpack_from(">IBI", data, position)
            if position + 9 + (word >> 8) > end:
                break
            position += 9 + (word >> 8)
            if word & 0xFF == HEADERS:
                responses.append(bytearray(self.head))
            if word & 0xFF == DATA and flags & 1 == self.flag:
                response = bytearray(self.response)
                for offset in self.offsets:
                    self.stream_id.pack_into(response, offset, stream_id)
                responses.append(response)
        self.rest = data[position:]
        self.received += end
        if self.received > 1 << 30:
            responses.append(bytearray(window_update(0, self.received)))
            self.received = 0
        if responses:
            self.transport.write(b"".join(responses))


class StreamScript(GrpcScript):
    """Returns a response for each message of a stream, without an id."""

    head = frame(HEADERS, 4, 1, HEADER_BLOCK)
    wrapped = b"\x12" + encode_varint(len(MESSAGE)) + MESSAGE
    response = frame(DATA, 0, 1, PREFIX.pack(0, len(wrapped)) + wrapped)
    offsets = (5,)
    flag = 0


def serve(listener: socket.socket, factory: Callable[[], asyncio.Protocol]) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(factory, sock=listener)
        await server.serve_forever()

    uvloop.run(run())


def listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(1024)
    return listener


CASES = (
    ("http", Protocol.HTTP, Mode.UNARY, HttpScript),
    ("grpc", Protocol.GRPC, Mode.UNARY, GrpcScript),
    ("stream", Protocol.GRPC, Mode.STREAM, StreamScript),
)


class ClosedLoop:
    """Always has a number of requests outstanding."""

    def __init__(self, target: Any, prepared: Any, seconds: float, variation: str) -> None:
        self.target, self.prepared, self.variation = target, prepared, variation
        self.stop_ns = time.monotonic_ns() + int(seconds * 1e9)
        self.count = self.outstanding = 0
        self.ended = asyncio.get_running_loop().create_future()
        self.failures: dict[str, int] = {}

    def begin(self, slot: int) -> None:
        exchange = SentRequest(self.on_end)
        exchange.slot = slot
        if self.variation != "none":
            exchange.request_id = str(self.count)
        if self.variation == "sequence":
            exchange.sequence_id = slot + 1
        self.outstanding += 1
        self.target.send(self.prepared, exchange)

    def on_end(self, exchange: SentRequest) -> None:
        self.count += 1
        self.outstanding -= 1
        if exchange.failure:
            self.failures[exchange.failure_message] = self.failures.get(exchange.failure_message, 0) + 1
        if exchange.end_ns < self.stop_ns:
            self.begin(exchange.slot)
        elif not self.outstanding:
            self.ended.set_result(None)


async def measure(url: str, protocol: Protocol, mode: Mode, args: argparse.Namespace) -> None:
    target = make_target(ServerTarget(url, protocol, mode))
    await target.open(args.concurrency)
    specs = [TensorSpec("INPUT0", DataType.FP32, (1, 4))]
    header = RequestHeader(model_name="identity", inputs=specs)
    prepared = target.prepare(RequestTemplate(header, [to_buffer(np.zeros(4, np.float32))]))
    for variation in ("none", "id", "sequence"):
        loop = ClosedLoop(target, prepared, args.seconds, variation)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        for slot in range(args.concurrency):
            loop.begin(slot)
        await loop.ended
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        cpu_us = cpu_s / loop.count * 1e6
        print(
            f"{protocol.value} {mode.value:6} {variation:9} {cpu_us:6.1f} us CPU/request, "
            f"{1e6 / cpu_us:7.0f} requests/s a core; {loop.count / wall_s:7.0f} requests/s here, "
            f"{loop.failures or 'no failures'}"
        )
    await target.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", choices=["http", "grpc", "stream"])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--concurrency", type=int, default=32)
    args = parser.parse_args()
    context = multiprocessing.get_context("fork")
    for name, protocol, mode, script in CASES:
        if args.protocol not in (None, name):
            continue
        listeners = [listen(0)]
        port = listeners[0].getsockname()[1]
        listeners += [listen(port) for _ in range(SCRIPTS - 1)]
        processes = [context.Process(target=serve, args=(each, script), daemon=True) for each in listeners]
        for process in processes:
            process.start()
        for listener in listeners:
            listener.close()
        uvloop.run(measure(f"{protocol.value}://127.0.0.1:{port}", protocol, mode, args))
        for process in processes:
            process.terminate()


if __name__ == "__main__":
    main()

"""Requests through the targets of naiad perf, and servers that answer them by script."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.request import RequestHeader
from naiad.core.tensor import TensorSpec, to_buffer
from naiad.tools.perf.perf_exchange import RequestTemplate, SentRequest
from naiad.tools.perf.perf_plan import Mode, Protocol, ServerTarget
from naiad.tools.perf.targets import make_target
from support.http2_peer import settings_frame

ROW = np.arange(4, dtype=np.float32)


def template(model="m", array=ROW, name="INPUT0", **fields):
    specs = [TensorSpec(name, DataType.FP32, array.shape)]
    return RequestTemplate(RequestHeader(model_name=model, inputs=specs, **fields), [to_buffer(array)])


def service(url, **fields):
    protocol = Protocol.GRPC if url.startswith("grpc") else Protocol.HTTP
    return ServerTarget(url, protocol, **fields)


@asynccontextmanager
async def opened(url, connections=1, mode=Mode.UNARY, **fields):
    """A connected target."""
    target = make_target(service(url, mode=mode, **fields))
    await target.open(connections)
    try:
        yield target
    finally:
        await target.close()


class Sender:
    """Sends requests of one template and counts their ends."""

    def __init__(self, target, request=None):
        self.target = target
        self.prepared = target.prepare(request or template())
        self.slots = 0
        self.ends = []
        """Slots of the requests that have ended, in order."""

    def begin(self, **fields):
        """Send a request; the future of its end."""
        ended = asyncio.get_running_loop().create_future()

        def on_end(exchange):
            self.ends.append(exchange.slot)
            if not ended.done():
                ended.set_result(exchange)

        exchange = SentRequest(on_end)
        exchange.slot = self.slots
        self.slots += 1
        for name, value in fields.items():
            setattr(exchange, name, value)
        self.target.send(self.prepared, exchange)
        assert not ended.done()
        return ended

    async def send(self, **fields):
        """Send a request and return it when it has ended."""
        exchange = await self.begin(**fields)
        assert exchange.start_ns <= exchange.end_ns
        if not exchange.failure:
            assert exchange.start_ns <= exchange.sent_ns <= exchange.first_ns <= exchange.end_ns
        return exchange


@asynccontextmanager
async def server_of(handle, scheme="http", port=0):
    """A server that calls `handle(reader, writer)` for each connection; its address."""
    server = await asyncio.start_server(handle, "127.0.0.1", port)
    try:
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


class Last(bytes):
    """A response after which the server closes the connection."""


class HttpScript:
    """Answers each request with the bytes of `respond(connection number, request bytes)`; None closes."""

    def __init__(self, respond):
        self.respond = respond
        self.connections = 0
        self.requests = []

    async def handle(self, reader, writer):
        self.connections += 1
        number = self.connections
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
                request = head + await reader.readexactly(size)
                self.requests.append(request)
                response = self.respond(number, request)
                if response is None:
                    break
                writer.write(response)
                if isinstance(response, Last):
                    break
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        writer.close()


class GrpcScript:
    """Answers each request with the bytes of `respond(connection number, stream id, body)`; None closes."""

    def __init__(self, respond, settings=None):
        self.respond = respond
        self.settings = settings or {}
        self.connections = 0
        self.frames = []

    async def handle(self, reader, writer):
        self.connections += 1
        number = self.connections
        try:
            await reader.readexactly(24)
            writer.write(settings_frame(self.settings))
            while True:
                header = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(header[:3], "big"))
                self.frames.append((header[3], header[4], payload))
                if header[3] == 0 and header[4] & 1:
                    response = self.respond(number, int.from_bytes(header[5:], "big"), payload)
                    if response is None:
                        break
                    writer.write(response)
                    if isinstance(response, Last):
                        break
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        writer.close()


def run(body, timeout_s=30):
    asyncio.run(asyncio.wait_for(body, timeout_s))

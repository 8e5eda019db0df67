"""CPU microseconds and bytecode instructions per HTTP/1.1 request in memory: head, route, decode, encode, answer.

No system calls. Run: python -m bench.micro_http1
"""

import asyncio
import json
import sys
from collections.abc import Callable
from types import FrameType

from bench.in_memory import InferenceWithoutModels, MemoryTransport, cpu_us
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.serving.served import Served
from naiad.frontend.connections.reading_turns import NEVER_NS
from naiad.frontend.http1.connection import Http1Server
from naiad.frontend.rest.routes import RestApi

SHAPE = (1, 16)


class EchoInference(InferenceWithoutModels):
    """Answers with the inputs."""

    def __init__(self) -> None:
        super().__init__(is_decoupled=False)
        outputs = [TensorSpec(name, DataType.FP32, SHAPE) for name in ("OUTPUT0", "OUTPUT1")]
        self._header = ResponseHeader("add_sub", "1", outputs)

    def submit(self, request: InferRequest, served: Served | None = None) -> None:
        request.header.admission = self  # as the engine notes it
        request.on_response(request, InferResponse(self._header, request.data))

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        return ModelConfig(name=name, max_batch_size=8)


def infer_request(request_id: str = "") -> bytes:
    inputs = [
        {"name": name, "shape": SHAPE, "datatype": "FP32", "parameters": {"binary_data_size": 64}}
        for name in ("INPUT0", "INPUT1")
    ]
    header = {
        **({"id": request_id} if request_id else {}),
        "inputs": inputs,
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    body = text + bytes(128)
    return (
        b"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: localhost:8000\r\n"
        b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n"
        b"Accept-Encoding: identity\r\nUser-Agent: python/3.11\r\n\r\n" % (len(text), len(body))
    ) + body


def json_request(request_id: str = "") -> bytes:
    numbers = [number / 7 for number in range(16)]
    inputs = [{"name": name, "shape": SHAPE, "datatype": "FP32", "data": numbers} for name in ("INPUT0", "INPUT1")]
    body = json.dumps({**({"id": request_id} if request_id else {}), "inputs": inputs}).encode()
    return (
        b"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: localhost:8000\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n"
        b"Accept-Encoding: identity\r\nUser-Agent: python/3.11\r\n\r\n" % len(body)
    ) + body


def opcodes(one: Callable[[], None], count: int = 20) -> float:
    """Return the bytecode instructions of a call: unlike times they do not depend on the load of the machine."""
    executed = 0

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal executed
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        executed += event == "opcode"
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    for _ in range(count):
        one()
    sys.settrace(None)
    return executed / count


def measure(name: str, data: bytes, count: int = 100_000) -> None:
    loop = asyncio.new_event_loop()  # which never runs: no timer fires
    server = Http1Server(RestApi(EchoInference().engine).router().handle, loop)
    server.reading_turns.look_ns = NEVER_NS  # the loop, which ends its turns, does not run
    transport = MemoryTransport()
    connection = server.protocol()
    connection.connection_made(transport)

    def one() -> None:
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))

    def many() -> None:
        for _ in range(count):
            one()

    one()
    assert bytes(transport.last).startswith(b"HTTP/1.1 200 "), transport.last
    best = cpu_us(many, count, rounds=3)
    loop.close()
    print(f"{name:34} {best:6.2f} us/request {opcodes(one):7.0f} opcodes")


def main() -> None:
    measure("binary add_sub", infer_request())
    measure("binary add_sub, with an id", infer_request("request-17"))
    measure("JSON add_sub", json_request())
    measure("JSON add_sub, with an id", json_request("request-17"))
    measure("GET /v2/health/live", b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")


if __name__ == "__main__":
    main()

"""Microseconds of the event loop for each response of a stream: encoding, framing, and the write they share.

python bench/micro_stream.py
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hpack

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.stream import count_request
from naiad.core.datatype import DataType
from naiad.core.request import InferRequest
from naiad.core.request_limits import RequestLimits
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec
from naiad.engine.engine import Engine
from naiad.engine.inference import Inference
from naiad.engine.serving.served import Served
from naiad.frontend.grpc.service import InferenceGrpcService
from naiad.frontend.http2.connection import Http2Protocol, Http2Server
from naiad.protocol.grpc.infer import encode_stream_response
from naiad.telemetry.metrics.metrics import Registry
from naiad.wire.http2.frames import DATA, HEADERS, SETTINGS, WINDOW_UPDATE, frame
from naiad.wire.preface import PREFACE

_ROUNDS = 7
_RESPONSES = 100
_REPEATS = 200
_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"


class _Inference(Inference):
    """Keeps the requests of a decoupled model."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.models, engine.shared_memory)
        self.served = self._found  # every model is there
        self.submitted: list[InferRequest] = []

    def submit(self, request: InferRequest, served: Served | None = None) -> None:
        request.header.admission = self  # as the engine notes it
        self.submitted.append(request)

    def cancel(self, request: InferRequest) -> bool:
        raise AssertionError

    def request_limits(self, name: str, version: str = "") -> RequestLimits:
        return RequestLimits(name, 2, 2)

    def _found(self, name: str, version: str = "") -> Any:
        return SimpleNamespace(is_decoupled=True)


class _Transport(asyncio.Transport):
    """Takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def write(self, data: Buffer) -> None:
        self.count += 1

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.count += 1

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It takes everything."""


def _measure(label: str, call: Callable[[], object], per_call: int) -> None:
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(_REPEATS):
            call()
        times.append((time.perf_counter() - start) / _REPEATS / per_call * 1e6)
    print(f"{label:<58} {statistics.median(times):7.2f} us")


def _open_stream(server: Http2Server) -> Http2Protocol:
    protocol = server.protocol()
    protocol.connection_made(_Transport())
    fields = [
        *((":method", "POST"), (":scheme", "http"), (":path", _PATH), (":authority", "127.0.0.1")),
        *(("content-type", "application/grpc"), ("te", "trailers")),
    ]
    window = (2**31 - 65_536).to_bytes(4, "big")
    opening = PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, window)
    protocol.data_received(opening + frame(HEADERS, 4, 1, hpack.Encoder().encode(fields)))
    protocol.data_received(frame(WINDOW_UPDATE, 0, 1, window))
    return protocol


def main() -> None:
    """Print a line for each part."""
    header = ResponseHeader("count_py", "1", [TensorSpec("NUMBER", DataType.INT32, (1,))])
    two = ResponseHeader("repeat", "1", [TensorSpec(name, DataType.INT32, (1,)) for name in ("OUT", "IDX")])
    one_output = InferResponse(header, [b"1234"], final=False)
    two_outputs = InferResponse(two, [b"1234", b"5678"], final=False)

    _measure("encode a response of one output", lambda: encode_stream_response("", one_output), 1)
    _measure("encode a response of two outputs, id", lambda: encode_stream_response("7", two_outputs), 1)

    engine = Engine(server_id="bench", metrics=Registry())
    inference = engine.inference = _Inference(engine)
    loop = asyncio.new_event_loop()
    server = Http2Server(InferenceGrpcService(engine), loop)
    protocol = _open_stream(server)
    message = count_request("count_py", _RESPONSES)
    framed = b"\0" + len(message).to_bytes(4, "big") + message
    data = frame(DATA, 0, 1, framed)
    last = InferResponse(header, final=True, empty_final=True)
    window = frame(WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big"))
    stream_window = frame(WINDOW_UPDATE, 0, 1, (1 << 20).to_bytes(4, "big"))

    def stream(response: InferResponse) -> None:
        protocol.data_received(data)
        (request,) = inference.submitted
        inference.submitted.clear()
        for _ in range(_RESPONSES):
            request.on_response(request, response)
        request.on_response(request, last)
        protocol.flush()
        server._dirty.clear()
        if protocol.output.window < 2**30:
            protocol.data_received(window + stream_window)

    _measure("a response of one output from on_response to the socket", lambda: stream(one_output), _RESPONSES)
    _measure("a response of two outputs from on_response to the socket", lambda: stream(two_outputs), _RESPONSES)
    loop.close()


if __name__ == "__main__":
    main()

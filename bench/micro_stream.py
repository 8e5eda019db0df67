"""Microseconds of the event loop for each response of a stream: encoding, framing, and the write they share.

python -m bench.micro_stream
"""

import asyncio
from collections.abc import Callable

import hpack

from bench.in_memory import InferenceWithoutModels, MemoryTransport, cpu_us
from naiad.core.datatype import DataType
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.serving.served import Served
from naiad.frontend.connections.reading_turns import NEVER_NS
from naiad.frontend.grpc.service import InferenceGrpcService
from naiad.frontend.http2.connection import Http2Protocol, Http2Server
from naiad.protocol.grpc.infer import encode_stream_response
from naiad.protocol.service_pb2 import ModelInferRequest
from naiad.wire.http2.frames import DATA, HEADERS, SETTINGS, WINDOW_UPDATE, frame
from naiad.wire.preface import PREFACE

_RESPONSES = 100
_REPEATS = 200
_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"


class _Inference(InferenceWithoutModels):
    """Keeps the requests of a decoupled model."""

    def __init__(self) -> None:
        super().__init__(is_decoupled=True)
        self.submitted: list[InferRequest] = []

    def submit(self, request: InferRequest, served: Served | None = None) -> None:
        request.header.admission = self  # as the engine notes it
        self.submitted.append(request)


def _measure(label: str, call: Callable[[], object], per_call: int) -> None:
    def many() -> None:
        for _ in range(_REPEATS):
            call()

    print(f"{label:<58} {cpu_us(many, _REPEATS * per_call):7.2f} us")


def _open_stream(server: Http2Server) -> Http2Protocol:
    protocol = server.protocol()
    protocol.connection_made(MemoryTransport())
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

    inference = _Inference()
    loop = asyncio.new_event_loop()
    server = Http2Server(InferenceGrpcService(inference.engine), loop)
    server.reading_turns.look_ns = NEVER_NS  # the loop, which ends its turns, does not run
    protocol = _open_stream(server)
    tensor = ModelInferRequest.InferInputTensor(name="COUNT", datatype="INT32", shape=[1])
    data = _RESPONSES.to_bytes(4, "little")
    request = ModelInferRequest(model_name="count_py", inputs=[tensor], raw_input_contents=[data])
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    message = request.SerializeToString()
    framed = b"\0" + len(message).to_bytes(4, "big") + message
    received = frame(DATA, 0, 1, framed)
    last = InferResponse(header, final=True, empty_final=True)
    window = frame(WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big"))
    stream_window = frame(WINDOW_UPDATE, 0, 1, (1 << 20).to_bytes(4, "big"))

    def stream(response: InferResponse) -> None:
        protocol.data_received(received)
        (request,) = inference.submitted
        inference.submitted.clear()
        for _ in range(_RESPONSES):
            request.on_response(request, response)
        request.on_response(request, last)
        protocol._flow.flush()
        server._dirty.clear()
        if protocol.output.window < 2**30:
            protocol.data_received(window + stream_window)

    _measure("a response of one output from on_response to the socket", lambda: stream(one_output), _RESPONSES)
    _measure("a response of two outputs from on_response to the socket", lambda: stream(two_outputs), _RESPONSES)
    loop.close()


if __name__ == "__main__":
    main()

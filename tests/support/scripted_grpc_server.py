"""A server of KServe v2 over gRPC in a thread, whose answers a script decides: it stalls, hangs, dies or lies."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import numpy as np

from naiad.protocol import service_pb2

GrpcAnswer = bytes | grpc.StatusCode
"""A serialized response, or the status of an error."""
GrpcScript = Callable[[int], Awaitable[GrpcAnswer]]
"""Gets the number of an inference request from 0."""

StreamScript = Callable[[int, str], Sequence[bytes]]
"""Gets the number of a request of a stream and its id; returns serialized `ModelStreamInferResponse`s."""

_SERVICE = "/inference.GRPCInferenceService/"


def right(*, request_id: str = "", model: str = "echo", **changes: Any) -> bytes:
    """Return a response with one output, the declared one with changes: `name`, `datatype`, `shape`, `data`."""
    output = {"name": "OUT", "datatype": "FP32", "shape": [1, 4], "data": np.ones(4, np.float32).tobytes(), **changes}
    data = output.pop("data")
    made = service_pb2.ModelInferResponse(model_name=model, model_version="1", id=request_id, outputs=[output])
    made.raw_output_contents.append(data)
    return bytes(made.SerializeToString())


def in_stream(response: bytes, *, is_final: bool | None = None) -> bytes:
    """Return a response as a message of a stream; with None it does not say whether it is the last one."""
    made = service_pb2.ModelStreamInferResponse()
    made.infer_response.ParseFromString(response)
    if is_final is not None:
        made.infer_response.parameters["triton_final_response"].bool_param = is_final
    return bytes(made.SerializeToString())


class ScriptedGrpcServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Serves until it is closed; a script may call `die`."""

    def __init__(self, script: GrpcScript, stream: StreamScript | None = None) -> None:
        self._script = script
        self._stream = stream
        self._count = 0
        self._end: asyncio.Task[None] | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))
        self.url = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    def die(self) -> None:
        """Close the port and all connections."""
        self._end = self._end or asyncio.ensure_future(self._server.stop(0))

    async def ended(self) -> None:
        """End, and wait for it."""
        self.die()
        assert self._end is not None
        await self._end

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a method."""
        method = handler_call_details.method.removeprefix(_SERVICE)
        if method == "ModelStreamInfer" and self._stream is not None:
            return grpc.stream_stream_rpc_method_handler(self._infer_stream)
        return grpc.unary_unary_rpc_method_handler(self._infer if method == "ModelInfer" else _metadata_of(method))

    async def _infer(self, request: bytes, context: Any) -> bytes:
        self._count += 1
        answer = await self._script(self._count - 1)
        if isinstance(answer, grpc.StatusCode):
            await context.abort(answer, "scripted")
        assert isinstance(answer, bytes)
        return answer

    async def _infer_stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        assert self._stream is not None
        async for request in requests:
            self._count += 1
            await asyncio.sleep(0.002)
            for message in self._stream(self._count - 1, service_pb2.ModelInferRequest.FromString(request).id):
                yield message


def _metadata_of(method: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
    tensor = {"datatype": "FP32", "shape": [-1, 4]}
    answers = {
        "ServerMetadata": service_pb2.ServerMetadataResponse(name="scripted", version="1"),
        "ModelMetadata": service_pb2.ModelMetadataResponse(
            name="echo",
            versions=["1"],
            platform="scripted",
            inputs=[{"name": "IN", **tensor}],
            outputs=[{"name": "OUT", **tensor}],
        ),
        "ModelConfig": service_pb2.ModelConfigResponse(config={"name": "echo", "max_batch_size": 8}),
    }

    async def answer(request: bytes, context: Any) -> bytes:
        if method not in answers:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")
        return bytes(answers[method].SerializeToString())

    return answer


@contextmanager
def scripted_grpc_server(script: GrpcScript, stream: StreamScript | None = None) -> Iterator[ScriptedGrpcServer]:
    """Serve in a thread."""
    loop = asyncio.new_event_loop()
    server = ScriptedGrpcServer(script, stream)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.ended(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

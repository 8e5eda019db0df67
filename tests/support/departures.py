"""Ways in which a client gives its request up: each sends a request and returns what makes the client leave."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http.aio as triton_http_aio

from naiad.protocol.service_pb2 import ModelInferRequest
from support.raw_http1 import HttpPeer, http_request
from support.raw_http2 import DATA, END_STREAM, GRPC_INFER, RST_STREAM, Http2Peer, frame, grpc_head, grpc_message
from support.server_process import ServerProcess

Leave = Callable[[], object]
CancelReason = Callable[[ServerProcess, str, str], Leave]
"""(server, model, request id) to what makes the client leave."""

CANCEL = (8).to_bytes(4, "big")
CLIENT_DEADLINE_S = 1.5
"""Long enough for a busy machine to begin with a request before its client has given it up."""
NOTHING: Mapping[str, int] = MappingProxyType({})


def json_body(request_id: str, values: tuple[float, ...] = (1.0,), **parameters: object) -> bytes:
    """Return a request for a held model."""
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, len(values)], "data": list(values)}
    return json.dumps({"id": request_id, "parameters": parameters, "inputs": [tensor]}).encode()


def grpc_body(model: str, request_id: str, **parameters: int) -> bytes:
    """Return a request for a held model."""
    request = ModelInferRequest(model_name=model, id=request_id)
    for name, value in parameters.items():
        request.parameters[name].int64_param = value
    request.inputs.add(name="IN", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(1)
    return request.SerializeToString()


def _tensor(module: Any) -> Any:
    made = module.InferInput("IN", [1, 1], "FP32")
    made.set_data_from_numpy(np.ones((1, 1), np.float32))
    return made


# --- HTTP -----------------------------------------------------------------------------------------------------------


def _http_close(path: str, **headers: str) -> CancelReason:
    def send(server: ServerProcess, model: str, request_id: str) -> Leave:
        host, port = server.http_url.rsplit(":", 1)
        if server.tls is None:
            connection = http.client.HTTPConnection(host, int(port))
        else:
            connection = http.client.HTTPSConnection(host, int(port), context=server.tls)
        flat = json.dumps({"id": request_id, "IN": [1.0]}).encode()
        body = flat if "generate" in path else json_body(request_id)
        connection.request("POST", path.format(model=model), body, headers)
        return connection.close

    return send


def http_lost_in_the_next_request(server: ServerProcess, model: str, request_id: str) -> Leave:
    """The connection ends in the middle of a request that follows the one that waits."""
    peer = HttpPeer(server.http_url)
    message = http_request(f"/v2/models/{model}/infer", json_body(request_id))
    peer.send(message + message[:-5])
    return peer.__exit__


def http_aio_task(server: ServerProcess, model: str, request_id: str) -> Leave:
    """`tritonclient.http.aio`, whose task is cancelled."""

    async def infer() -> None:
        async with triton_http_aio.InferenceServerClient(server.http_url) as client:
            await client.infer(model, [_tensor(triton_http_aio)], request_id=request_id)

    return _task(infer)


def http2_reset(server: ServerProcess, model: str, request_id: str) -> Leave:
    """REST over HTTP/2."""
    peer = Http2Peer(server.http_url)
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":authority": "test",
        ":path": f"/v2/models/{model}/infer",
        "content-type": "application/json",
    }
    peer.send(peer.headers(1, fields.items()) + frame(DATA, END_STREAM, 1, json_body(request_id)))
    return lambda: peer.send(frame(RST_STREAM, 0, 1, CANCEL))


# --- gRPC -----------------------------------------------------------------------------------------------------------


def _grpc_peer(
    server: ServerProcess, model: str, request_id: str, parameters: Mapping[str, int] = NOTHING, **fields: str
) -> Http2Peer:
    peer = Http2Peer(server.grpc_url)
    body = frame(DATA, END_STREAM, 1, grpc_message(grpc_body(model, request_id, **parameters)))
    peer.send(peer.headers(1, grpc_head(GRPC_INFER, **fields)) + body)
    return peer


def grpc_reset(server: ServerProcess, model: str, request_id: str, **parameters: int) -> Leave:
    """RST_STREAM."""
    peer = _grpc_peer(server, model, request_id, parameters)
    return lambda: peer.send(frame(RST_STREAM, 0, 1, CANCEL))


def grpc_lost(server: ServerProcess, model: str, request_id: str) -> Leave:
    """The connection is reset, as that of a client that was killed."""
    peer = _grpc_peer(server, model, request_id)

    def leave() -> None:
        peer._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer._socket.close()

    return leave


def grpc_deadline(server: ServerProcess, model: str, request_id: str) -> Leave:
    """A deadline that the server alone enforces."""
    peer = _grpc_peer(server, model, request_id, grpc_timeout=f"{CLIENT_DEADLINE_S * 1000:.0f}m")

    def leave() -> None:
        answer = peer.answer(1)
        assert (answer.grpc_status, answer.fields["triton-request-id"]) == (4, request_id)

    return leave


def grpc_client_cancel(server: ServerProcess, model: str, request_id: str) -> Leave:
    """`tritonclient.grpc`: what `async_infer` returns is cancelled."""
    client = triton_grpc.InferenceServerClient(server.grpc_url)
    answered = threading.Event()
    call = client.async_infer(
        model, [_tensor(triton_grpc)], lambda result, error: answered.set(), request_id=request_id
    )

    def leave() -> None:
        call.cancel()
        assert answered.wait(60)

    return leave


def grpc_client_timeout(server: ServerProcess, model: str, request_id: str) -> Leave:
    """`tritonclient.grpc` with a `client_timeout`."""
    client = triton_grpc.InferenceServerClient(server.grpc_url)
    errors: list[Any] = []
    answered = threading.Event()

    def callback(result: Any, error: Any) -> None:
        errors.append(error)
        answered.set()

    client.async_infer(
        model, [_tensor(triton_grpc)], callback, request_id=request_id, client_timeout=CLIENT_DEADLINE_S
    )

    def leave() -> None:
        assert answered.wait(60)
        assert errors[0].status() == "StatusCode.DEADLINE_EXCEEDED"

    return leave


def grpc_aio_task(server: ServerProcess, model: str, request_id: str) -> Leave:
    """`tritonclient.grpc.aio`, whose task is cancelled."""

    async def infer() -> None:
        async with triton_grpc_aio.InferenceServerClient(server.grpc_url) as client:
            await client.infer(model, [_tensor(triton_grpc_aio)], request_id=request_id)

    return _task(infer)


def grpc_stream_stop(server: ServerProcess, model: str, request_id: str) -> Leave:
    """`tritonclient.grpc`: a stream that is stopped with its requests."""
    client = triton_grpc.InferenceServerClient(server.grpc_url)
    client.start_stream(lambda result, error: None)
    client.async_stream_infer(model, [_tensor(triton_grpc)], request_id=request_id)
    return lambda: client.stop_stream(cancel_requests=True)


def grpc_aio_stream(server: ServerProcess, model: str, request_id: str) -> Leave:
    """`tritonclient.grpc.aio`: the iterator of `stream_infer` is cancelled."""

    async def infer() -> None:
        async with triton_grpc_aio.InferenceServerClient(server.grpc_url) as client:

            async def requests() -> Any:
                yield {"model_name": model, "inputs": [_tensor(triton_grpc_aio)], "request_id": request_id}
                await asyncio.sleep(3600)

            iterator = client.stream_infer(requests())
            try:
                async for _ in iterator:
                    pass
            finally:
                iterator.cancel()

    return _task(infer)


def _task(infer: Callable[[], Any]) -> Leave:
    """Run a coroutine in a thread of its own; leaving cancels its task."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(infer())

    def run() -> None:
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()

    def leave() -> None:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(60)
        assert task.cancelled()

    return leave


HTTP: dict[str, CancelReason] = {
    "http-close": _http_close("/v2/models/{model}/infer"),
    "http-last-request": _http_close("/v2/models/{model}/infer", Connection="close"),
    "http-lost-in-next": http_lost_in_the_next_request,
    "http-aio-task": http_aio_task,
    "http-json-lines": _http_close("/v2/models/{model}/infer", Accept="application/x-ndjson"),
    "http-generate": _http_close("/v2/models/{model}/generate"),
    "http-generate-stream": _http_close("/v2/models/{model}/generate_stream"),
    "http2-reset": http2_reset,
}
GRPC: dict[str, CancelReason] = {
    "grpc-reset": grpc_reset,
    "grpc-lost": grpc_lost,
    "grpc-deadline": grpc_deadline,
    "grpc-client-cancel": grpc_client_cancel,
    "grpc-client-timeout": grpc_client_timeout,
    "grpc-aio-task": grpc_aio_task,
    "grpc-stream-stop": grpc_stream_stop,
    "grpc-aio-stream": grpc_aio_stream,
}
EVERY = {**HTTP, **GRPC}
DEADLINES = ("grpc-deadline", "grpc-client-timeout")

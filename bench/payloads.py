"""The requests that are sent: one file a model and transport, made once, checked for its answer, then repeated.

Sending the same bytes again and again is what wrk and h2load do best; it flatters no server more than another.
"""

import http.client
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2, service_pb2_grpc

HTTP_BINARY = "HTTP binary"
HTTP_JSON = "HTTP JSON"
GRPC = "gRPC"

Arrays = Mapping[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Workload:
    """A model with one input to send and the outputs that must come back."""

    model: str
    inputs: Arrays
    outputs: Arrays


@dataclass(frozen=True)
class Payload:
    """A request ready for a load generator."""

    workload: Workload
    transport: str
    path: str
    body: Path
    headers: Sequence[tuple[str, str]]
    answer_bytes: int = 0
    """Length of the gRPC message that answers it, frame prefix included; learnt by `check`."""


def add_sub(model: str) -> Workload:
    """Return the add/sub workload: one row of 16 floats for each input."""
    a = np.arange(16, dtype=np.float32).reshape(1, 16)
    b = np.full((1, 16), 0.5, dtype=np.float32)
    return Workload(model, {"INPUT0": a, "INPUT1": b}, {"OUTPUT0": a + b, "OUTPUT1": a - b})


def make(workload: Workload, transport: str, directory: Path) -> Payload:
    """Write the request's body to a file below `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    body = directory / f"{workload.model}.{transport.replace(' ', '-').lower()}"
    if transport == GRPC:
        message = grpc_request(workload).SerializeToString()
        body.write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
        headers = [("content-type", "application/grpc"), ("te", "trailers")]
        return Payload(workload, transport, "/inference.GRPCInferenceService/ModelInfer", body, headers)
    content, header_bytes = http_body(workload, binary=transport == HTTP_BINARY)
    body.write_bytes(content)
    headers = [("Content-Type", "application/json")]
    if header_bytes is not None:
        headers = [
            ("Content-Type", "application/octet-stream"),
            ("Inference-Header-Content-Length", str(header_bytes)),
        ]
    return Payload(workload, transport, f"/v2/models/{workload.model}/infer", body, headers)


def http_body(workload: Workload, *, binary: bool) -> tuple[bytes, int | None]:
    """Return the body that a stock tritonclient sends and the length of its JSON header."""
    inputs = []
    for name, array in workload.inputs.items():
        tensor = triton_http.InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array, binary_data=binary)
        inputs.append(tensor)
    outputs = [triton_http.InferRequestedOutput(name, binary_data=binary) for name in workload.outputs]
    body, length = triton_http.InferenceServerClient.generate_request_body(inputs, outputs=outputs)
    return body.encode() if isinstance(body, str) else body, length


def grpc_request(workload: Workload) -> Any:
    """Return the ModelInferRequest, its tensors in `raw_input_contents`."""
    request = service_pb2.ModelInferRequest(model_name=workload.model)
    for name, array in workload.inputs.items():
        request.inputs.add(name=name, datatype="FP32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def check(payload: Payload, http_port: int, grpc_port: int) -> Payload:
    """Send the request once and compare the answer's values; return the payload with the answer's length.

    Raises AssertionError when a value differs, and any exception of the client when the server refuses.
    """
    if payload.transport == GRPC:
        outputs, length = _ask_grpc(payload.workload, grpc_port)
    elif payload.transport == HTTP_JSON:
        outputs, length = _ask_json(payload, http_port)
    else:
        outputs, length = _ask_binary(payload.workload, http_port)
    expected = payload.workload.outputs
    for name, array in expected.items():
        np.testing.assert_array_equal(outputs[name].reshape(array.shape), array)
    return Payload(payload.workload, payload.transport, payload.path, payload.body, payload.headers, length)


def _ask_grpc(workload: Workload, port: int) -> tuple[Arrays, int]:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=unlimited) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        response = stub.ModelInfer(grpc_request(workload), timeout=60)
    outputs = {}
    for index, tensor in enumerate(response.outputs):
        if response.raw_output_contents:
            values = np.frombuffer(response.raw_output_contents[index], np.float32)
        else:  # MLServer answers in the typed fields unless it is asked otherwise
            values = np.array(tensor.contents.fp32_contents, np.float32)
        outputs[tensor.name] = values
    return outputs, response.ByteSize() + 5


def _ask_binary(workload: Workload, port: int) -> tuple[Arrays, int]:
    with triton_http.InferenceServerClient(f"127.0.0.1:{port}", network_timeout=60) as client:
        inputs = []
        for name, array in workload.inputs.items():
            tensor = triton_http.InferInput(name, list(array.shape), "FP32")
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        result = client.infer(workload.model, inputs)
        return {name: result.as_numpy(name) for name in workload.outputs}, 0


def _ask_json(payload: Payload, port: int) -> tuple[Arrays, int]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", payload.path, payload.body.read_bytes(), dict(payload.headers))
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {text[:500]!r}")
    tensors = json.loads(text)["outputs"]
    return {tensor["name"]: np.array(tensor["data"], np.float32) for tensor in tensors}, 0

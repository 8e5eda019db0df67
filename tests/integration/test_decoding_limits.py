"""Small requests that expand while they are decoded are refused, over every protocol."""

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from support.model_repository import write_identity
from support.raw_http2 import Http2Peer, grpc_head
from support.server_process import ServerProcess, serving

TENSOR = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}


def post(server: ServerProcess, content: object) -> tuple[int, str]:
    """Send an inference request as deflated JSON; return the status and the message of the error."""
    headers = {"content-encoding": "deflate", "content-type": "application/json"}
    body = zlib.compress(json.dumps(content).encode())
    answer = server.request("POST", "/v2/models/identity/infer", body, headers)
    return answer.status, "" if answer.status == 200 else answer.json["error"]


def call(server: ServerProcess, request: service_pb2.ModelInferRequest, **arguments: object) -> tuple[str, str]:
    """Send an inference request over gRPC; return the name of the code and the message."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        try:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, **arguments)
        except grpc.RpcError as error:
            return error.code().name, error.details()
    return "OK", ""


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose peak of memory no other test has raised."""
    write_identity(tmp_path / "models")
    with serving(tmp_path / "log", f"--model-repository={tmp_path / 'models'}") as running:
        yield running


def peak_bytes(server: ServerProcess) -> int:
    """Return the most memory that a server has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024


def grpc_request(**fields: object) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="identity", **fields)
    tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    tensor.contents.fp32_contents.append(1.0)
    return request


def test_the_requests_are_legal_otherwise(server):
    assert post(server, {"inputs": [TENSOR]}) == (200, "")
    assert call(server, grpc_request()) == ("OK", "")


def test_far_more_inputs_are_refused(server):
    status, message = post(server, {"inputs": [TENSOR] + [{}] * 100_000})
    assert status == 400
    assert message.endswith("more than there are tensors for it")
    request = grpc_request()
    request.inputs.extend([service_pb2.ModelInferRequest.InferInputTensor()] * 100_000)
    code, message = call(server, request)
    assert code == "INVALID_ARGUMENT"
    assert message.startswith("expected 1 inputs but got ")


def test_far_more_outputs_are_refused(server):
    outputs = [{"name": f"OUTPUT{index}"} for index in range(1000)]
    status, message = post(server, {"inputs": [TENSOR], "outputs": outputs})
    assert status == 400
    assert message.startswith("the request asks for ")
    request = grpc_request()
    for output in outputs:
        request.outputs.add(name=output["name"])
    code, message = call(server, request)
    assert code == "INVALID_ARGUMENT"
    assert message.startswith("the request asks for ")


@pytest.mark.parametrize("count", [1000, 1025])
def test_parameters_are_limited(server, count):
    parameters = {f"p{index}": 1 for index in range(count)}
    status, message = post(server, {"inputs": [TENSOR], "parameters": parameters})
    request = grpc_request()
    for name in parameters:
        request.parameters[name].int64_param = 1
    code, said = call(server, request)
    if count == 1000:
        assert (status, code) == (200, "OK")
    else:
        assert (status, code) == (400, "INVALID_ARGUMENT")
        assert "the maximum is 1024" in message
        assert said.startswith("the request has more than 1024 parameters")


def test_dimensions_are_limited(server):
    status, message = post(server, {"inputs": [{**TENSOR, "shape": [1] * 65}]})
    assert status == 400
    assert "has 65 dimensions; the maximum is 64" in message
    request = grpc_request()
    request.inputs[0].shape[:] = [1] * 65
    code, message = call(server, request)
    assert code == "INVALID_ARGUMENT"
    assert "has 65 dimensions; the maximum is 64" in message


def test_names_are_limited(server):
    status, message = post(server, {"inputs": [{**TENSOR, "name": "x" * 1025}]})
    assert status == 400
    assert "has 1025 characters; the maximum is 1024" in message


def test_fields_of_a_head_are_limited(server):
    with Http2Peer(server.grpc_url) as peer:
        # One byte each: the pair is in the static table of HPACK.
        peer.send(peer.headers(1, [*grpc_head(), *[("accept-encoding", "gzip, deflate")] * 200], end=True))
        answer = peer.answer(1)
        assert (answer.fields[":status"], answer.grpc_status) == ("200", 8)  # RESOURCE_EXHAUSTED, for this call alone


def test_deflated_empty_inputs_take_little_memory(fresh):
    headers = {"content-encoding": "deflate", "content-type": "application/json"}
    before_bytes = peak_bytes(fresh)
    body = zlib.compress(b'{"inputs":[' + b"{}," * 8_000_000 + b"{}]}", 9)
    assert fresh.request("POST", "/v2/models/identity/infer", body, headers).status == 400
    # The body itself is 24 MB.
    assert peak_bytes(fresh) - before_bytes < 150_000_000


def test_gzip_of_empty_inputs_takes_little_memory(fresh):
    before_bytes = peak_bytes(fresh)
    request = service_pb2.ModelInferRequest(model_name="identity")
    request.inputs.extend([service_pb2.ModelInferRequest.InferInputTensor()] * 8_000_000)
    code, _ = call(fresh, request, compression=grpc.Compression.Gzip)
    assert code == "INVALID_ARGUMENT"
    assert peak_bytes(fresh) - before_bytes < 150_000_000

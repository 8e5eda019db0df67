"""Typical mistakes in requests: one 4xx answer with field, value, expected value and fix."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from naiad.protocol.service_pb2 import ModelInferRequest
from support.model_repository import write_model
from support.server_process import ServerProcess, serving

CONFIG = """
backend: "identity" max_batch_size: 8 version_policy: { all: { } }
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
TENSOR = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
INFER = "/v2/models/densenet/infer"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    (write_model(root, "densenet", CONFIG) / "3").mkdir()
    return root


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("server") / "log", f"--model-repository={repository}") as running:
        yield running


@pytest.fixture(scope="module")
def triton_server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("triton") / "log"
    with serving(log, f"--model-repository={repository}", "--triton-status-codes=true") as running:
        yield running


def tensor(**members: Any) -> dict[str, Any]:
    """Return a request with one input that differs from a correct one in `members`; None removes one."""
    return {"inputs": [{name: value for name, value in {**TENSOR, **members}.items() if value is not None}]}


def binary(size: int, tail: bytes) -> tuple[bytes, dict[str, str]]:
    """Return a body whose JSON announces `size` bytes before `tail`, and its header fields."""
    text = json.dumps(tensor(data=None, parameters={"binary_data_size": size})).encode()
    return text + tail, {"Inference-Header-Content-Length": str(len(text))}


@pytest.mark.parametrize(
    ("path", "content", "status", "parts"),
    [
        (INFER, tensor(name="INPUT"), 400, ["inference input 'INPUT'", "inputs are 'INPUT0'", "send one of these"]),
        (
            INFER,
            tensor(shape=[1, 3], data=[1, 2, 3]),
            400,
            ["input 'INPUT0'", "got [1,3]", "Expected [-1,4]", "Send"],
        ),
        (INFER, tensor(datatype="INT32"), 400, ["input 'INPUT0'", "'INT32'", "expects 'FP32'", "convert"]),
        (INFER, tensor(datatype="float"), 400, ["input INPUT0", "expected one of BOOL", "FP32"]),
        (INFER, tensor(data=[1, 2, 3]), 400, ["'data'", "got 3 elements", "expected 4", "correct one of the two"]),
        (INFER, tensor(data=[1, 2, 3, "4"]), 400, ["'data'", 'got "4"', "expected a number", "change the value"]),
        (INFER, tensor(data=[1, 2, 3, 1e39]), 400, ["'data'", "got 1e+39", "expected a value from", "change"]),
        (INFER, tensor(shape="1x4"), 400, ["'shape'", 'got "1x4"', "expected an array", '"shape": [1, 2]']),
        (INFER, tensor(shape=[1, -4]), 400, ["'shape'", "got -4", "expected an integer from 0", '"shape": [1, 2]']),
        (INFER, tensor(shape=None), 400, ["'shape'", "got 'name', 'datatype', 'data'", "expected 'shape'", "add "]),
        (INFER, {"input": []}, 400, ["'inputs'", "expected 'inputs'", 'add "inputs": [{"name"']),
        (INFER, {**tensor(), "outputs": [{"name": "OUT"}]}, 400, ["'OUT'", "outputs are 'OUTPUT0'", "send one of"]),
        (INFER, {**tensor(), "parameters": {"priority": "1"}}, 400, ["'priority'", 'got "1"', "expected an integer"]),
        (INFER, {**tensor(), "parameters": [1]}, 400, ["'parameters'", "got an array", "expected an object"]),
        (
            INFER,
            b'{"inputs": [}',
            400,
            ["at 12", 'got {"inputs": [}', "expected one JSON object", "check its quotes"],
        ),
        (INFER, binary(12, b"x" * 12), 400, ["input 'INPUT0'", "Expected 16", "got 12", "send all 4 elements"]),
        (INFER, binary(16, b"x" * 12), 400, ["input 'INPUT0'", "got 12 bytes", "expected 16", "correct it"]),
        (INFER, binary(16, b"x" * 20), 400, ["got 20 bytes", "expected 16", "'binary_data_size': correct it"]),
        ("/v2/models/densnet/infer", tensor(), 404, ["unknown model: 'densnet'", "did you mean 'densenet'?"]),
        ("/v2/models/densenet/versions/2/infer", tensor(), 404, ["version 2 is not found", "known versions: 1, 3"]),
        ("/v2/models/densenet/generate", {"INPUT0": [1, 2, 3]}, 400, ["'INPUT0'", "got 3", "expected as many as"]),
        (
            "/v2/models/densenet/generate_stream",
            [1],
            400,
            ["row 0 of input 'INPUT0'", "has shape []", "expected [4]"],
        ),
        ("/v2/logging", {"log_info": "no"}, 400, ["'log_info'", 'got "no"', "expected true or false"]),
        ("/v2/logging", {"log_format": "x"}, 400, ["log_format", "got: x", "expected default, ISO8601 or json"]),
        ("/v2/trace/setting", {"trace_level": "OFF"}, 400, ["'trace_level'", 'got "OFF"', "expected an array"]),
        ("/v2/repository/index", {"ready": 1}, 400, ["'ready'", "expected true or false"]),
        ("/v2/repository/models/densenet/load", {}, 400, ["--model-control-mode=explicit"]),
        ("/v2/repository/models/densenet/load", {"parameters": {"x": ""}}, 400, ["'x'", "'config'", "'force'"]),
        ("/v2/systemsharedmemory/region/r/register", {"key": 1}, 400, ["'key'", "got 1", "a string in quotes"]),
    ],
)
def test_message_has_value_and_fix(
    server: ServerProcess, path: str, content: Any, status: int, parts: list[str]
) -> None:
    body, fields = content if isinstance(content, tuple) else (content, None)
    answer = ask(server, path, body, fields)
    assert answer.status == status, answer.body
    assert [part for part in parts if part not in answer.json["error"]] == [], answer.json["error"]


def ask(server: ServerProcess, path: str, body: Any, fields: Mapping[str, str] | None = None) -> Any:
    return server.request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), fields)


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        (INFER, tensor(shape="1x4"), 500),
        (INFER, b"{", 500),
        (INFER, tensor(datatype="INT32"), 400),
        ("/v2/models/densenet/generate", {"INPUT0": ["x", 2, 3, 4]}, 500),
        ("/v2/logging", {"log_format": "x"}, 503),
        ("/v2/repository/models/densenet/load", {}, 503),
    ],
)
def test_flag_keeps_triton_codes(triton_server: ServerProcess, path: str, content: Any, status: int) -> None:
    assert ask(triton_server, path, content).status == status


def test_hidden_index_gives_no_hints(repository: Path, tmp_path: Path) -> None:
    restricted = "--http-restricted-api=model-repository:secret=x"
    with serving(tmp_path / "log", f"--model-repository={repository}", restricted) as server:
        answer = ask(server, "/v2/models/densnet/infer", tensor())
    assert (answer.status, answer.json["error"]) == (404, "Request for unknown model: 'densnet' is not found")


def call(server: ServerProcess, method: str, message: bytes) -> grpc.StatusCode:
    with grpc.insecure_channel(server.grpc_url) as channel:
        send = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            send(message)
    return caught.value.code()


def test_grpc_blames_client_for_its_mistakes(server: ServerProcess) -> None:
    assert call(server, "ModelInfer", b"\xff") is grpc.StatusCode.INVALID_ARGUMENT
    assert call(server, "RepositoryModelLoad", b"") is grpc.StatusCode.INVALID_ARGUMENT
    wrong = ModelInferRequest(model_name="densenet", model_version="2").SerializeToString()
    assert call(server, "ModelInfer", wrong) is grpc.StatusCode.NOT_FOUND


def test_flag_keeps_triton_codes_of_grpc(triton_server: ServerProcess) -> None:
    assert call(triton_server, "ModelInfer", b"\xff") is grpc.StatusCode.INTERNAL
    assert call(triton_server, "RepositoryModelLoad", b"") is grpc.StatusCode.UNAVAILABLE

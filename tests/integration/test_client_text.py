"""Of any text that a client sends, answers and log lines show little of it, and nothing that cannot be printed."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from support.model_repository import write_identity
from support.raw_http1 import HttpAnswer, HttpPeer, http_request
from support.server_process import ServerProcess, serving

LONG = "x\n\x1b[31m" + "y" * 6000
MOST_CHARACTERS = 2500
"""Of an answer's message, and of a line: eight excerpts and the words around them."""
SERVICE = "/inference.GRPCInferenceService/"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    write_identity(root, "identity")
    with serving(
        tmp_path_factory.mktemp("log") / "log",
        f"--model-repository={root}",
        "--model-control-mode=explicit",
        "--load-model=identity",
        "--allow-client-shm=true",
        "--http-max-header-size=65536",
    ) as running:
        yield running


def ask(server: ServerProcess, data: bytes) -> HttpAnswer:
    with HttpPeer(server.http_url) as peer:
        peer.send(data)
        return peer.answer()


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1], **changes}


REGION = {"shared_memory_region": LONG, "shared_memory_byte_size": 4}
NO_DATA = {"name": LONG, "datatype": "FP32", "shape": [1, 1]}
INFER = "/v2/models/identity/infer"
PLAIN = "x" * 6000

HTTP: list[tuple[str, Any, dict[str, str]]] = [
    (INFER, {"id": LONG, "inputs": []}, {}),
    (INFER, {"inputs": [tensor(name=LONG)]}, {}),
    (INFER, {"inputs": [tensor(name=f"{n}{LONG}") for n in range(100)]}, {}),
    (INFER, {"inputs": [tensor(datatype=LONG)]}, {}),
    (INFER, {"inputs": [tensor(data=[LONG])]}, {}),
    (INFER, {"inputs": [NO_DATA]}, {}),
    (INFER, {"inputs": [{**NO_DATA, "parameters": REGION}]}, {}),
    (INFER, {"inputs": [{**NO_DATA, "parameters": {"binary_data_size": LONG}}]}, {}),
    (INFER, {"inputs": [{**NO_DATA, "data": "#", "parameters": {"encoding": "base64"}}]}, {}),
    (INFER, {"inputs": [tensor()], "outputs": [{"name": LONG}]}, {}),
    (INFER, {"inputs": [tensor()], "outputs": [{"name": "OUTPUT0", "parameters": REGION}]}, {}),
    (INFER, {"inputs": [tensor()], "parameters": {LONG: []}}, {}),
    (INFER, {"inputs": [tensor()], "parameters": {"priority": LONG}}, {}),
    (INFER, LONG, {}),
    (INFER, {"inputs": [tensor()]}, {"Content-Encoding": PLAIN}),
    (INFER, {"inputs": [tensor()]}, {"Inference-Header-Content-Length": PLAIN}),
    (INFER, {"inputs": [tensor()]}, {"Expect": PLAIN}),
    (f"/v2/models/{PLAIN}/infer", {"inputs": [tensor()]}, {}),
    (f"/v2/models/%0A%1B{PLAIN}/infer", {"inputs": [tensor()]}, {}),
    (f"/v2/models/identity/versions/{'9' * 6000}/infer", {"inputs": [tensor()]}, {}),
    (f"/{PLAIN}", {}, {}),
    ("/v2/models/identity/generate", {LONG: 1}, {}),
    ("/v2/models/identity/generate", {"INPUT0": LONG}, {}),
    ("/v2/repository/models/identity/load", {"parameters": {LONG: 1}}, {}),
    ("/v2/repository/models/identity/load", {"parameters": {"config": LONG}}, {}),
    ("/v2/repository/models/identity/load", {"parameters": {"config": json.dumps({LONG: 1})}}, {}),
    ("/v2/repository/models/identity/load", {"parameters": {"config": json.dumps({"backend": LONG})}}, {}),
    ("/v2/repository/models/identity/load", {"parameters": {"config": json.dumps({"name": LONG})}}, {}),
    (f"/v2/repository/models/{PLAIN}/load", {}, {}),
    (f"/v2/repository/models/{PLAIN}/unload", {"parameters": {"unload_dependents": LONG}}, {}),
    (f"/v2/systemsharedmemory/region/{PLAIN}/register", {"key": LONG, "offset": 0, "byte_size": 4}, {}),
    (f"/v2/cudasharedmemory/region/{PLAIN}/register", {"raw_handle": {"b64": LONG}, "byte_size": 4}, {}),
    ("/v2/logging", {"log_format": LONG}, {}),
    ("/v2/trace/setting", {"trace_level": [LONG]}, {}),
    ("/v2/trace/setting", {"trace_rate": LONG}, {}),
    ("/v2/trace/setting", {"trace_count": LONG}, {}),
    (f"/v2/models/{PLAIN}/trace/setting", {"trace_rate": "1"}, {}),
]


@pytest.mark.parametrize("number", range(len(HTTP)))
def test_http(server: ServerProcess, number: int) -> None:
    path, body, fields = HTTP[number]
    with unchanged_log(server):
        answer = ask(server, http_request(path, json.dumps(body).encode(), headers=fields))
        assert answer.status >= 400
        assert len(answer.body) < MOST_CHARACTERS, answer.body[:300]
        assert_printable(json.loads(answer.body)["error"])


class unchanged_log:
    """Checks the lines that are logged meanwhile."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._before = len(server.log_text())

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for line in self._server.log_text()[self._before :].splitlines():
            assert len(line) < MOST_CHARACTERS, line[:300]
            assert_printable(line)


def assert_printable(text: str) -> None:
    # A message ends with a line break where Triton's does, and lists of problems have several lines.
    assert all(c.isprintable() or c == "\n" for c in text), repr(text[:400])
    assert "x\n\x1b" not in text


def infer(**changes: Any) -> Any:
    return service_pb2.ModelInferRequest(model_name="identity", **changes)


def with_input(name: str = "INPUT0", datatype: str = "FP32", **fields: Any) -> Any:
    request = infer(**fields)
    request.inputs.add(name=name, datatype=datatype, shape=[1, 1])
    request.raw_input_contents.append(b"abcd")
    return request


def with_parameter(name: str, kind: str, value: Any, field: str = "") -> Any:
    request = with_input()
    target = {"": request, "input": request.inputs[0]}[field]
    setattr(target.parameters[name], kind, value)
    return request


GRPC: list[tuple[str, Any]] = [
    ("ModelInfer", service_pb2.ModelInferRequest(model_name=LONG)),
    ("ModelInfer", infer(model_version=LONG)),
    ("ModelInfer", infer(id=LONG)),
    ("ModelInfer", with_input(name=LONG)),
    ("ModelInfer", with_input(datatype=LONG)),
    ("ModelInfer", with_input(name=LONG, id=LONG)),
    ("ModelInfer", with_parameter(LONG, "uint64_param", 1)),
    ("ModelInfer", with_parameter("priority", "string_param", LONG)),
    ("ModelInfer", with_parameter("shared_memory_region", "string_param", LONG, "input")),
    ("ModelReady", service_pb2.ModelReadyRequest(name="identity", version=LONG)),
    ("ModelMetadata", service_pb2.ModelMetadataRequest(name=LONG)),
    ("ModelConfig", service_pb2.ModelConfigRequest(name=LONG)),
    ("ModelStatistics", service_pb2.ModelStatisticsRequest(name=LONG)),
    ("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name=LONG)),
    ("SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest(name=LONG)),
    ("SystemSharedMemoryRegister", service_pb2.SystemSharedMemoryRegisterRequest(name=LONG, key=LONG, byte_size=1)),
    ("TraceSetting", service_pb2.TraceSettingRequest(model_name=LONG)),
    ("LogSettings", service_pb2.LogSettingsRequest(settings={"log_format": {"string_param": LONG}})),
    (PLAIN, service_pb2.ModelReadyRequest()),
]


@pytest.mark.parametrize("number", range(len(GRPC)))
def test_grpc(server: ServerProcess, number: int) -> None:
    method, message = GRPC[number]
    with unchanged_log(server), grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.unary_unary(SERVICE + method)
        with pytest.raises(grpc.RpcError) as caught:
            call(message.SerializeToString(), timeout=60)
        assert len(caught.value.details()) < MOST_CHARACTERS, caught.value.details()[:300]
        assert_printable(caught.value.details())

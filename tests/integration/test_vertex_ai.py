"""The Vertex AI endpoint of a real server: health and predict routes, redirects, and the variables of a container."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from support.model_repository import write_identity
from support.server_process import Answer, ServerProcess

StartServer = Callable[..., ServerProcess]
VARIABLES = {
    "AIP_MODE": "PREDICTION",
    "AIP_HTTP_PORT": "0",
    "AIP_HEALTH_ROUTE": "/v1/endpoints/1/deployedModels/2",
    "AIP_PREDICT_ROUTE": "/v1/endpoints/1/deployedModels/2:predict",
}
LOCAL = "--vertex-ai-address=127.0.0.1"
MIME_TYPE = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
VALUES = np.arange(4, dtype=np.float32).reshape(1, 4)
ROW = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": VALUES.ravel().tolist()}
BODY = json.dumps({"inputs": [ROW]}).encode()


def predict(server: ServerProcess, body: bytes = BODY, redirect: str = "", **headers: str) -> Answer:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if redirect:
        fields["X-Vertex-Ai-Triton-Redirect"] = redirect
    return server.request("POST", VARIABLES["AIP_PREDICT_ROUTE"], body, fields, url=server.cloud_url)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A container with two models, one of them the default."""
    root = tmp_path_factory.mktemp("vertex")
    for name in ("first", "second"):
        write_identity(root / "models", name)
    environment = {**VARIABLES, "AIP_STORAGE_URI": str(root / "models")}
    flags = (LOCAL, "--allow-metrics=false", "--vertex-ai-default-model=first")
    running = ServerProcess(root / "log", *flags, environment=environment, is_bare=True)
    try:
        running.wait_started()
        yield running
    finally:
        running.stop()


def test_health_and_prediction(server: ServerProcess) -> None:
    assert server.get(VARIABLES["AIP_HEALTH_ROUTE"], url=server.cloud_url).status == 200
    answer = predict(server)
    assert answer.json["model_name"] == "first"
    assert answer.json["outputs"][0]["data"] == ROW["data"]
    assert "Started HTTPService" not in server.log_text()
    assert "Started GRPCInferenceService" not in server.log_text()


@pytest.mark.parametrize("body", [[[0, 1, 2, 3]], {"instances": [{"INPUT0": [0, 1, 2, 3]}], "parameters": {"a": 1}}])
def test_prediction_takes_rows(server: ServerProcess, body: object) -> None:
    answer = predict(server, json.dumps(body).encode())
    assert answer.status == 200, answer.body
    assert answer.json["predictions"] == VALUES.tolist()


def test_binary_request_and_response(server: ServerProcess) -> None:
    given = httpclient.InferInput("INPUT0", [1, 4], "FP32")
    given.set_data_from_numpy(VALUES, binary_data=True)
    wanted = httpclient.InferRequestedOutput("OUTPUT0", binary_data=True)
    body, json_size = httpclient.InferenceServerClient.generate_request_body([given], outputs=[wanted])
    answer = predict(server, body, Content_Type=f"{MIME_TYPE}{json_size}")
    # Triton: unlike SageMaker's, the response has the header field of the HTTP endpoint.
    size = int(answer.headers["Inference-Header-Content-Length"])
    result = httpclient.InferenceServerClient.parse_response_body(answer.body, header_length=size)
    assert np.array_equal(result.as_numpy("OUTPUT0"), VALUES)
    for wrong in ("x", "-1", "12345678", "99999999999"):
        assert predict(server, body, Content_Type=f"{MIME_TYPE}{wrong}").status == 400
    assert predict(server, body, Content_Type=f"more/{MIME_TYPE}{json_size}").status == 400


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("metrics", "nv_inference_request_success"),
        ("v2", "extensions"),
        ("v2/health/ready", ""),
        ("v2/models/second", "INPUT0"),
        ("v2/models/second/config", "max_batch_size"),
        ("v2/models/second/versions/1/ready", ""),
        ("v2/models/stats", "model_stats"),
        ("v2/models/second/stats", "model_stats"),
        ("v2/repository/index", "second"),
        ("v2/systemsharedmemory/status", "[]"),
    ],
)
def test_redirect_reads_any_path(server: ServerProcess, path: str, words: str) -> None:
    answer = predict(server, b"", path)
    assert answer.status == 200
    assert words in answer.body.decode()


def test_redirect_reaches_another_model(server: ServerProcess) -> None:
    assert predict(server, redirect="v2/models/second/infer").json["model_name"] == "second"
    assert predict(server, redirect="v2/models/third/infer").status == 404
    assert predict(server, redirect="nonsense").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "v2/repository/models/first/unload",
        "v2/repository/models/first/load",
        "v2/systemsharedmemory/region/a/register",
        "v2/cudasharedmemory/unregister",
    ],
)
def test_redirect_changes_nothing(server: ServerProcess, path: str) -> None:
    answer = predict(server, b"", path)
    assert answer.status == 403
    assert "changes the server" in answer.json["error"]
    assert predict(server).status == 200


def test_settings_cannot_be_changed_by_redirect(server: ServerProcess) -> None:
    before = predict(server, b"", "v2/logging").json
    assert predict(server, b'{"log_verbose_level": 3}', "v2/logging").json == before


def test_wrong_method_and_path(server: ServerProcess) -> None:
    answer = server.get(VARIABLES["AIP_PREDICT_ROUTE"], url=server.cloud_url)
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    other = server.get("/v2", url=server.cloud_url)
    assert other.status == 404
    assert other.json["error"].endswith(f"requests for a model go to {VARIABLES['AIP_PREDICT_ROUTE']}")


def test_flags_replace_the_variables(tmp_path: Path, start_server: StartServer) -> None:
    write_identity(tmp_path / "models", "first")
    running = start_server(tmp_path / "models", "--allow-vertex-ai=false", "--allow-http=true", environment=VARIABLES)
    running.wait_ready()
    assert "Vertex AI HTTPService" not in running.log_text()
    running = start_server(tmp_path / "models", LOCAL, "--allow-http=true", environment=VARIABLES)
    running.wait_ready()
    assert predict(running).status == 200


@pytest.mark.parametrize(
    ("models", "flags", "missing", "words"),
    [
        (("a", "b"), (), "", "Expect the model repository contains only a single model"),
        (("a",), ("--vertex-ai-default-model=c",), "", "Expect the default model 'c' is loaded"),
        (("a",), (), "AIP_PREDICT_ROUTE", "AIP_PREDICT_ROUTE is not defined for Vertex AI endpoint; set it or"),
        (("a",), (), "AIP_HEALTH_ROUTE", "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint; set it or"),
    ],
)
def test_wrong_container_ends_with_one_message(
    tmp_path: Path, models: tuple[str, ...], flags: tuple[str, ...], missing: str, words: str
) -> None:
    for name in models:
        write_identity(tmp_path / "models", name)
    environment: Mapping[str, str] = {**VARIABLES, "AIP_STORAGE_URI": str(tmp_path / "models"), missing or "X": ""}
    running = ServerProcess(tmp_path / "log", LOCAL, *flags, environment=environment, is_bare=True)
    try:
        assert running.wait_exit() == 1
        assert words in " ".join(running.log_text().split())
    finally:
        running.stop()

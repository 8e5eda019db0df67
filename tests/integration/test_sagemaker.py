"""The SageMaker endpoint of a real server: container contract, multi-model endpoints, start by variables."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from support.ensemble_models import tensor, write_ensemble
from support.model_repository import add_sub_config, write_identity, write_model, write_python_add_sub
from support.server_process import Answer, ServerProcess

StartServer = Callable[..., ServerProcess]
ALONE = ("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false", "--model-control-mode=explicit")
SAGEMAKER = ("--allow-sagemaker=true", "--sagemaker-port=0", "--sagemaker-address=127.0.0.1")
MIME_TYPE = "application/vnd.sagemaker-triton.binary+json;json-header-size="
VALUES = np.arange(4, dtype=np.float32).reshape(1, 4)


def json_body(values: np.ndarray = VALUES, name: str = "INPUT0") -> bytes:
    row = {"name": name, "datatype": "FP32", "shape": list(values.shape), "data": values.ravel().tolist()}
    return json.dumps({"inputs": [row]}).encode()


def binary_body() -> tuple[bytes, int]:
    given = httpclient.InferInput("INPUT0", list(VALUES.shape), "FP32")
    given.set_data_from_numpy(VALUES, binary_data=True)
    wanted = httpclient.InferRequestedOutput("OUTPUT0", binary_data=True)
    return httpclient.InferenceServerClient.generate_request_body([given], outputs=[wanted])


def ask(server: ServerProcess, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.request(method, path, body or None, named, url=server.cloud_url)


def write_failing_load(repository: Path, name: str, text: str = "wrong weights") -> None:
    source = f"class TritonPythonModel:\n    def initialize(self, args):\n        raise RuntimeError('{text}')\n"
    source += "    def execute(self, requests):\n        return []\n"
    write_model(repository, name, add_sub_config("python"), {"1/model.py": source})


def output_of(answer: Answer) -> list[float]:
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]


# --- one model ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of one model; tests leave it as it is."""
    root = tmp_path_factory.mktemp("single")
    write_identity(root / "models", "first")
    running = ServerProcess(
        root / "log",
        f"--model-repository={root / 'models'}",
        *ALONE,
        *SAGEMAKER,
        "--load-model=first",
        environment={"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "first"},
    )
    try:
        running.wait_started()
        yield running
    finally:
        running.stop()


def test_ping_and_invocations(single: ServerProcess) -> None:
    assert ask(single, "GET", "/ping").status == 200
    assert output_of(ask(single, "POST", "/invocations", json_body())) == VALUES.ravel().tolist()


@pytest.mark.parametrize("body", [[[0, 1, 2, 3]], {"instances": [{"INPUT0": [0, 1, 2, 3]}]}])
def test_invocations_take_rows(single: ServerProcess, body: object) -> None:
    answer = ask(single, "POST", "/invocations", json.dumps(body).encode())
    assert answer.status == 200, answer.body
    assert answer.json["predictions"] == VALUES.tolist()


def test_binary_request_and_response(single: ServerProcess) -> None:
    body, json_size = binary_body()
    answer = ask(single, "POST", "/invocations", body, Content_Type=f"{MIME_TYPE}{json_size}")
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"].startswith(MIME_TYPE)
    assert "Inference-Header-Content-Length" not in answer.headers
    size = int(answer.headers["Content-Type"].removeprefix(MIME_TYPE))
    result = httpclient.InferenceServerClient.parse_response_body(answer.body, header_length=size)
    assert np.array_equal(result.as_numpy("OUTPUT0"), VALUES)


@pytest.mark.parametrize(
    ("content_type", "words"),
    [
        (f"text/{MIME_TYPE}10", "expect MIME type for binary data starts with"),
        (f"{MIME_TYPE}ten", "Unable to parse inference header size, got: ten"),
        (f"{MIME_TYPE}-1", "inference header size should be in range"),
        (f"{MIME_TYPE}123456", "inference header size should be in range"),
        (f"{MIME_TYPE}99999999999999999999", "inference header size should be in range"),
    ],
)
def test_wrong_json_size_is_rejected(single: ServerProcess, content_type: str, words: str) -> None:
    answer = ask(single, "POST", "/invocations", binary_body()[0], Content_Type=content_type)
    assert answer.status == 400
    assert words in answer.json["error"]
    assert ask(single, "GET", "/ping").status == 200


def test_wrong_method_and_path(single: ServerProcess) -> None:
    answer = ask(single, "GET", "/invocations")
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert ask(single, "POST", "/ping").status == 405
    other = ask(single, "GET", "/v2/health/ready")
    assert other.status == 404
    assert other.json["error"].endswith("requests for a model go to /invocations")
    assert ask(single, "PUT", "/models").status == 405


def test_large_body_is_rejected_early(tmp_path: Path, start_server: StartServer) -> None:
    write_identity(tmp_path / "models", "first")
    running = start_server(tmp_path / "models", *SAGEMAKER, "--http-max-input-size=1000")
    running.wait_started()
    answer = ask(running, "POST", "/invocations", b" " * 2000)
    assert answer.status == 404
    assert "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME" in answer.json["error"]


def test_generate_streams_from_invocations(tmp_path: Path, start_server: StartServer) -> None:
    write_identity(tmp_path / "models", "first", max_batch_size=0)
    running = start_server(
        tmp_path / "models",
        *SAGEMAKER,
        "--sagemaker-default-model=first",
        environment={"SAGEMAKER_TRITON_INFERENCE_TYPE": "generate_stream"},
    )
    running.wait_started()
    answer = ask(running, "POST", "/invocations", b'{"INPUT0": [1.5]}')
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert b'data: {"OUTPUT0":1.5' in answer.body.replace(b": 1.5", b":1.5")


def test_ping_fails_while_a_model_is_missing(tmp_path: Path, start_server: StartServer) -> None:
    write_failing_load(tmp_path / "models", "broken")
    running = start_server(tmp_path / "models", *ALONE, *SAGEMAKER, "--load-model=broken", "--exit-on-error=false")
    running.wait_started()
    assert ask(running, "GET", "/ping").status == 400


def test_restrictions_apply_to_model_control(tmp_path: Path, start_server: StartServer) -> None:
    write_identity(tmp_path / "models", "first")
    running = start_server(
        tmp_path / "models",
        *ALONE,
        *SAGEMAKER,
        "--load-model=first",
        "--sagemaker-default-model=first",
        "--http-restricted-api=model-repository:X-Key=secret",
    )
    running.wait_started()
    assert ask(running, "GET", "/ping").status == 200
    assert ask(running, "POST", "/invocations", json_body()).status == 200
    for method, path in (("GET", "/models"), ("POST", "/models"), ("GET", "/models/a"), ("DELETE", "/models/a")):
        answer = ask(running, method, path)
        assert answer.status == 403
        assert "This API is restricted" in answer.json["error"]
    assert ask(running, "GET", "/models", X_Key="secret").json == {"models": []}


def test_other_ports_must_be_safe(tmp_path: Path, start_server: StartServer) -> None:
    (tmp_path / "models").mkdir()
    running = start_server(
        tmp_path / "models", *SAGEMAKER, "--http-port=8000", "--sagemaker-safe-port-range=8081-9000"
    )
    assert running.wait_exit() == 1
    assert "http requests at port 8000, allowed port range is [8081, 9000]" in " ".join(running.log_text().split())


# --- multi-model endpoints ------------------------------------------------------------------------------------------


class Endpoint:
    """A container of a multi-model endpoint, started as SageMaker starts it."""

    def __init__(self, base: Path, server: ServerProcess) -> None:
        self.models = base / "models"
        self.server = server

    def load(self, name: str, url: str, **headers: str) -> Answer:
        body = json.dumps({"model_name": name, "url": url}).encode()
        return ask(self.server, "POST", "/models", body, **headers)

    def unload(self, name: str) -> Answer:
        return ask(self.server, "DELETE", f"/models/{name}")

    def invoke(self, name: str, body: bytes = b"") -> Answer:
        return ask(self.server, "POST", f"/models/{name}/invoke", body or json_body())


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A container of a multi-model endpoint."""
    base = tmp_path_factory.mktemp("container")
    environment = {
        "SAGEMAKER_MULTI_MODEL": "true",
        "SAGEMAKER_BIND_TO_PORT": "0",
        "SAGEMAKER_BASE_DIR": str(base),
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--sagemaker-address 127.0.0.1",
        "TMPDIR": str(base),
    }
    running = ServerProcess(base / "log", environment=environment, is_bare=True)
    try:
        running.wait_started()
        yield Endpoint(base, running)
    finally:
        running.stop()


@pytest.fixture
def endpoint(container: Endpoint) -> Iterator[Endpoint]:
    """The container, without models before and after a test."""
    yield container
    for row in ask(container.server, "GET", "/models").json["models"]:
        assert container.unload(row["modelName"]).status == 200
    shutil.rmtree(container.models, ignore_errors=True)


def unpack(endpoint: Endpoint, directory: str, name: str = "model", **settings: Mapping[str, str]) -> str:
    """Write an archive whose root is a model, and return its URL."""
    write_identity(endpoint.models / directory, "model", **settings)
    config = endpoint.models / directory / "model" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "model"', f'name: "{name}"'))
    return str(endpoint.models / directory / "model")


def test_model_is_loaded_invoked_and_unloaded(endpoint: Endpoint) -> None:
    assert ask(endpoint.server, "GET", "/ping").status == 200
    url = unpack(endpoint, "0a1b", name="of_the_customer")
    assert endpoint.load("hash1", url).status == 200
    assert endpoint.load("hash1", url).status == 409
    row = {"modelName": "hash1", "modelUrl": str(endpoint.models / "0a1b")}
    assert ask(endpoint.server, "GET", "/models").json == {"models": [row]}
    assert ask(endpoint.server, "GET", "/models/hash1").json == row
    answer = endpoint.invoke("hash1")
    assert output_of(answer) == VALUES.ravel().tolist()
    assert answer.json["model_name"] == "hash1"
    assert endpoint.unload("hash1").status == 200
    assert endpoint.unload("hash1").status == 404
    assert endpoint.invoke("hash1").status == 404
    assert ask(endpoint.server, "GET", "/models/hash1").status == 404
    assert ask(endpoint.server, "GET", "/models").json == {"models": []}
    assert endpoint.load("hash1", url).status == 200


def test_directory_is_served_once(endpoint: Endpoint) -> None:
    url = unpack(endpoint, "0a1b")
    assert endpoint.load("hash1", url).status == 200
    assert endpoint.load("hash2", url).status == 409
    assert endpoint.invoke("hash1").status == 200


def test_archive_names_the_model(endpoint: Endpoint) -> None:
    url = unpack(endpoint, "0a1b")
    header = {"X_Amzn_SageMaker_Target_Model": "digits.tar.gz"}
    assert endpoint.load("hash1", url, **header).status == 200
    assert endpoint.invoke("hash1").json["model_name"] == "digits.tar.gz"
    assert endpoint.unload("hash1").status == 200
    # A path cannot be a name: the name in SageMaker's paths is used.
    assert endpoint.load("hash1", url, X_Amzn_SageMaker_Target_Model="team/digits.tar.gz").status == 200
    assert endpoint.invoke("hash1").json["model_name"] == "hash1"


def test_ensembles_with_equal_members(endpoint: Endpoint) -> None:
    numbers = np.arange(16, dtype=np.float32).reshape(1, 16)
    names = {key: key for key in ("INPUT0", "INPUT1")}, {key: key for key in ("OUTPUT0", "OUTPUT1")}
    for directory in ("a", "b"):
        root = endpoint.models / directory / "model"
        write_python_add_sub(root, "member")
        inputs, outputs = ([tensor(key) for key in each] for each in names)
        write_ensemble(root, "all", inputs, outputs, [("member", *names)])
        assert endpoint.load(directory, str(root)).status == 200, endpoint.server.log_text()
    rows = [
        {"name": name, "datatype": "FP32", "shape": [1, 16], "data": numbers.ravel().tolist()} for name in names[0]
    ]
    body = json.dumps({"inputs": rows}).encode()
    for directory in ("a", "b"):
        assert output_of(endpoint.invoke(directory, body)) == (2 * numbers).ravel().tolist()
    assert endpoint.unload("a").status == 200
    assert endpoint.invoke("b", body).status == 200


@pytest.mark.parametrize("url", ["/dev/shm", "/opt/ml/models/../../etc/model", "models/a/model", "{models}/a/other"])
def test_url_outside_of_the_models_is_rejected(endpoint: Endpoint, url: str) -> None:
    answer = endpoint.load("hash1", url.format(models=endpoint.models))
    assert answer.status == 400
    assert "expected a path of the form" in answer.json["error"]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"model_name": "a"}', b'{"model_name": 1, "url": "/x"}'])
def test_wrong_load_request_names_the_field(endpoint: Endpoint, body: bytes) -> None:
    assert ask(endpoint.server, "POST", "/models", body).status == 400


def test_failed_load_leaves_nothing(endpoint: Endpoint) -> None:
    root = endpoint.models / "0a1b"
    write_failing_load(root, "model", "CUDA out of memory")
    answer = endpoint.load("hash1", str(root / "model"))
    assert answer.status == 507, answer.body
    write_failing_load(root, "model", "wrong weights")
    assert endpoint.load("hash1", str(root / "model")).status == 400
    unpack(endpoint, "0a1b")
    assert endpoint.load("hash1", str(root / "model")).status == 200
    assert endpoint.load("hash2", str(endpoint.models / "missing" / "model")).status == 400


def test_loads_and_unloads_under_requests(endpoint: Endpoint) -> None:
    stays, comes = unpack(endpoint, "0a1b"), unpack(endpoint, "2c3d")
    assert endpoint.load("stays", stays).status == 200
    is_over = threading.Event()
    statuses: list[int] = []

    def send() -> None:
        while not is_over.is_set():
            statuses.append(endpoint.invoke("stays").status)
            assert endpoint.invoke("comes").status in (200, 404)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        assert endpoint.load("comes", comes).status == 200
        assert endpoint.invoke("comes").status == 200
        assert endpoint.unload("comes").status == 200
    is_over.set()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200}


# --- start by variables ---------------------------------------------------------------------------------------------


def start_single(tmp_path: Path, **variables: str) -> ServerProcess:
    environment = {
        "SAGEMAKER_BIND_TO_PORT": "0",
        "SAGEMAKER_BASE_DIR": str(tmp_path),
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--sagemaker-address=127.0.0.1",
        **variables,
    }
    return ServerProcess(tmp_path / "log", environment=environment, is_bare=True)


def test_serve_without_arguments_serves_the_only_model(tmp_path: Path) -> None:
    write_identity(tmp_path / "model", "digits")
    running = start_single(tmp_path)
    try:
        running.wait_started()
        assert output_of(ask(running, "POST", "/invocations", json_body())) == VALUES.ravel().tolist()
        assert "Started HTTPService" not in running.log_text()
    finally:
        running.stop()


@pytest.mark.parametrize(
    ("models", "variables", "words"),
    [
        ((), {}, "has no model; the archive of the model needs a directory"),
        (("a", "b"), {}, "has 2 models (a, b); set SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"),
        (
            ("a",),
            {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "c"},
            "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME c does not exist",
        ),
        (("a",), {"SAGEMAKER_TRITON_INFERENCE_TYPE": "guess"}, "SAGEMAKER_TRITON_INFERENCE_TYPE"),
        (
            ("a",),
            {"SAGEMAKER_BIND_TO_PORT": "many"},
            "SAGEMAKER_BIND_TO_PORT: sagemaker-port: 'many' is not an integer",
        ),
        (("a",), {"SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--htp-port=1"}, "did you mean --http-port?"),
    ],
)
def test_wrong_container_ends_with_one_message(
    tmp_path: Path, models: tuple[str, ...], variables: Mapping[str, str], words: str
) -> None:
    for name in models:
        write_identity(tmp_path / "model", name)
    running = start_single(tmp_path, **variables)
    assert running.wait_exit() == 1
    assert words in " ".join(running.log_text().split())

"""The Azure ML endpoint of a real server: scoring and probe routes beside the REST routes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.model_repository import write_identity
from support.server_process import Answer, ServerProcess

StartServer = Callable[..., ServerProcess]
FLAGS = ("--allow-azure-ml=true", "--azure-ml-port=0", "--azure-ml-address=127.0.0.1")
ROW = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.5]}
BODY = json.dumps({"inputs": [ROW]}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A container with one model, whose repository Azure ML names."""
    root = tmp_path_factory.mktemp("azure")
    write_identity(root / "models", "only")
    environment = {"AZUREML_MODEL_DIR": str(root / "models")}
    flags = (*FLAGS, "--allow-http=false", "--allow-grpc=false", "--allow-metrics=false")
    running = ServerProcess(root / "log", *flags, environment=environment, is_bare=True)
    try:
        running.wait_started()
        yield running
    finally:
        running.stop()


def ask(server: ServerProcess, method: str, path: str, body: bytes | None = None) -> Answer:
    return server.request(method, path, body, url=server.cloud_url)


def test_probes_and_scoring(server: ServerProcess) -> None:
    assert ask(server, "GET", "/").status == 200
    assert ask(server, "GET", "/ready").status == 200
    assert ask(server, "POST", "/score", BODY).json["outputs"][0]["data"] == ROW["data"]


@pytest.mark.parametrize("body", [[[1.5, 2.5]], {"instances": [{"INPUT0": [1.5, 2.5]}]}])
def test_scoring_takes_rows(server: ServerProcess, body: object) -> None:
    answer = ask(server, "POST", "/score", json.dumps(body).encode())
    assert answer.status == 200, answer.body
    assert answer.json["predictions"] == [[1.5, 2.5]]


def test_rest_routes_are_there(server: ServerProcess) -> None:
    assert ask(server, "POST", "/v2/models/only/infer", BODY).status == 200
    assert ask(server, "GET", "/v2/health/ready").status == 200
    assert ask(server, "GET", "/v2/models/other").status == 404


def test_wrong_method_and_body(server: ServerProcess) -> None:
    answer = ask(server, "GET", "/score")
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert ask(server, "POST", "/score", b"[").status == 400
    other = ask(server, "GET", "/other")
    assert other.status == 404
    assert other.json["error"].endswith("requests for a model go to /score")


def test_scoring_needs_one_model(tmp_path: Path, start_server: StartServer) -> None:
    for name in ("a", "b"):
        write_identity(tmp_path / "models", name)
    running = start_server(tmp_path / "models", *FLAGS)
    running.wait_started()
    answer = ask(running, "POST", "/score", BODY)
    assert answer.status == 400
    assert "2 models are ready (a, b): set --azure-ml-default-model" in answer.json["error"]
    # Also before a large body arrives.
    assert ask(running, "POST", "/score", b" " * 200_000).status == 400
    named = start_server(tmp_path / "models", *FLAGS, "--azure-ml-default-model=b")
    named.wait_started()
    assert ask(named, "POST", "/score", BODY).json["model_name"] == "b"


def test_several_processes_share_the_endpoint(tmp_path: Path, start_server: StartServer) -> None:
    write_identity(tmp_path / "models", "only")
    flags = ("--processes=2", "--allow-sagemaker=true", "--sagemaker-port=0", "--sagemaker-address=127.0.0.1")
    running = start_server(tmp_path / "models", *flags, "--sagemaker-default-model=only")
    running.wait_started()
    for _ in range(8):
        assert ask(running, "POST", "/invocations", BODY).status == 200
    assert ask(running, "GET", "/ping").status == 200
    answer = ask(running, "POST", "/models", b"{}")
    assert answer.status == 501
    assert "use --processes=1" in answer.json["error"]

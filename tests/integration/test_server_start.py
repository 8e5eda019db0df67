"""Start of a server: ready, index, ports, models that fail, flags that are wrong."""

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from support.model_repository import write_identity, write_model, write_python_add_sub
from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]


def test_server_is_live_and_ready(server: ServerProcess) -> None:
    assert server.get("/v2/health/live").status == 200
    assert server.get("/v2/health/ready").status == 200
    assert server.get("/v2/models/add_sub/ready").status == 200


def test_index_has_a_ready_row_for_every_model(server: ServerProcess, repository: Path) -> None:
    rows = server.post("/v2/repository/index").json
    assert {row["name"] for row in rows} == {path.name for path in repository.iterdir()}
    assert all(row == {"name": row["name"], "version": "1", "state": "READY"} for row in rows)


def test_log_has_tritons_lines_and_table_of_models(server: ServerProcess) -> None:
    log = server.log_text()
    assert re.search(r'^I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \w+\.py:\d+\] "', log, re.MULTILINE)
    assert "loading: add_sub:1" in log
    assert "successfully loaded 'add_sub'" in log
    assert "| Model " in log
    for service in ("GRPCInferenceService", "HTTPService", "Metrics Service"):
        assert f"Started {service} at 127.0.0.1:" in log


def test_control_is_refused_without_explicit_mode(server: ServerProcess) -> None:
    answer = server.post("/v2/repository/models/add_sub/unload")
    assert answer.status == 400
    assert answer.json == {
        "error": "explicit model load / unload is not allowed if polling is enabled; start the server with "
        "--model-control-mode=explicit"
    }


def test_bare_onnx_file_is_served_without_configuration(
    start_server: StartServer, repository: Path, tmp_path: Path
) -> None:
    path = tmp_path / "my_model.onnx"
    path.write_bytes((repository / "add_sub" / "1" / "model.onnx").read_bytes())
    running = start_server(None, str(path))
    running.wait_ready()
    assert running.post("/v2/repository/index").json == [{"name": "my_model", "version": "1", "state": "READY"}]
    metadata = running.get("/v2/models/my_model").json
    assert {tensor["name"] for tensor in metadata["inputs"]} == {"INPUT0", "INPUT1"}


def test_single_model_directory_is_served(start_server: StartServer, repository: Path) -> None:
    running = start_server(None, str(repository / "identity"))
    running.wait_ready()
    assert [row["name"] for row in running.post("/v2/repository/index").json] == ["identity"]


def test_failed_model_ends_the_server_by_default(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "good")
    write_model(tmp_path / "models", "bad", 'backend: "nonesuch"\n')
    running = start_server(tmp_path / "models")
    assert running.wait_exit() == 1
    log = running.log_text()
    assert "nonesuch" in log
    assert "failed to load all models" in log
    assert '"ready: ' not in log
    assert "Traceback" not in log


def test_without_exit_on_error_healthy_models_are_served(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "good")
    write_model(tmp_path / "models", "bad", 'backend: "nonesuch"\n')
    running = start_server(tmp_path / "models", "--exit-on-error=false")
    running.wait_started()
    assert running.get("/v2/health/live").status == 200
    assert running.get("/v2/health/ready").status == 400
    assert running.get("/v2/models/good/ready").status == 200
    assert running.get("/v2/models/bad/ready").status != 200
    rows = {row["name"]: row for row in running.post("/v2/repository/index").json}
    assert rows["good"]["state"] == "READY"
    assert rows["bad"]["state"] == "UNAVAILABLE"
    assert "nonesuch" in rows["bad"]["reason"]


@pytest.mark.parametrize("flag", ["--strict-readiness=false", "--ready-models=good", "--ready-models=any"])
def test_operator_says_which_models_make_the_server_ready(
    start_server: StartServer, tmp_path: Path, flag: str
) -> None:
    write_identity(tmp_path / "models", "good")
    write_model(tmp_path / "models", "bad", 'backend: "nonesuch"\n')
    running = start_server(tmp_path / "models", "--exit-on-error=false", flag)
    running.wait_ready()


def test_model_in_two_repositories_is_not_available(start_server: StartServer, tmp_path: Path) -> None:
    for root in ("a", "b"):
        write_identity(tmp_path / root, "twice")
    write_identity(tmp_path / "a", "once")
    running = start_server(tmp_path / "a", f"--model-repository={tmp_path / 'b'}", "--exit-on-error=false")
    running.wait_started()
    rows = running.post("/v2/repository/index").json
    assert {"name": "once", "version": "1", "state": "READY"} in rows
    twice = next(row for row in rows if row["name"] == "twice")
    assert twice["state"] == "UNAVAILABLE"
    assert twice["reason"] == "model appears in two or more repositories"


def test_configuration_mistake_is_reported_with_file_and_line(start_server: StartServer, tmp_path: Path) -> None:
    write_model(tmp_path / "models", "bad", 'backend: "identity"\nmax_batch_sise: 4\n')
    running = start_server(tmp_path / "models")
    assert running.wait_exit() == 1
    assert "config.pbtxt:3:" in running.log_text()
    assert "max_batch_size" in running.log_text()


def test_python_model_that_raises_in_initialize_names_exception(start_server: StartServer, tmp_path: Path) -> None:
    source = (
        "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('no weights here')\n"
        "    def execute(self, requests):\n        return []\n"
    )
    model_dir = write_python_add_sub(tmp_path / "models")
    (model_dir / "1" / "model.py").write_text(source)
    running = start_server(tmp_path / "models")
    assert running.wait_exit() == 1
    assert "no weights here" in running.log_text()


def test_repository_that_is_not_there_is_an_error(start_server: StartServer, tmp_path: Path) -> None:
    running = start_server(tmp_path / "nothing")
    assert running.wait_exit() == 1
    assert str(tmp_path / "nothing") in running.log_text()


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--http-prot=1", "did you mean --http-port?"),
        ("--grpc-port=many", "'many' is not an integer"),
    ],
)
def test_wrong_flag_ends_the_server_with_status_1(
    start_server: StartServer, repository: Path, flag: str, text: str
) -> None:
    running = start_server(repository, flag)
    assert running.wait_exit() == 1
    assert text in running.log_text()


@pytest.mark.parametrize("service", ["http", "grpc", "metrics"])
def test_port_in_use_is_named_with_its_flag(start_server: StartServer, tmp_path: Path, service: str) -> None:
    write_identity(tmp_path / "models")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        running = start_server(tmp_path / "models", f"--{service}-port={port}")
        assert running.wait_exit() == 1
    assert f"--{service}-port {port}" in running.log_text()


def test_two_servers_share_ports_when_both_say_so(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    first = start_server(tmp_path / "models", "--reuse-http-port=true", "--reuse-grpc-port=true")
    first.wait_ready()
    ports = [f"--http-port={first.http_url.split(':')[1]}", f"--grpc-port={first.grpc_url.split(':')[1]}"]
    second = start_server(tmp_path / "models", "--reuse-http-port=true", "--reuse-grpc-port=true", *ports)
    second.wait_started()
    assert second.http_url == first.http_url


def test_endpoints_that_are_off_are_not_opened(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    running = start_server(tmp_path / "models", "--allow-grpc=false", "--allow-metrics=false")
    running.wait_started()
    assert running.get("/v2/health/ready").status == 200
    assert "GRPCInferenceService" not in running.log_text()
    assert "Metrics Service" not in running.log_text()


def test_json_limit_does_not_bound_binary_tail(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    running = start_server(tmp_path / "models", "--http-max-input-size=1000")
    running.wait_ready()
    numbers = list(range(1000))
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1000]}
    answer = running.post("/v2/models/identity/infer", {"inputs": [{**tensor, "data": numbers}]})
    assert answer.status == 400
    assert "exceeds the maximum allowed input size of 1000 bytes" in answer.json["error"]
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 4000}}]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    assert running.request("POST", "/v2/models/identity/infer", head + bytes(4000), headers).status == 200

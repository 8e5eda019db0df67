"""A server while the models of its start load: probes and metrics are answered, inference waits for readiness."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from support.model_repository import write_identity, write_model
from support.server_process import ServerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

StartServer = Callable[..., ServerProcess]

GATED = """
import os, time

class TritonPythonModel:
    def initialize(self, args):
        while os.path.exists(os.path.join(args["model_repository"], "gate")):
            time.sleep(0.01)
        if os.path.exists(os.path.join(args["model_repository"], "bad")):
            raise RuntimeError("it is bad")

    def execute(self, requests):
        return []
"""
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [5]}]}
PROCESSES = pytest.mark.parametrize("processes", ["--processes=1", "--processes=2"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a model that loads at once, and one that loads until the file `slow/gate` is removed."""
    write_identity(tmp_path / "models", "base")
    write_model(tmp_path / "models", "slow", CONFIG, {"1/model.py": GATED})
    (tmp_path / "models" / "slow" / "gate").touch()
    return tmp_path / "models"


@PROCESSES
def test_loading_server_is_live_and_not_ready(start_server: StartServer, root: Path, processes: str) -> None:
    server = start_server(root, processes)
    server.wait_log("successfully loaded 'base'")
    assert server.get("/v2/health/live").status == 200
    assert server.get("/v2/health/ready").status == 400
    assert server.get("/v2/models/slow/ready").status == 400
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        assert client.is_server_live()
        assert not client.is_server_ready()
    assert server.get("/metrics", url=server.metrics_url).status == 200
    (root / "slow" / "gate").unlink()
    server.wait_log(
        r'"ready: http://127\.0\.0\.1:\d+, grpc 127\.0\.0\.1:\d+, .*; try: curl http://\S+/v2/models/base"'
    )
    wait_until(server.is_ready)


@PROCESSES
def test_request_during_loading_gets_503(start_server: StartServer, root: Path, processes: str) -> None:
    server = start_server(root, processes)
    server.wait_log("successfully loaded 'base'")
    answer = server.post("/v2/models/slow/infer", BODY)
    assert answer.status == 503
    assert "still loading its models" in answer.json["error"]
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        given = grpcclient.InferInput("IN", [1], "FP32")
        given._raw_content = bytes(4)
        with pytest.raises(InferenceServerException, match="still loading") as caught:
            client.infer("slow", [given])
        assert "UNAVAILABLE" in str(caught.value)
    (root / "slow" / "gate").unlink()
    server.wait_started()
    assert server.post("/v2/models/nothing/infer", BODY).status == 404


@PROCESSES
def test_request_without_model_waits_for_the_start(start_server: StartServer, root: Path, processes: str) -> None:
    flags = ("--allow-azure-ml=true", "--azure-ml-port=0", "--azure-ml-address=127.0.0.1")
    server = start_server(root, processes, *flags)
    server.wait_log("successfully loaded 'base'")
    # `base` is the only ready model, but not the only one.
    rows = json.dumps({"instances": [{"INPUT0": [5]}]}).encode()
    for path, url in (("/invocations", server.http_url), ("/score", server.cloud_url)):
        answer = server.request("POST", path, rows, url=url)
        assert answer.status == 503, answer.body
        assert answer.headers["Retry-After"] == "1"
        assert "still loading its models" in answer.json["error"]
    (root / "slow" / "gate").unlink()
    server.wait_started()
    answer = server.request("POST", "/invocations", rows)
    assert answer.status == 400
    assert "2 models are ready" in answer.json["error"]


def test_request_without_model_waits_for_a_load(start_server: StartServer, root: Path) -> None:
    server = start_server(root, "--model-control-mode=explicit")
    server.wait_started()
    assert server.post("/invocations", {"instances": [[5]]}).status == 400
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(server.post, "/v2/repository/models/slow/load")
        server.wait_log("loading: slow")
        assert server.post("/invocations", {"instances": [[5]]}).status == 503
        (root / "slow" / "gate").unlink()
        assert load.result().status == 200


def test_loaded_model_serves_while_another_loads(start_server: StartServer, root: Path) -> None:
    server = start_server(root)
    server.wait_log("successfully loaded 'base'")
    assert server.get("/v2/models/base/ready").status == 200
    assert server.post("/v2/models/base/infer", BODY).json["outputs"][0]["data"] == [5]
    rows = {row["name"]: row["state"] for row in server.post("/v2/repository/index").json}
    assert rows == {"base": "READY", "slow": "LOADING"}


@PROCESSES
def test_failure_after_live_answer_ends_server(start_server: StartServer, root: Path, processes: str) -> None:
    server = start_server(root, processes)
    server.wait_log("loading: slow:1")
    assert server.get("/v2/health/live").status == 200
    (root / "slow" / "bad").touch()
    (root / "slow" / "gate").unlink()
    assert server.wait_exit() == 1
    assert "it is bad" in server.log_text()


def test_signal_during_loading_ends_with_status_0(start_server: StartServer, root: Path) -> None:
    server = start_server(root, f"--http-address=unix:{root / 'socket'}")
    server.wait_log("loading: slow:1")
    server.signal()
    assert server.wait_exit() == 0
    assert not (root / "socket").exists()


def test_shared_port_opens_after_loading(start_server: StartServer, root: Path) -> None:
    """The kernel gives a loading server no connections that a ready server of the same port could serve."""
    server = start_server(root, "--reuse-http-port=true")
    server.wait_log("loading: slow:1")
    assert "Started HTTPService" not in server.log_text()
    (root / "slow" / "gate").unlink()
    server.wait_ready()


@PROCESSES
def test_metrics_on_http_port_name_real_port(start_server: StartServer, root: Path, processes: str) -> None:
    server = start_server(root, processes)
    port = server.metrics_url.rpartition(":")[2]
    answer = server.get("/metrics")
    assert answer.json == {"error": f"Not Found: metrics have a port of their own, --metrics-port ({port})"}


def test_metrics_that_are_off_name_flag(start_server: StartServer, root: Path) -> None:
    server = start_server(root, "--allow-metrics=false")
    assert server.get("/metrics").json == {
        "error": "Not Found: metrics are off; start the server with --allow-metrics=true"
    }


def test_unknown_names_get_suggestions(server: ServerProcess) -> None:
    answer = server.post("/v2/models/identiy/infer", BODY)
    assert (answer.status, answer.json["error"]) == (
        404,
        "Request for unknown model: 'identiy' is not found; did you mean 'identity'?",
    )
    answer = server.post("/v2/models/identity/versions/7/infer", BODY)
    assert (answer.status, answer.json["error"]) == (
        404,
        "Request for unknown model: 'identity' version 7 is not found; known versions: 1",
    )


def test_slow_start_names_loading_models(start_server: StartServer, root: Path) -> None:
    server = start_server(root)
    server.wait_log(r'"still loading: slow \(\d+ s\)"')


def test_good_start_of_small_server_warns_of_nothing(server: ServerProcess) -> None:
    start = server.log_text().partition('"ready: ')[0]
    assert [line for line in start.splitlines() if line.startswith(("W", "E"))] == []
    assert "--http-max-connections" not in start


def test_load_with_config_logs_replaced_fields(start_server: StartServer, root: Path) -> None:
    server = start_server(root, "--model-control-mode=explicit", "--load-model=base")
    server.wait_ready()
    config = server.get("/v2/models/base/config").json
    config["max_batch_size"] += 3
    answer = server.post("/v2/repository/models/base/load", {"parameters": {"config": json.dumps(config)}})
    assert answer.status == 200
    found = server.wait_log(r"the load of 'base' replaced its configuration: (.*)\"")
    assert found.group(1) == f"max_batch_size: {config['max_batch_size'] - 3} -> {config['max_batch_size']}"

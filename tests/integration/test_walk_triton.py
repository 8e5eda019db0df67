"""A walk: a repository and a command line of Triton, started unchanged, scraped and drained."""

import http.client
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from prometheus_client.parser import text_string_to_metric_families

from support.ensemble_models import tensor, write_ensemble
from support.model_repository import write_model, write_python_add_sub
from support.onnx_models import add_sub
from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]

COMMAND_LINE = (
    "--model-control-mode=explicit",
    "--load-model=*",
    "--strict-model-config=false",
    "--strict-readiness=true",
    "--exit-timeout-secs=20",
    "--log-verbose=0",
    "--log-info=true",
    "--allow-metrics=true",
    "--metrics-interval-ms=1000",
    "--pinned-memory-pool-byte-size=268435456",
    "--cuda-memory-pool-byte-size=0:67108864",
    "--min-supported-compute-capability=6.0",
    "--backend-config=onnxruntime,default-max-batch-size=8",
    "--backend-config=python,shm-default-byte-size=1048576",
    "--rate-limit=off",
    "--buffer-manager-thread-count=2",
    "--http-thread-count=8",
    "--model-load-thread-count=2",
)
"""Flags of a deployment of Triton, without the ports."""
CONFIG = """
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
         { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
instance_group [ { count: 2 kind: KIND_CPU } ]
version_policy { latest { num_versions: 1 } }
"""
SUM = [1.0 + row for row in range(16)]
BODY = json.dumps(
    {
        "inputs": [
            {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "data": list(range(16))},
            {"name": "INPUT1", "datatype": "FP32", "shape": [1, 16], "data": [1] * 16},
        ]
    }
).encode()
MODELS = ("simple", "python_add_sub")


@pytest.fixture
def server(start_server: StartServer, tmp_path: Path) -> ServerProcess:
    repository = tmp_path / "model_repository"
    write_model(repository, "simple", CONFIG, {"1/model.onnx": add_sub(), "3/model.onnx": add_sub()})
    write_python_add_sub(repository)
    write_ensemble(
        repository,
        "sum",
        [tensor("A"), tensor("B")],
        [tensor("C")],
        [("simple", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "C"})],
    )
    running = start_server(repository, *COMMAND_LINE)
    running.wait_ready()
    return running


def infer(connection: http.client.HTTPConnection, model: str) -> bool:
    """Send a request, check its response, and return whether the server closes the connection."""
    connection.request("POST", f"/v2/models/{model}/infer", BODY, {"Content-Type": "application/json"})
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, body
    outputs = {each["name"]: each["data"] for each in json.loads(body)["outputs"]}
    assert outputs["OUTPUT0"] == SUM
    return response.will_close


def samples(server: ServerProcess) -> dict[tuple[str, str], float]:
    """Return the samples of the metrics by name and model."""
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    families = text_string_to_metric_families(text)
    return {(each.name, each.labels.get("model", "")): each.value for family in families for each in family.samples}


def test_triton_command_line_serves_repository(server: ServerProcess) -> None:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        assert client.is_server_ready()
        index = client.get_model_repository_index(as_json=True)["models"]
        assert {(row["name"], row["version"]) for row in index if row["state"] == "READY"} == {
            ("simple", "3"),
            ("python_add_sub", "1"),
            ("sum", "1"),
        }
        inputs = [grpcclient.InferInput(name, [1, 16], "FP32") for name in ("A", "B")]
        for given in inputs:
            given.set_data_from_numpy(np.ones((1, 16), np.float32))
        assert client.infer("sum", inputs).as_numpy("C").tolist() == [[2.0] * 16]


def test_prometheus_client_reads_the_metrics(server: ServerProcess) -> None:
    connection = http.client.HTTPConnection(server.http_url, timeout=60)
    for count, model in enumerate(MODELS, 2):
        for _ in range(count):
            infer(connection, model)
    found = samples(server)
    for count, model in enumerate(MODELS, 2):
        assert found["nv_inference_request_success_total", model] == count
        assert found["nv_inference_count_total", model] == count
        assert 1 <= found["nv_inference_exec_count_total", model] <= count
        assert found["nv_inference_request_duration_us_total", model] > 0
        assert found["nv_inference_pending_request_count", model] == 0
    assert found["nv_cpu_memory_total_bytes", ""] > 0


class Client(threading.Thread):
    """Sends on one connection until the server closes it, or reports that it is not ready."""

    def __init__(self, url: str, model: str) -> None:
        super().__init__()
        self._url = url
        self._model = model
        self.answered = 0
        self.failure: Exception | None = None
        self.saw_drain = False

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._url, timeout=60)
        try:
            while not self.saw_drain:
                self.saw_drain = infer(connection, self._model)
                self.answered += 1
                if self.saw_drain:
                    return
                connection.request("GET", "/v2/health/ready")
                response = connection.getresponse()
                response.read()
                self.saw_drain = response.status == 503 or response.will_close
        except Exception as error:
            self.failure = error
        finally:
            connection.close()


def test_sigterm_under_load_fails_no_request(server: ServerProcess) -> None:
    clients = [Client(server.http_url, MODELS[number % 2]) for number in range(8)]
    for client in clients:
        client.start()
    deadline = time.monotonic() + 60
    while any(client.answered < 10 and client.is_alive() for client in clients) and time.monotonic() < deadline:
        time.sleep(0.01)
    server.signal()
    for client in clients:
        client.join(60)
    assert [client.failure for client in clients if client.failure] == []
    assert all(client.saw_drain and client.answered >= 10 for client in clients)
    assert server.wait_exit() == 0
    assert "Traceback" not in server.log_text()

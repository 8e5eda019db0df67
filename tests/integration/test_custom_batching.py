"""A batching strategy of a model's author in a real server, with stock tritonclient."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from support.model_repository import write_model
from support.server_process import ServerProcess, serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

COUNT = 8
CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "DATA" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "LANES" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 } ]
dynamic_batching { }
"""
MODEL = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        lanes = ",".join(json.loads(request.parameters())["lane"] for request in requests)
        tensor = pb_utils.Tensor("LANES", np.array([[lanes.encode()]], np.object_))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
ONE_LANE = """
def model_batch_initialize(batcher):
    return {"lane": None}

def model_batch_include_request(request, batch):
    lane = request.parameters["lane"]
    if batch["lane"] is None:
        batch["lane"] = lane
    return lane == batch["lane"]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    write_model(tmp_path / "models", "lanes", CONFIG, {"1/model.py": MODEL, "batchstrategy.py": ONE_LANE})
    with serving(
        tmp_path / "log",
        f"--model-repository={tmp_path / 'models'}",
        environment={"TRITONSERVER_DELAY_SCHEDULER": str(COUNT)},
    ) as running:
        yield running


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_only_requests_of_one_lane_share_batches(server: ServerProcess, protocol: str):
    module = httpclient if protocol == "http" else grpcclient
    url = server.http_url if protocol == "http" else server.grpc_url

    def ask(lane: str) -> str:
        tensor = module.InferInput("DATA", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 2), np.float32))
        with module.InferenceServerClient(url) as client:
            result = client.infer("lanes", [tensor], parameters={"lane": lane})
        return result.as_numpy("LANES")[0, 0].decode()

    with ThreadPoolExecutor(COUNT) as pool:
        batches = list(pool.map(ask, "aaaaabbb"))
    assert all(len(set(batch.split(","))) == 1 for batch in batches)
    assert {batch[0] for batch in batches[:5]} == {"a"}
    statistics = server.get("/v2/models/lanes/stats").json["model_stats"][0]
    executions = sum(count / len(batch.split(",")) for batch, count in Counter(batches).items())
    assert statistics["execution_count"] == round(executions) < COUNT
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    (row,) = [line for line in text.splitlines() if "naiad_batch_release_total{" in line and '"strategy"' in line]
    assert float(row.rpartition(" ")[2]) >= 1


def test_wrong_strategy_fails_the_load_with_its_line(tmp_path: Path):
    broken = "def model_batch_include_request(request, batch):\n    return lane ==\n"
    write_model(tmp_path / "models", "lanes", CONFIG, {"1/model.py": MODEL, "1/batchstrategy.py": broken})
    server = ServerProcess(tmp_path / "log", f"--model-repository={tmp_path / 'models'}")
    try:
        assert server.wait_exit() == 1
        assert "batchstrategy.py failed at line 2: SyntaxError" in server.log_text()
    finally:
        server.stop()

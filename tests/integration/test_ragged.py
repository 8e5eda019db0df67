"""Requests of different lengths in one ONNX batch, with stock tritonclient over HTTP and gRPC."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from support.model_repository import write_model
from support.onnx_models import RAGGED_CONFIG, ragged
from support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

COUNT = 6


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest):
    return request.param


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    config = 'backend: "onnxruntime"\n' + RAGGED_CONFIG + "instance_group { count: 1 }\ndynamic_batching { }\n"
    write_model(tmp_path / "models", "ragged", config, {"1/model.onnx": ragged()})
    running = ServerProcess(
        tmp_path / "log",
        f"--model-repository={tmp_path / 'models'}",
        environment={"TRITONSERVER_DELAY_SCHEDULER": str(COUNT)},
    )
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


def test_requests_of_any_length_share_one_execution(server: ServerProcess, protocol: str):
    module = httpclient if protocol == "http" else grpcclient
    url = server.http_url if protocol == "http" else server.grpc_url

    def ask(length: int) -> tuple[list, list]:
        array = np.arange(length, dtype=np.float32).reshape(1, length)
        tensor = module.InferInput("DATA", list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        with module.InferenceServerClient(url) as client:
            result = client.infer("ragged", [tensor])
        return result.as_numpy("SUM").tolist(), result.as_numpy("DOUBLED").tolist()

    with ThreadPoolExecutor(COUNT) as pool:
        answers = list(pool.map(ask, range(1, COUNT + 1)))
    for length, (total, doubled) in enumerate(answers, start=1):
        assert total == [[sum(range(length))]]
        assert doubled == [[2 * number for number in range(length)]]
    statistics = server.get("/v2/models/ragged/stats").json["model_stats"][0]
    assert (statistics["inference_count"], statistics["execution_count"]) == (COUNT, 1)

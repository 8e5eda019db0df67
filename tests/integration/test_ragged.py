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
from support.server_process import ServerProcess, serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

COUNT = 6
PYTHON_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "DATA" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "TOGETHER" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        together = pb_utils.Tensor("TOGETHER", np.array([[len(requests)]], np.int32))
        arrays = [pb_utils.get_input_tensor_by_name(request, "DATA").as_numpy() for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("SUM", array.sum(axis=1, keepdims=True)), together])
            for array in arrays
        ]
"""


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest):
    return request.param


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    config = 'backend: "onnxruntime"\n' + RAGGED_CONFIG + "instance_group { count: 1 }\ndynamic_batching { }\n"
    write_model(tmp_path / "models", "ragged", config, {"1/model.onnx": ragged()})
    config = PYTHON_CONFIG + "instance_group { count: 1 }\ndynamic_batching { }\n"
    write_model(tmp_path / "models", "lengths", config, {"1/model.py": PYTHON})
    with serving(
        tmp_path / "log",
        f"--model-repository={tmp_path / 'models'}",
        environment={"TRITONSERVER_DELAY_SCHEDULER": str(COUNT)},
    ) as running:
        yield running


def ask_together(server: ServerProcess, protocol: str, model: str, outputs: tuple[str, str]) -> list[tuple]:
    """Return two outputs for each of the lengths 1 to COUNT, whose requests wait together."""
    module = httpclient if protocol == "http" else grpcclient
    url = server.http_url if protocol == "http" else server.grpc_url

    def ask(length: int) -> tuple:
        array = np.arange(length, dtype=np.float32).reshape(1, length)
        tensor = module.InferInput("DATA", list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        with module.InferenceServerClient(url) as client:
            result = client.infer(model, [tensor])
        return tuple(result.as_numpy(name).tolist() for name in outputs)

    with ThreadPoolExecutor(COUNT) as pool:
        return list(pool.map(ask, range(1, COUNT + 1)))


def test_requests_of_any_length_share_one_execution(server: ServerProcess, protocol: str):
    answers = ask_together(server, protocol, "ragged", ("SUM", "DOUBLED"))
    for length, (total, doubled) in enumerate(answers, start=1):
        assert total == [[sum(range(length))]]
        assert doubled == [[2 * number for number in range(length)]]
    statistics = server.get("/v2/models/ragged/stats").json["model_stats"][0]
    assert (statistics["inference_count"], statistics["execution_count"]) == (COUNT, 1)


def test_python_model_gets_requests_of_any_length_together(server: ServerProcess, protocol: str):
    answers = ask_together(server, protocol, "lengths", ("SUM", "TOGETHER"))
    assert answers == [([[sum(range(length))]], [[COUNT]]) for length in range(1, COUNT + 1)]

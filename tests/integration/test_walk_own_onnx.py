"""A walk: an ONNX model of one's own, from the file to a batched load that `naiad explain` shows."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpcclient
from onnx import helper, numpy_helper

from support.commands import run_command
from support.onnx_models import model, value
from support.server_process import serving

WIDTH = 1024
LAYERS = 4
REQUESTS = 200
CLIENTS = 32


def naiad(*arguments: str) -> str:
    """Run a command and return what it prints."""
    return run_command(*arguments).stdout


@pytest.fixture
def own_model(tmp_path: Path) -> Path:
    """A network that computes long enough for requests to meet in the queue."""
    random = np.random.default_rng(1)
    weights = [random.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH for _ in range(LAYERS)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(LAYERS)]
    initializers = [numpy_helper.from_array(each, f"w{i}") for i, each in enumerate(weights)]
    inputs, outputs = [value("x0", ("N", WIDTH))], [value(f"x{LAYERS}", ("N", WIDTH))]
    path = tmp_path / "own.onnx"
    path.write_bytes(model(nodes, inputs, outputs, initializers))
    return path


def test_own_model_is_served_in_batches(own_model: Path, tmp_path: Path) -> None:
    naiad("check", "--load", str(own_model))
    rows = np.random.default_rng(2).standard_normal((REQUESTS, 1, WIDTH), np.float32)
    with serving(tmp_path / "log", str(own_model)) as server:
        server.wait_ready()
        with grpcclient.InferenceServerClient(server.grpc_url) as client:
            metadata = client.get_model_metadata("own", as_json=True)
            assert metadata["inputs"] == [{"name": "x0", "datatype": "FP32", "shape": ["-1", str(WIDTH)]}]

            def infer(row: np.ndarray) -> np.ndarray:
                tensor = grpcclient.InferInput("x0", list(row.shape), "FP32")
                tensor.set_data_from_numpy(row)
                return client.infer("own", [tensor]).as_numpy(f"x{LAYERS}")

            with ThreadPoolExecutor(CLIENTS) as pool:
                answers = list(pool.map(infer, rows))
        (expected,) = onnxruntime.InferenceSession(own_model).run(None, {"x0": rows[:, 0]})
        np.testing.assert_allclose(np.concatenate(answers), expected, rtol=1e-3, atol=1e-4)

        explained = json.loads(naiad("explain", "own", "--url", f"http://{server.http_url}", "--json"))
        sizes = {int(size): count for size, count in explained["batch_sizes"].items()}
        assert sum(size * count for size, count in sizes.items()) == REQUESTS
        assert sum(sizes.values()) < REQUESTS, "no batch had more than one row"
        assert "own, version 1: dynamic scheduler" in naiad("explain", "own", "--url", f"http://{server.http_url}")

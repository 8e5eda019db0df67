"""Adaptive batching in a real server, on the loop, on threads and in a worker: answers, metrics, a refusal."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from naiad.config.model_profile import PROFILE_FILE, ModelProfile, format_profile
from support.model_repository import add_sub_config, write_model, write_python_add_sub
from support.onnx_models import add_sub
from support.server_process import ServerProcess, serving

ADAPTIVE = """
dynamic_batching {{ }}
instance_group {{ count: {count} kind: KIND_CPU }}
parameters {{ key: "adaptive_batching" value {{ string_value: "true" }} }}
parameters {{ key: "adaptive_batching_latency_goal_us" value {{ string_value: "20000" }} }}
"""
MODELS = ("onnx_add_sub", "python_add_sub")
REQUESTS = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("adaptive")
    config = add_sub_config("onnxruntime", extra=ADAPTIVE.format(count=2))
    write_model(root / "models", "onnx_add_sub", config, {"1/model.onnx": add_sub()})
    write_python_add_sub(root / "models", extra=ADAPTIVE.format(count=2))
    (root / "models/onnx_add_sub" / PROFILE_FILE).write_text(format_profile(ModelProfile(50.0, 1.0, 8)))
    with serving(root / "log", f"--model-repository={root / 'models'}") as running:
        yield running


def metrics(server: ServerProcess, model: str) -> dict[str, float]:
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    found: dict[str, float] = {}
    for name, fields, number in re.findall(r"^(naiad_\w+){(.*)} (\S+)$", text, re.MULTILINE):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', fields))
        if labels.pop("model", "") == model and labels.pop("version", "") == "1":
            found[" ".join([name, *labels.values()])] = float(number)
    return found


@pytest.mark.parametrize("model", MODELS)
def test_requests_are_answered_and_metrics_show_learned_costs(server: ServerProcess, model: str) -> None:
    def ask(client: httpclient.InferenceServerClient, number: int) -> bool:
        array = np.full((1, 16), number, np.float32)
        tensors = [httpclient.InferInput(name, [1, 16], "FP32") for name in ("INPUT0", "INPUT1")]
        for tensor in tensors:
            tensor.set_data_from_numpy(array)
        result = client.infer(model, tensors)
        return bool((result.as_numpy("OUTPUT0") == 2 * array).all())

    def work(worker: int) -> int:
        with httpclient.InferenceServerClient(server.http_url) as client:
            return sum(ask(client, worker * 1000 + number) for number in range(REQUESTS // 8))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == REQUESTS
    found = metrics(server, model)
    released = sum(value for name, value in found.items() if name.startswith("naiad_adaptive_release_total"))
    batches = sum(value for name, value in found.items() if name.startswith("naiad_batch_release_total"))
    assert released == batches > 0
    assert found["naiad_adaptive_fixed_seconds"] + found["naiad_adaptive_row_seconds"] > 0
    assert found["naiad_adaptive_arrival_rate"] > 0
    assert 0 < found["naiad_adaptive_parallelism"] <= 2
    assert found["naiad_adaptive_tail_ratio"] >= 1
    assert ("naiad_adaptive_profile_drift_ratio" in found) == (model == "onnx_add_sub")


def test_a_wrong_parameter_keeps_the_model_from_loading(tmp_path: Path) -> None:
    wrong = 'parameters { key: "adaptive_batching" value { string_value: "true" } }'
    config = add_sub_config("onnxruntime", extra=wrong)
    write_model(tmp_path / "models", "wrong", config, {"1/model.onnx": add_sub()})
    server = ServerProcess(tmp_path / "log", f"--model-repository={tmp_path / 'models'}")
    try:
        assert server.wait_exit() != 0
        assert "parameter 'adaptive_batching' requires the dynamic batcher" in server.log_text()
    finally:
        server.stop()

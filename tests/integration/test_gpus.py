"""GPUs over an NVML of our own: finding and loading the library and its calls as C sees them are real.

GPUs are measured, and Python models get the number of their own.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from support.gpus import fake_nvml
from support.model_repository import write_identity, write_model
from support.model_zoo import python_source, tensors
from support.server_process import ServerProcess


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which NVML is found."""
    return fake_nvml(tmp_path_factory.mktemp("gpus") / "nvml")


WHERE = python_source(
    {"WHERE": "np.array([self.where], np.object_)"},
    initialize="""self.where = f"{args['model_instance_kind']} {args['model_instance_device_id']}\"""",
)
CONFIG = 'backend: "python"\n' + tensors({"IN": "FP32 [ 1 ]"}, {"WHERE": "STRING [ 1 ]"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_identity(tmp_path / "models")
    return tmp_path / "models"


def of_gpus(server: ServerProcess) -> dict[str, float]:
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    return {name: float(value) for name, value in re.findall(r"^(nv_(?:gpu|energy)\S+) (\S+)$", text, re.MULTILINE)}


def await_gpus(server: ServerProcess, is_enough: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    deadline = time.monotonic() + 60
    while not is_enough(found := of_gpus(server)):
        assert time.monotonic() < deadline, f"nothing came of it within 60 s: {found}"
        time.sleep(0.05)
    return found


def where(server: ServerProcess, model: str) -> str:
    """Return the kind and the number of the device that the model's instance got."""
    with httpclient.InferenceServerClient(server.http_url, network_timeout=60) as client:
        tensor = httpclient.InferInput("IN", [1], "FP32")
        tensor.set_data_from_numpy(np.zeros(1, np.float32))
        return str(client.infer(model, [tensor]).as_numpy("WHERE")[0].decode())


def test_gpus_are_measured_and_given_to_instances(root, start_server, environment):
    write_model(root, "second", CONFIG + "instance_group [ { kind: KIND_GPU gpus: [ 1 ] } ]", {"1/model.py": WHERE})
    write_model(root, "every", CONFIG, {"1/model.py": WHERE})
    write_model(root, "cpu", CONFIG + "instance_group [ { kind: KIND_CPU } ]", {"1/model.py": WHERE})
    server = start_server(root, "--metrics-interval-ms=50", environment=environment)
    server.wait_started()
    energy = 'nv_energy_consumption{gpu_uuid="GPU-a0"}'
    found = await_gpus(server, lambda found: found.get(energy, 0) > 0)
    # Of the 5000 joules that the driver has counted before, none are the server's.
    assert found.pop(energy) < 4000
    assert found == {
        'nv_gpu_utilization{gpu_uuid="GPU-a0"}': 0.25,
        'nv_gpu_utilization{gpu_uuid="GPU-b1"}': 0,
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-a0"}': 80_000_000_000,
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-b1"}': 8_000_000_000,
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-a0"}': 79_999_999_000,
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-b1"}': 7_999_999_000,
        'nv_gpu_power_usage{gpu_uuid="GPU-a0"}': 123.4,
        'nv_gpu_power_limit{gpu_uuid="GPU-a0"}': 700,
    }
    assert "Collecting metrics for GPU 1: Small GPU" in server.log_text()
    assert (where(server, "second"), where(server, "cpu")) == ("GPU 1", "CPU 0")
    assert server.get("/v2/models/every/config").json["instance_group"][0]["gpus"] == [0, 1]
    assert server.get("/v2/models/identity/config").json["instance_group"][0]["kind"] == "KIND_CPU"
    server.signal()
    assert server.wait_exit() == 0


def test_processes_do_not_add_their_gpus_up(root, start_server, environment):
    server = start_server(
        root,
        "--processes=2",
        environment={**environment, "CUDA_VISIBLE_DEVICES": "GPU-b"},
    )
    server.wait_started()
    found = await_gpus(server, bool)
    assert found['nv_gpu_memory_total_bytes{gpu_uuid="GPU-b1"}'] == 8_000_000_000
    assert not any("GPU-a0" in series for series in found)


def test_gpus_are_not_used_when_disabled(root, start_server, environment):
    server = start_server(root, "--allow-gpu-metrics=false", environment=environment)
    server.wait_started()
    assert of_gpus(server) == {}
    assert "Collecting metrics for GPU" not in server.log_text()
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    assert "nv_pinned_memory_pool_total_bytes 0\n" in text
    assert "nv_cpu_memory_total_bytes " in text

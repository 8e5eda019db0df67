"""A server with engines on two GPUs, over substitutes for NVML, libcudart and the tensorrt package."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from support.model_repository import write_identity, write_model
from support.server_process import SOURCE, serving
from support.tensorrt_engines import SUPPORT, build_cudart, engine

CONFIG = 'backend: "tensorrt"\n'


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Return an environment with two GPUs and the tensorrt package."""
    pytest.importorskip("pynvml")
    directory = tmp_path_factory.mktemp("machine")
    build_cudart(directory)
    nvml = directory / "libnvidia-ml.so.1"
    subprocess.run([shutil.which("cc"), "-shared", "-fPIC", "-o", nvml, SUPPORT / "fake_nvml.c"], check=True)
    shutil.copy(SUPPORT / "fake_tensorrt.py", directory / "tensorrt.py")
    return {"LD_LIBRARY_PATH": str(directory), "PYTHONPATH": f"{SOURCE}:{directory}", "FAKE_CUDA_DEVICES": "2"}


def write_engine(root: Path, name: str, content: dict, groups: str = "") -> None:
    write_model(root, name, CONFIG + groups, {"1/model.plan": json.dumps(content)})


@pytest.fixture(scope="module")
def gpu_server(machine, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_engine(root, "doubler", engine((1, 8)))
    profiles = 'instance_group [ { kind: KIND_GPU gpus: [ 1 ] profile: [ "0", "2" ] } ]'
    write_engine(root, "profiles", engine((1, 2), (1, 4), (4, 16)), profiles)
    write_engine(root, "old", engine(version="10.4.0"))
    write_engine(root, "far", engine(), "instance_group [ { kind: KIND_GPU gpus: [ 2 ] } ]")
    log = tmp_path_factory.mktemp("server") / "log"
    flags = (f"--model-repository={root}", "--exit-on-error=false", "--strict-readiness=false")
    with serving(log, *flags, environment=machine) as running:
        running.wait_started()
        yield running


@pytest.fixture
def client(gpu_server):
    with grpcclient.InferenceServerClient(gpu_server.grpc_url) as made:
        yield made


def double(client, model: str, count: int) -> None:
    data = np.arange(4 * count, dtype=np.float32).reshape(count, 4)
    tensor = grpcclient.InferInput("IN", list(data.shape), "FP32")
    tensor.set_data_from_numpy(data)
    assert (client.infer(model, [tensor]).as_numpy("OUT") == 2 * data).all()


def test_engines_run_on_every_gpu(gpu_server, client):
    for count in (1, 8, 3):
        double(client, "doubler", count)
    config = gpu_server.get("/v2/models/doubler/config").json
    assert (config["max_batch_size"], config["instance_group"][0]["gpus"]) == (8, [0, 1])
    assert "engine on GPU 1, 1 optimization profiles" in gpu_server.log_text()


def test_requests_choose_profiles(client):
    for count in (1, 16, 2):
        double(client, "profiles", count)
    with pytest.raises(InferenceServerException, match=r"input 'IN' of shape \[3,4\] fits no optimization profile"):
        double(client, "profiles", 3)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("old", "got 10.4.0, please rebuild.; build it again with TensorRT 10.13.0"),
        ("far", "GPU 2 cannot be used, CUDA finds 2"),
    ],
)
def test_reasons_of_failures_are_listed(client, model, words):
    rows = {row.name: row for row in client.get_model_repository_index().models}
    assert rows[model].state == "UNAVAILABLE"
    assert words in rows[model].reason


def test_machine_without_gpu_serves_cpu_models(tmp_path, machine, start_server):
    root = tmp_path / "models"
    write_identity(root)
    write_engine(root, "doubler", engine())
    server = start_server(root, "--exit-on-error=false", environment={"PYTHONPATH": machine["PYTHONPATH"]})
    server.wait_started()
    rows = {row["name"]: row for row in server.post("/v2/repository/index").json}
    assert rows["identity"]["state"] == "READY"
    assert "TensorRT engines run on NVIDIA's GPUs only, and there is none here" in rows["doubler"]["reason"]

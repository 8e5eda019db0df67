"""Models on demand with a budget of a GPU, over an NVML whose processes are the workers of Python models."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.gpus import fake_nvml
from support.model_repository import write_model
from support.model_zoo import python_source, tensors
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

GB = 1_000_000_000
MODEL_GB = 30
BUDGET = 0.8 * 80 * GB
"""Room for two of them on GPU 0, which has 80 GB."""
TAKES = """
with open(os.path.join(os.environ["FAKE_NVML_MEMORY"], f"{gpu}-{{os.getpid()}}"), "w") as file:
    file.write("{amount}")
"""


def write_models(root: Path) -> None:
    config = 'backend: "python"\n' + tensors({"IN": "FP32 [ 1 ]"}, {"OUT": "FP32 [ 1 ]"})
    sizes = {f"m{number}": (0, MODEL_GB) for number in range(4)} | {"other": (1, 5), "huge": (0, 70)}
    for name, (gpu, size) in sizes.items():
        takes = TAKES.format(gpu=gpu, amount=size * GB)
        source = python_source({"OUT": "IN + 1"}, inputs=["IN"], initialize=takes)
        group = f"instance_group [ {{ kind: KIND_GPU gpus: [ {gpu} ] }} ]"
        weights = write_model(root, name, config + group, {"1/model.py": source, "1/weights": b""}) / "1" / "weights"
        if name != "huge":
            os.truncate(weights, size * GB)  # a sparse file


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, memory: Path) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("gpu_budget")
    write_models(root)
    environment = {**fake_nvml(memory / "nvml"), "FAKE_NVML_MEMORY": str(memory)}
    flags = ("--model-load-policy=on-demand", "--model-gpu-memory-budget=80%", "--model-min-residence-secs=0")
    with serving(root / "log", f"--model-repository={root}", *flags, environment=environment) as running:
        yield running


def ask(server: ServerProcess, model: str) -> tuple[int, str]:
    body = {"inputs": [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
    answer = server.post(f"/v2/models/{model}/infer", body)
    return answer.status, answer.body.decode()


def loaded(server: ServerProcess) -> set[str]:
    rows = server.post("/v2/repository/index").json
    return {row["name"] for row in rows if row.get("state") == "READY"}


def of_gpu(server: ServerProcess, name: str, labels: str) -> float:
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    line = next(
        (line for line in text.splitlines() if line.startswith(f"naiad_on_demand_gpu_{name}{{{labels}}}")), ""
    )
    return float(line.split()[-1]) if line else 0.0


def taken(memory: Path) -> int:
    """Return what the processes that live have of GPU 0."""
    return sum(int(file.read_text() or 0) for file in memory.glob("0-*") if has_writer(file))


def has_writer(file: Path) -> bool:
    """Return whether the process that wrote a file lives; its number may be that of a later process."""
    try:
        return psutil.Process(int(file.name[2:])).create_time() <= file.stat().st_mtime
    except psutil.NoSuchProcess:
        return False


def test_least_recently_used_models_leave_the_gpu(server: ServerProcess, memory: Path) -> None:
    assert ask(server, "other")[0] == 200
    for name in ("m0", "m1", "m2", "m3", "m0"):
        status, text = ask(server, name)
        assert status == 200, text
        assert taken(memory) <= BUDGET
    assert loaded(server) == {"m3", "m0", "other"}
    assert of_gpu(server, "used_bytes", 'gpu="0"') == 2 * MODEL_GB * GB
    assert of_gpu(server, "used_bytes", 'gpu="1"') == 5 * GB
    assert of_gpu(server, "budget_bytes", 'gpu="1"') == 0.8 * 8 * GB
    assert of_gpu(server, "model_bytes", 'gpu="0",model="m3"') == MODEL_GB * GB
    assert f"{MODEL_GB * GB} bytes of GPU 0" in server.log_text()


def test_model_above_the_gpu_budget_is_refused(server: ServerProcess, memory: Path) -> None:
    status, text = ask(server, "huge")
    assert status == 503
    reason = f"does not fit into --model-gpu-memory-budget of GPU 0: it took {70 * GB} bytes, the budget is"
    assert reason in text
    assert str(int(BUDGET)) in text
    rows = {row["name"]: row.get("reason", "") for row in server.post("/v2/repository/index").json}
    assert reason in rows["huge"]
    wait_until(lambda: taken(memory) <= BUDGET)


def test_growth_of_a_worker_has_idle_models_evicted(server: ServerProcess, memory: Path) -> None:
    for name in ("m0", "m1"):
        assert ask(server, name)[0] == 200
    newest = max(memory.glob("0-*"), key=lambda file: file.stat().st_mtime_ns)
    newest.write_text(str(50 * GB))
    wait_until(lambda: loaded(server) & {"m0", "m1"} == {"m1"})
    wait_until(lambda: taken(memory) <= BUDGET)

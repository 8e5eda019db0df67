"""The metrics of GPUs, as the server shows them, beside what nvidia-ml-py reads."""

import http.client
import importlib
import re
import time
from typing import Any

from bench.gpu.room import NotRun, Room
from bench.gpu.serving import config, write_model

_USED_SLACK_BYTES = 256 << 20
"""Between the two readings."""


def measure(room: Room) -> None:
    """Compare while the GPU computes."""
    text = config("identity", "KIND_CPU", {"INPUT0": ("FP32", (-1,))}, {"OUTPUT0": ("FP32", (-1,))})
    write_model(room.work / "models", "echo", text)
    with room.serve(room.work / "models", "--metrics-interval-ms=200") as served:
        families = _read(served.running.metrics_port)
        room.judge("the endpoint answers", bool(families), families=len(families))
        with room.check("figures"):
            _compare(room, served.running.metrics_port)


def _read(port: int) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {name: float(value) for name, value in re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)}


def _compare(room: Room, port: int) -> None:
    if not room.has_gpu:
        raise NotRun("no GPU")
    import torch

    pynvml: Any = importlib.import_module("pynvml")

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    label = f'{{gpu_uuid="{pynvml.nvmlDeviceGetUUID(gpu)}"}}'
    first_j = _read(port).get(f"nv_energy_consumption{label}")
    matrix = torch.randn(8192, 8192, device=room.device, dtype=torch.bfloat16)
    end_s = time.monotonic() + 3
    while time.monotonic() < end_s:
        matrix = torch.nn.functional.normalize(matrix @ matrix)
        torch.cuda.synchronize()
    found = _read(port)
    memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    expected = {
        "nv_gpu_memory_total_bytes": (float(memory.total), 0.0),
        "nv_gpu_memory_used_bytes": (float(memory.used), float(_USED_SLACK_BYTES)),
        "nv_gpu_power_limit": (pynvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1e3, 0.01),
        "nv_gpu_utilization": (pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100, 0.3),
        "nv_gpu_power_usage": (pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3, 250.0),
    }
    for name, (wanted, slack) in expected.items():
        value = found.get(f"{name}{label}")
        room.judge(name, value is not None and abs(value - wanted) <= slack, found=value, nvidia_ml_py=wanted)
    last_j = found.get(f"nv_energy_consumption{label}")
    is_met = first_j is not None and last_j is not None and 100 < last_j - first_j < 10_000
    room.judge("nv_energy_consumption", is_met, before_j=first_j, after_3_busy_s_j=last_j)

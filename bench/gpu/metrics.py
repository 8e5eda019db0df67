"""The metrics of GPUs, as a server shows them while its model computes, beside what nvidia-ml-py reads."""

import http.client
import importlib
import re
import time
from typing import Any

import numpy as np

from bench.gpu.room import NotRun, Room, Served
from bench.gpu.serving import config, write_model

_USED_SLACK_BYTES = 256 << 20
"""Between the two readings."""
_INTERVAL_MS = 200
_BUSY_S = 3.0
_BUSY = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("matrix", torch.randn({side}, {side}, dtype=torch.bfloat16))

    def forward(self, x):
        matrix = self.matrix
        for _ in range(20):
            matrix = torch.nn.functional.normalize(matrix @ matrix)
        return x + matrix[0, 0].float()
"""


def measure(room: Room) -> None:
    """Compare while the model computes."""
    text = config("pytorch", room.kind, {"x": ("FP32", (-1,))}, {"OUTPUT__0": ("FP32", (-1,))})
    write_model(room.work / "models", "busy", text, {"model.py": _BUSY.format(side=room.size(8192, 64))})
    with room.serve(room.work / "models", f"--metrics-interval-ms={_INTERVAL_MS}") as served:
        time.sleep(2 * _INTERVAL_MS / 1e3)
        families = _read(served.running.metrics_port)
        room.judge("the endpoint answers", bool(families), families=len(families))
        with room.check("figures"):
            _compare(room, served)


def _read(port: int) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {name: float(value) for name, value in re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)}


def _compare(room: Room, served: Served) -> None:
    if not room.has_gpu:
        raise NotRun("no GPU")
    pynvml: Any = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    label = f'{{gpu_uuid="{pynvml.nvmlDeviceGetUUID(gpu)}"}}'
    first = _read(served.running.metrics_port)
    served.load("busy")
    end_s = time.monotonic() + _BUSY_S
    while time.monotonic() < end_s:
        served.infer("busy", {"x": np.ones(4, np.float32)})
    found = _read(served.running.metrics_port)
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
    first_j, last_j = (read.get(f"nv_energy_consumption{label}") for read in (first, found))
    is_met = first_j is not None and last_j is not None and 100 < last_j - first_j < 10_000
    room.judge("nv_energy_consumption", is_met, before_j=first_j, after_3_busy_s_j=last_j)
    used = [read.get(f"nv_gpu_memory_used_bytes{label}") or 0.0 for read in (first, found)]
    room.judge("memory of the model", used[1] - used[0] > 128 << 20, before_bytes=used[0], loaded_bytes=used[1])

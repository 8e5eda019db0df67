"""What the figures depend on: GPUs, driver, processors, versions; and why a part cannot run here."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from naiad.telemetry.metrics.gpus import NvmlError, load_nvml, visible

PACKAGES: Sequence[str] = """
numpy torch torchvision timm transformers jax jaxlib jax-cuda13-plugin jax-cuda12-plugin cupy-cuda13x cupy-cuda12x
onnx onnxruntime onnxruntime-gpu tensorrt triton grpcio protobuf uvloop httptools orjson pysimdjson hpack tritonclient
ml_dtypes nvidia-ml-py cuda-bindings psutil
""".split()  # noqa: SIM905 - a list of words is easier to read
GIB = 1 << 30


def version(package: str) -> str:
    """Return the version of a package; "" without it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def gpus() -> list[dict[str, Any]]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves. Raises NvmlError without a driver."""
    nvml = load_nvml()
    try:
        found = []
        for gpu in visible(nvml.gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")):
            reading = nvml.read(gpu)
            total, used = reading.memory_total_bytes or 0, reading.memory_used_bytes or 0
            found.append({"name": gpu.name, "uuid": gpu.uuid, "total_bytes": total, "free_bytes": total - used})
        return found
    finally:
        nvml.close()


def gpu_problem(free_gib: float = 0.0) -> str:
    """Return why nothing that needs this much memory can run on GPU 0; "" if it can."""
    try:
        found = gpus()
    except NvmlError as error:
        return f"no GPU: {error}"
    if not found:
        return (
            f"no GPU: CUDA_VISIBLE_DEVICES is '{os.environ.get('CUDA_VISIBLE_DEVICES', '')}' or the machine has none"
        )
    free = found[0]["free_bytes"] / GIB
    if free < free_gib:
        return f"too little memory: GPU 0 has {free:.1f} GiB free, this part takes {free_gib:g} GiB"
    return ""


def facts(command: Sequence[str]) -> dict[str, Any]:
    """Return machine, versions and command."""
    try:
        found: Any = gpus()
    except NvmlError as error:
        found = f"none: {error}"
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": " ".join(command),
        "gpus": found,
        "driver": _driver(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / GIB, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": _output("git", "describe", "--always", "--dirty"),
        "versions": {name: found for name in PACKAGES if (found := version(name))},
    }


def _driver() -> str:
    return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not answer"
    return done.stdout.strip().split("\n")[0]


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()

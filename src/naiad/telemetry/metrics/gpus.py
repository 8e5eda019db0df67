"""GPU metrics from NVML, measured by a thread of its own, because a call may take milliseconds.

NVML is the library of NVIDIA's driver. `pynvml` calls it, the module of NVIDIA's package nvidia-ml-py.
"""

import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from naiad.telemetry.last_resort import keep_running
from naiad.telemetry.live.live_answer import GpuUse
from naiad.telemetry.metrics.exposition import Kind, Row, format_rows

_WITHOUT_VALUE = frozenset({2, 3, 4, 13, 999})
"""Invalid argument (a MIG device), not supported, no permission, not in this driver, unknown: this figure is missing,
other figures can be read."""
_LIBRARY = "libnvidia-ml.so.1"
_DRIVER = Path("/proc/driver/nvidia/gpus")
"""A directory for each GPU, named by its PCI bus id."""


class NvmlError(Exception):
    """There is no NVML, or a call failed; the text names the reason."""


class NvmlPackageError(NvmlError):
    """The package that calls NVML is not installed, so there may be GPUs."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its NVML handle and its constant properties."""

    handle: Any
    uuid: str
    name: str


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The state of a GPU at one moment; None for values that it does not support."""

    utilization: float | None
    """0.0 to 1.0."""
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None
    """Since the driver was loaded."""


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The memory of a GPU at one moment, in bytes."""

    total_bytes: int
    used_bytes: int
    """By all processes, also of others."""
    process_bytes: Mapping[int, int]
    """By the processes that NVML names. In a container these may be none, or have the ids of the host."""


class Nvml:
    """The initialized library. Used by one thread at a time."""

    def __init__(self, pynvml: Any) -> None:
        """Raises NvmlError if the library is missing or cannot be initialized."""
        self._pynvml = pynvml
        self._call(pynvml.nvmlInit)

    def gpus(self) -> Sequence[Gpu]:
        """Return the GPUs of the machine, in the order of their PCI bus ids. Raises NvmlError."""
        nvml = self._pynvml
        handles = [self._call(nvml.nvmlDeviceGetHandleByIndex, i) for i in range(self._call(nvml.nvmlDeviceGetCount))]
        texts = (nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetName)
        return [Gpu(handle, *(_text(self._call(call, handle)) for call in texts)) for handle in handles]

    def read(self, gpu: Gpu) -> GpuReading:
        """Return the current state of a GPU. Raises NvmlError if it is lost."""
        nvml = self._pynvml
        utilization = self._ask(nvml.nvmlDeviceGetUtilizationRates, gpu)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, gpu)
        return GpuReading(
            utilization=None if utilization is None else utilization.gpu / 100,
            memory_total_bytes=None if memory is None else memory.total,
            memory_used_bytes=None if memory is None else memory.used,
            power_w=_thousandths(self._ask(nvml.nvmlDeviceGetPowerUsage, gpu)),
            power_limit_w=_thousandths(self._ask(nvml.nvmlDeviceGetPowerManagementLimit, gpu)),
            energy_j=_thousandths(self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, gpu)),
        )

    def read_memory(self, gpu: Gpu) -> GpuMemory:
        """Return the memory of a GPU. Raises NvmlError if it is lost or does not report its memory."""
        nvml = self._pynvml
        memory = self._call(nvml.nvmlDeviceGetMemoryInfo, gpu.handle)
        processes = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, gpu) or ()
        used = {process.pid: process.usedGpuMemory for process in processes if process.usedGpuMemory is not None}
        return GpuMemory(memory.total, memory.used, used)

    def close(self) -> None:
        """Release the library. Raises NvmlError."""
        self._call(self._pynvml.nvmlShutdown)

    def _ask(self, call: Callable[..., Any], gpu: Gpu) -> Any:
        """Return what a call says of a GPU, None if the GPU does not support it. Raises NvmlError."""
        try:
            return call(gpu.handle)
        except self._pynvml.NVMLError as error:
            if error.value in _WITHOUT_VALUE:
                return None
            raise NvmlError(f"{call.__name__} failed with error {error.value}: {error}") from None

    def _call(self, call: Callable[..., Any], *arguments: object) -> Any:
        try:
            return call(*arguments)
        except self._pynvml.NVMLError as error:
            raise NvmlError(f"{call.__name__} failed with error {error.value}: {error}") from None


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")  # bytes in old versions


def _thousandths(number: int | None) -> float | None:
    return None if number is None else number / 1000


def load_nvml() -> Nvml:
    """Return the NVML of this machine. Raises NvmlError if there is none, NvmlPackageError without its package."""
    try:
        if find_spec("pynvml") is not None and not _has_library():
            # The module is large: the servers without a GPU do not import it.
            raise NvmlError(f"this machine has no {_LIBRARY}")
        import pynvml
    except ImportError:
        raise NvmlPackageError("install nvidia-ml-py with pip install 'naiad[gpu]'") from None
    return Nvml(pynvml)


def _has_library() -> bool:
    """Return whether there is what `pynvml` opens, as far as that is known: on other systems it looks elsewhere."""
    try:
        return sys.platform != "linux" or ctypes.CDLL(_LIBRARY) is not None
    except OSError:
        return False


def gpus_of_driver(directory: Path = _DRIVER) -> Sequence[Gpu]:
    """Return the GPUs that the driver shows without NVML, in the order of their PCI bus ids; they have no handle."""
    found = []
    for file in sorted(directory.glob("*/information")):
        fields = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
        found.append(Gpu(None, fields.get("GPU UUID", "").strip(), fields.get("Model", "").strip()))
    return found


def visible(gpus: Sequence[Gpu], cuda_visible_devices: str | None) -> Sequence[Gpu]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES, which has numbers or prefixes of UUIDs; all if it is None.

    CUDA ignores everything behind the first invalid entry.
    """
    if cuda_visible_devices is None:
        return gpus
    chosen: list[Gpu] = []
    for token in (word.strip() for word in cuda_visible_devices.split(",")):
        if token.isdigit():
            found = list(gpus[int(token) : int(token) + 1])
        else:
            found = [gpu for gpu in gpus if token and gpu.uuid.startswith(token)]
        if len(found) != 1:
            break
        if found[0] not in chosen:
            chosen.append(found[0])
    return chosen


_log = logging.getLogger(__name__)

_CLOSE_S = 5.0
_MAX_FAILURES = 5
"""Number of consecutive failures after which measurements stop."""


_FAMILIES: Sequence[tuple[str, Kind, str, str]] = (
    ("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0]", "utilization"),
    ("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", "memory_total_bytes"),
    ("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", "memory_used_bytes"),
    ("nv_gpu_power_usage", "gauge", "GPU power usage in watts", "power_w"),
    ("nv_gpu_power_limit", "gauge", "GPU power management limit in watts", "power_limit_w"),
    ("nv_energy_consumption", "counter", "GPU energy consumption in joules since the server started", "energy_j"),
)
"""Name, kind, help, and the field of a reading."""
GPU_FAMILIES = frozenset(name for name, *_ in _FAMILIES)


class GpuMeter:
    """Measures regularly, from `start` to `close`; `render` shows the last measurement."""

    def __init__(self, interval_s: float, load: Callable[[], Nvml] = load_nvml) -> None:
        self._interval_s = interval_s
        self._load = load
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._readings: Mapping[str, GpuReading] = {}
        self._energy_at_start: dict[str, float] = {}

    def start(self) -> None:
        """Start to measure, in a thread, which ends at once if there is no GPU."""
        self._thread = threading.Thread(target=self._keep_running, name="gpu-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop measuring."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def uses(self) -> Sequence[GpuUse]:
        """Return how busy each GPU is, none before the first measurement."""
        return [
            GpuUse(index, reading.utilization or 0.0, reading.memory_used_bytes or 0, reading.memory_total_bytes or 0)
            for index, reading in enumerate(self._readings.values())
        ]

    def render(self) -> Iterable[str]:
        """Return the families of metrics, none before the first measurement."""
        readings = self._readings
        if not readings:
            return []
        return [format_rows(name, kind, text, _rows(readings, field)) for name, kind, text, field in _FAMILIES]

    def _keep_running(self) -> None:
        keep_running("the thread of the GPU metrics", self.run, self._stop.wait)

    def run(self) -> None:
        """Measure until `close`; runs in the thread."""
        try:
            nvml = self._load()
        except NvmlError as error:
            needs_package = isinstance(error, NvmlPackageError) and gpus_of_driver()
            _log.log(logging.WARNING if needs_package else logging.DEBUG, "no GPU metrics: %s", error)
            return
        try:
            self._measure_all(nvml)
            nvml.close()
        except NvmlError as error:
            _log.warning("GPU metrics stopped: %s", error)
        self._readings = {}

    def _measure_all(self, nvml: Nvml) -> None:
        gpus = visible(nvml.gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        for number, gpu in enumerate(gpus):
            _log.info("Collecting metrics for GPU %d: %s", number, gpu.name)
        failure_count = 0
        while gpus:
            try:
                self.measure(nvml, gpus)
                failure_count = 0
            except NvmlError:
                failure_count += 1
                if failure_count >= _MAX_FAILURES:
                    raise
            if self._stop.wait(self._interval_s):
                return

    def measure(self, nvml: Nvml, gpus: Sequence[Gpu]) -> None:
        """Measure once. Raises NvmlError."""
        readings = {}
        for gpu in gpus:
            reading = nvml.read(gpu)
            if reading.energy_j is not None:
                start_j = self._energy_at_start.setdefault(gpu.uuid, reading.energy_j)
                reading = replace(reading, energy_j=reading.energy_j - start_j)
            readings[gpu.uuid] = reading
        self._readings = readings


def _rows(readings: Mapping[str, GpuReading], field: str) -> list[Row]:
    values = [(uuid, getattr(reading, field)) for uuid, reading in readings.items()]
    return [({"gpu_uuid": uuid}, value) for uuid, value in values if value is not None]

"""GPU metrics from NVML, measured by a thread of its own, because a call may take milliseconds.

NVML is the library of NVIDIA's driver. It is called directly; no Python package is needed.
"""

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from naiad.telemetry.last_resort import keep_running
from naiad.telemetry.metrics.exposition import Kind, Row, format_rows

_LIBRARIES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
_SUCCESS = 0
_WITHOUT_VALUE = frozenset({2, 3, 4, 13, 999})
"""Invalid argument (a MIG device), not supported, no permission, not in this driver, unknown: this figure is missing,
other figures can be read."""
_UUID_BYTES = 96
_NAME_BYTES = 96


class NvmlError(Exception):
    """There is no NVML, or a call failed; the text names the call and the reason."""


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t`, in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its NVML handle and its constant properties."""

    handle: int
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


class Nvml:
    """The initialized library. Used by one thread at a time."""

    def __init__(self, library: Any) -> None:
        """`library` is a loaded libnvidia-ml. Raises NvmlError if it cannot be initialized."""
        self._library = library
        try:
            library.nvmlErrorString.restype = ctypes.c_char_p
        except AttributeError as error:
            raise NvmlError(f"it lacks a call: {error}") from None
        self._call("nvmlInit_v2")

    def gpus(self) -> Sequence[Gpu]:
        """Return the GPUs of the machine, in the order of their PCI bus ids. Raises NvmlError."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            address = handle.value or 0
            uuid = self._text("nvmlDeviceGetUUID", address, _UUID_BYTES)
            found.append(Gpu(address, uuid, self._text("nvmlDeviceGetName", address, _NAME_BYTES)))
        return found

    def read(self, gpu: Gpu) -> GpuReading:
        """Return the current state of a GPU. Raises NvmlError if it is lost."""
        utilization, memory = _Utilization(), _Memory()
        knows_utilization = self._ask("nvmlDeviceGetUtilizationRates", gpu, utilization)
        knows_memory = self._ask("nvmlDeviceGetMemoryInfo", gpu, memory)
        return GpuReading(
            utilization=utilization.gpu / 100 if knows_utilization else None,
            memory_total_bytes=memory.total if knows_memory else None,
            memory_used_bytes=memory.used if knows_memory else None,
            power_w=self._thousandths("nvmlDeviceGetPowerUsage", gpu, ctypes.c_uint()),
            power_limit_w=self._thousandths("nvmlDeviceGetPowerManagementLimit", gpu, ctypes.c_uint()),
            energy_j=self._thousandths("nvmlDeviceGetTotalEnergyConsumption", gpu, ctypes.c_ulonglong()),
        )

    def close(self) -> None:
        """Release the library. Raises NvmlError."""
        self._call("nvmlShutdown")

    def _thousandths(self, name: str, gpu: Gpu, number: Any) -> float | None:
        return number.value / 1000 if self._ask(name, gpu, number) else None

    def _ask(self, name: str, gpu: Gpu, answer: Any) -> bool:
        """Let a call fill `answer`; return whether the GPU supports it. Raises NvmlError."""
        if not hasattr(self._library, name):
            return False  # an old driver
        status = getattr(self._library, name)(ctypes.c_void_p(gpu.handle), ctypes.byref(answer))
        if status not in _WITHOUT_VALUE and status != _SUCCESS:
            raise self._failed(name, status)
        return bool(status == _SUCCESS)

    def _text(self, name: str, handle: int, size: int) -> str:
        buffer = ctypes.create_string_buffer(size)
        self._call(name, ctypes.c_void_p(handle), buffer, ctypes.c_uint(size))
        return buffer.value.decode("utf-8", "replace")

    def _call(self, name: str, *arguments: object) -> None:
        try:
            status = getattr(self._library, name)(*arguments)
        except AttributeError as error:
            raise NvmlError(f"it lacks a call: {error}") from None
        if status != _SUCCESS:
            raise self._failed(name, status)

    def _failed(self, name: str, status: int) -> NvmlError:
        text = self._library.nvmlErrorString(status) or b""
        return NvmlError(f"{name} failed with error {status}: {text.decode('utf-8', 'replace')}")


def load_nvml(load: Callable[[str], Any] = ctypes.CDLL) -> Nvml:
    """Return the NVML of this machine. Raises NvmlError if there is none, or no GPU."""
    for name in _LIBRARIES:
        try:
            library = load(name)
        except OSError:
            continue
        return Nvml(library)
    raise NvmlError(f"{_LIBRARIES[0]} was not found; it comes with NVIDIA's driver")


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
            _log.debug("no GPU metrics: %s", error)
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

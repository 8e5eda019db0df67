"""What the GPUs do, measured by a thread of its own: NVML may take milliseconds for an answer."""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from naiad.telemetry.exposition import Kind, format_family, format_labels, format_value
from naiad.telemetry.nvml import Gpu, GpuReading, Nvml, NvmlError, load_nvml, visible

_log = logging.getLogger(__name__)

_CLOSE_S = 5.0
_MOST_FAILURES = 5
"""Measurements in a row that may fail before no more are made."""


class _Family(NamedTuple):
    name: str
    kind: Kind
    help: str
    read: Callable[[GpuReading], float | None]


_FAMILIES = (
    _Family("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0]", attrgetter("utilization")),
    _Family("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", attrgetter("memory_total_bytes")),
    _Family("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", attrgetter("memory_used_bytes")),
    _Family("nv_gpu_power_usage", "gauge", "GPU power usage in watts", attrgetter("power_w")),
    _Family("nv_gpu_power_limit", "gauge", "GPU power management limit in watts", attrgetter("power_limit_w")),
    _Family(
        "nv_energy_consumption",
        "counter",
        "GPU energy consumption in joules since the server started",
        attrgetter("energy_j"),
    ),
)
GPU_FAMILIES = frozenset(family.name for family in _FAMILIES)


class GpuMeter:
    """Measures every so often, from `start` to `close`; `render` shows the last measurement."""

    def __init__(self, interval_s: float, load: Callable[[], Nvml] = load_nvml) -> None:
        self._interval_s = interval_s
        self._load = load
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._readings: Mapping[str, GpuReading] = {}
        self._energy_at_start: dict[str, float] = {}

    def start(self) -> None:
        """Begin to measure, in a thread, which ends at once when there is no GPU."""
        self._thread = threading.Thread(target=self.run, name="gpu-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Measure no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def render(self) -> Iterable[str]:
        """Return the families of metrics, none as long as nothing was measured."""
        readings = self._readings
        if not readings:
            return []
        return [_rendered(family, readings) for family in _FAMILIES]

    def run(self) -> None:
        """Measure until `close`; what the thread does."""
        try:
            nvml = self._load()
        except NvmlError as error:
            _log.debug("no GPU metrics: %s", error)
            return
        try:
            self._measure_all(nvml)
            nvml.close()
        except NvmlError as error:
            _log.warning("GPU metrics end: %s", error)
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
                if failure_count >= _MOST_FAILURES:
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


def _rendered(family: _Family, readings: Mapping[str, GpuReading]) -> str:
    values = [(uuid, family.read(reading)) for uuid, reading in readings.items()]
    lines = [
        f"{family.name}{format_labels({'gpu_uuid': uuid})} {format_value(value)}"
        for uuid, value in values
        if value is not None
    ]
    return format_family(family.name, family.kind, family.help, lines)

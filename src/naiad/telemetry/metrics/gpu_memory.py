"""The memory of the visible GPUs when it is asked for: what each process has of it."""

import os
import threading
from collections.abc import Callable, Mapping

from naiad.telemetry.metrics.gpus import GpuMemory, Nvml, load_nvml, visible


class GpuMemoryReader:
    """Reads the memory of the visible GPUs, by the numbers that CUDA gives them. For any thread, a read takes ms."""

    def __init__(self, load: Callable[[], Nvml] = load_nvml) -> None:
        """Raises NvmlError if there is no NVML, or it cannot name the GPUs."""
        self._nvml = load()
        self._lock = threading.Lock()
        self._gpus = dict(enumerate(visible(self._nvml.gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))))

    def read(self) -> Mapping[int, GpuMemory]:
        """Return the memory of each GPU now. Raises NvmlError."""
        with self._lock:
            return {number: self._nvml.read_memory(gpu) for number, gpu in self._gpus.items()}

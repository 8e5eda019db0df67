"""What micro benches share: a transport that keeps nothing, an engine without models, models, a clock."""

import asyncio
import atexit
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import psutil

from naiad.backend.api import Instance, Model, ModelContext
from naiad.backend.python.backend import PythonBackend
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.limits.request_limits import RequestLimits
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.engine.inference import Inference
from naiad.engine.serving.served_model import ServedModel
from naiad.scheduler.factory import create_scheduler
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.statistics.model_statistics import ModelStatistics

ROUNDS = 7


class MemoryTransport(asyncio.Transport):
    """Takes what is written and counts it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.last: Buffer = b""
        self.is_paused = False

    def write(self, data: Buffer) -> None:
        self.writes += 1
        self.last = data

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for piece in list_of_data:
            self.write(piece)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It takes everything."""

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class InferenceWithoutModels(Inference):
    """Knows every model; a subclass executes."""

    def __init__(self, *, is_decoupled: bool) -> None:
        self.engine = Engine(server_id="bench", metrics=Registry())
        super().__init__(self.engine.models, self.engine.shared_memory)
        self.engine.inference = self
        self._served = SimpleNamespace(is_decoupled=is_decoupled)
        self.served = self._found  # every model is there
        self.engine.models.served = self._found  # type: ignore[method-assign]

    def request_limits(self, name: str, version: str = "") -> RequestLimits:
        return RequestLimits(name, 2, 2)

    def _found(self, name: str, version: str = "") -> Any:
        return self._served


def served_model(config: ModelConfig, model: Model, instance: Instance) -> ServedModel:
    """Return a version with one instance, on the running loop."""
    return ServedModel(
        name="m",
        version=1,
        config=config,
        backend_model=model,
        instances=[instance],
        scheduler=create_scheduler(config),
        statistics=ModelStatistics("m", "1"),
        loop=asyncio.get_running_loop(),
    )


def vectors_config(backend: str, width: int, count: int = 2, max_batch_size: int = 64) -> ModelConfig:
    """Return the configuration of a model with `count` FP32 vectors in and out."""
    config = ModelConfig(name="m", backend=backend, max_batch_size=max_batch_size)
    for number in range(count):
        config.input.add(name=f"INPUT{number}", data_type="TYPE_FP32", dims=[width])
        config.output.add(name=f"OUTPUT{number}", data_type="TYPE_FP32", dims=[width])
    return config


def python_model(source: str, config: ModelConfig) -> Model:
    """Load a `model.py`."""
    directory = Path(tempfile.mkdtemp(prefix="naiad-bench-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    (directory / "1").mkdir()
    (directory / "1" / "model.py").write_text(source)
    return PythonBackend().load(ModelContext("m", 1, config, directory, directory / "1", 1))


def process_us(process: psutil.Process) -> float:
    """Return the CPU microseconds that a process has used."""
    times = process.cpu_times()
    return 1e6 * (times.user + times.system)


def cpu_us(work: Callable[[], object], count: int, rounds: int = ROUNDS) -> float:
    """Return the CPU microseconds of each of the `count` calls that `work` makes; the median of some rounds."""
    times = []
    for _ in range(rounds):
        start = time.process_time_ns()
        work()
        times.append((time.process_time_ns() - start) / count / 1000)
    return median(times)

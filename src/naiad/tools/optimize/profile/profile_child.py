"""The process of a profile: executes batches on an instance of the backend, with no scheduler before it.

The call of an instance is the least that naiad adds to a framework; a scheduler would add its queue and a thread.
The first message is a `ProfileJob`. The next ones are `(batch, seconds)`; each answer has the times of the calls.
"""

import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np

from naiad.backend.registry import BackendRegistry
from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.tensor import TensorSpec
from naiad.testing.backend_model import BackendModel
from naiad.testing.called_models import ModelError
from naiad.tools.optimize.correctness.runners.model_runner import RunnerError
from naiad.tools.optimize.correctness.tensor_names import match_names
from naiad.tools.optimize.profile.profile_messages import Arrays, Loaded, ProfileJob, TimedCalls
from naiad.tools.process.usage import resident_mib

_WARM_UP_CALLS = 3
"""Of each batch size: frameworks compile in the second call what they have seen in the first one."""


class ProfiledModel:
    """A model with its samples."""

    def __init__(self, job: ProfileJob) -> None:
        """Load the model. Raises InferError, RunnerError."""
        self._before_mib, begin_s = resident_mib(os.getpid()), time.monotonic()
        self._model = _load(job)
        config = self._model.config
        own = [_named(each.name) for each in config.input]
        names = match_names([_named(name) for name in job.inputs], own, "inputs")
        self._samples = [{names[name]: array for name, array in sample.items()} for sample in job.samples]
        self._has_batch = job.has_batch
        self._warm: set[int] = set()
        rows = 0
        if job.has_batch and not config.max_batch_size:
            rows = next((each.dims[0] for each in config.input if each.dims and each.dims[0] > 0), 0)
        limit = config.max_batch_size or rows
        self.loaded = Loaded(time.monotonic() - begin_s, limit if job.has_batch else 1, rows > 0)

    def measure(self, batch: int, seconds: float) -> TimedCalls:
        """Call with `batch` samples, at least once, until the time is over. Raises ModelError."""
        arrays = self._arrays(batch)
        if batch not in self._warm:
            self._warm.add(batch)
            self._calls(arrays, seconds, _WARM_UP_CALLS)
        durations_ns = self._calls(arrays, seconds)
        return TimedCalls(durations_ns, resident_mib(os.getpid()) - self._before_mib)

    def _calls(self, batches: Sequence[Arrays], seconds: float, most: int = 0) -> list[int]:
        durations_ns: list[int] = []
        end_ns = time.perf_counter_ns() + int(seconds * 1e9)
        now_ns = time.perf_counter_ns()
        while not durations_ns or (now_ns < end_ns and len(durations_ns) != most):
            begin_ns = time.perf_counter_ns()
            self._model.infer(batches[len(durations_ns) % len(batches)])
            now_ns = time.perf_counter_ns()
            durations_ns.append(now_ns - begin_ns)
        return durations_ns

    def _arrays(self, batch: int) -> list[Arrays]:
        """Return requests that have all samples in turn."""
        if not self._has_batch:
            return list(self._samples)
        count = len(self._samples)
        return [
            {
                name: np.stack([self._samples[(first + row) % count][name] for row in range(batch)])
                for name in self._samples[0]
            }
            for first in range(0, count, batch)
        ]


def run(argv: Sequence[str]) -> None:
    """Measure over the connection whose file descriptor is in `argv`, until it closes."""
    connection = Connection(int(argv[0]))
    try:
        model = ProfiledModel(connection.recv())
        connection.send(("", model.loaded))
        while True:
            _answer(connection, model)
    except (InferError, RunnerError) as error:
        connection.send((str(error).strip(), None))
    except EOFError:
        pass  # The parent has closed.
    sys.stdout.flush()
    # Threads of a model would keep the process alive.
    os._exit(0)


def _answer(connection: Connection, model: ProfiledModel) -> None:
    batch, seconds = connection.recv()
    try:
        connection.send(("", model.measure(batch, seconds)))
    except ModelError as error:
        connection.send((f"batch of {batch}: {error}" if batch > 1 else str(error), None))


def _load(job: ProfileJob) -> BackendModel:
    backend = BackendRegistry().get(job.backend)
    *tried, last = job.configurations
    for text in tried:
        try:
            return BackendModel(backend, job.directory, config=text)
        except InferError:
            continue  # The model has no batch dimension that varies.
    return BackendModel(backend, job.directory, config=last)


def _named(name: str) -> TensorSpec:
    """Return a tensor whose name alone counts."""
    return TensorSpec(name, DataType.FP32, ())


if __name__ == "__main__":
    run(sys.argv[1:])

"""A loop that runs in steps, a backend whose instances do what a test scripts, and requests for them."""

import collections
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from naiad.backend.api import Instance, InstanceSpec, Model
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.environment.ports import Loop
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.instances.instance_resources import ModelResources
from naiad.engine.serving.served_model import ServedModel
from naiad.scheduler.factory import create_scheduler
from naiad.telemetry.statistics.model_statistics import ModelStatistics

Serve = Callable[..., ServedModel]


class _Timer:
    def __init__(
        self, loop: "StepLoop", delay: float, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self._timer = threading.Timer(delay, loop.call_soon_threadsafe, (callback, *args))
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()


class StepLoop:
    """An event loop for tests: callbacks wait until `run_until` runs them on the test's own thread."""

    def __init__(self) -> None:
        self._callbacks: queue.Queue[tuple[Callable[..., object], tuple[Any, ...]]] = queue.Queue()
        self._soon: collections.deque[tuple[Callable[..., object], tuple[Any, ...]]] = collections.deque()
        self.wakes = 0

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._soon.append((callback, args))
        if len(self._soon) == 1:
            # One after the other: a callback that comes back again and again must not nest.
            while self._soon:
                following, arguments = self._soon[0]
                try:
                    following(*arguments)
                finally:
                    self._soon.popleft()

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        self.wakes += 1
        self._callbacks.put((callback, args))

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> _Timer:
        return _Timer(self, delay, callback, args)

    def run_until(self, done: Callable[[], bool], timeout_s: float = 10.0) -> None:
        while not done():
            callback, args = self._callbacks.get(timeout=timeout_s)
            callback(*args)


class ScriptedInstance(Instance):
    """Echoes its first input; `script` may replace what it does with a batch."""

    def __init__(self, script: Callable[[Batch], Sequence[InferResponse]] | None = None) -> None:
        self.script = script
        self.batches: list[Batch] = []
        self.closed = False
        self.reason = ""

    @property
    def health(self) -> str:
        return self.reason or self.unavailable_reason

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        self.batches.append(batch)
        batch.compute_start_ns = batch.exec_start_ns
        if self.script is not None:
            return self.script(batch)
        header = ResponseHeader("m", "1", [TensorSpec("OUT", DataType.FP32, batch.requests[0].shape_of(0))])
        return [InferResponse(header, [request.data[0]]) for request in batch.requests]

    def close(self) -> None:
        self.closed = True


def answers_of(batch: Batch) -> Sequence[InferResponse]:
    """Return an answer without outputs to every request of a batch."""
    return [InferResponse(ResponseHeader("m", "1", ()), []) for _ in batch.requests]


class Gate:
    """A script that holds batches until it is opened, and signals when one has arrived."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self.opened = threading.Semaphore(0)

    def __call__(self, batch: Batch) -> Sequence[InferResponse]:
        self.reached.release()
        assert self.opened.acquire(timeout=60)
        return answers_of(batch)


class ScriptedModel(Model):
    """A model without anything to share."""

    def __init__(self) -> None:
        self.closed = False

    def create_instance(self, spec: InstanceSpec) -> Instance:
        return ScriptedInstance()

    def close(self) -> None:
        self.closed = True


class Answers:
    """Collects what requests are answered with, in order of arrival."""

    def __init__(self) -> None:
        self.received: list[tuple[str, InferResponse]] = []

    def __call__(self, request: InferRequest, response: InferResponse) -> None:
        self.received.append((request.id, response))

    def __len__(self) -> int:
        return len(self.received)


def config(max_batch_size: int = 8, **fields: Any) -> ModelConfig:
    """Return a configuration with one FP32[2] input IN and output OUT."""
    made = ModelConfig(name="m", backend="scripted", max_batch_size=max_batch_size, **fields)
    made.input.add(name="IN", data_type="TYPE_FP32", dims=[2])
    made.output.add(name="OUT", data_type="TYPE_FP32", dims=[2])
    return made


def header(rows: int = 1, name: str = "IN", datatype: DataType = DataType.FP32, width: int = 2) -> RequestHeader:
    """Return a header for `config()`."""
    return RequestHeader(model_name="m", inputs=[TensorSpec(name, datatype, (rows, width))])


def request(
    answers: Answers, request_id: str = "", made: RequestHeader | None = None, arrival_ns: int = 1
) -> InferRequest:
    """Return a request with zero data for `header()`."""
    made = made or header()
    data = [bytes(max(0, spec.byte_size)) for spec in made.inputs]
    return InferRequest(made, data, answers, id=request_id, arrival_ns=arrival_ns)


def served_model(
    instances: Sequence[Instance],
    loop: Loop,
    made: ModelConfig | None = None,
    *,
    backend_model: Model | None = None,
    resources: ModelResources | None = None,
) -> ServedModel:
    """Return version 1 of model m, which serves with these instances; to be stopped by the caller."""
    made = made or config()
    return ServedModel(
        name="m",
        version=1,
        config=made,
        backend_model=backend_model or ScriptedModel(),
        instances=instances,
        scheduler=create_scheduler(made, instance_count=max(1, len(instances))),
        statistics=ModelStatistics("m", "1"),
        loop=loop,
        resources=resources,
    )

"""One request that a model executes again and again: the id it goes by, and what it is when it is put back."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from naiad.backend.api import InstanceDiedError
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.datatype import BY_CONFIG_NAME, DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import TensorSpec
from naiad.engine.serving.dispatch.sequence_dispatcher import IterativeRequests, SequenceDispatcher
from naiad.engine.serving.execution.executor import BatchExecutor
from naiad.scheduler.api import Scheduler
from naiad.scheduler.factory import create_scheduler
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from support.engine_parts import Answers, StepLoop


def config_of(strategy: str) -> ModelConfig:
    config = ModelConfig(name="m", max_batch_size=4)
    config.sequence_batching.iterative_sequence = True
    getattr(config.sequence_batching, strategy).SetInParent()
    return config


def iterative(id_type: str = "", strategy: str = "direct") -> tuple[IterativeRequests, Scheduler]:
    config = config_of(strategy)
    if id_type:
        control = config.sequence_batching.control_input.add(name="ID").control.add(kind="CONTROL_SEQUENCE_CORRID")
        control.data_type = BY_CONFIG_NAME[id_type].config_number
    scheduler = create_scheduler(config)
    return IterativeRequests(config, scheduler), scheduler


def request_of(sequence_id: int | str = 0, **flags: bool) -> InferRequest:
    header = RequestHeader(
        model_name="m", inputs=[TensorSpec("IN", DataType.FP32, (1, 1))], sequence_id=sequence_id, **flags
    )
    return InferRequest(header, [b"data"], Answers(), arrival_ns=1)


def begun(requests: IterativeRequests, scheduler: Scheduler) -> InferRequest:
    request = request_of()
    requests.begin(request)
    scheduler.enqueue(request, 1)
    batch = scheduler.take(2)
    assert batch is not None
    assert list(batch.requests) == [request]
    return request


@pytest.mark.parametrize(
    ("id_type", "kind", "largest"),
    [("", int, 1 << 64), ("TYPE_UINT64", int, 1 << 64), ("TYPE_INT32", int, 1 << 31), ("TYPE_STRING", str, 0)],
)
def test_request_without_id_gets_its_own(id_type: str, kind: type, largest: int) -> None:
    # T1
    requests, _ = iterative(id_type)
    one, other = request_of(), request_of(sequence_end=True)
    for request in (one, other):
        requests.begin(request)
        assert (request.header.sequence_start, request.header.sequence_end) == (True, False)
        assert isinstance(request.header.sequence_id, kind)
        assert largest == 0 or 0 < int(request.header.sequence_id) < largest
    assert one.header.sequence_id != other.header.sequence_id


def test_an_id_of_the_client_stays() -> None:
    # T1
    requests, _ = iterative()
    request = request_of(7)
    requests.begin(request)
    assert request.header.sequence_id == 7


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_rescheduled_request_keeps_tensors_without_start_flag(strategy: str) -> None:
    # T2
    requests, scheduler = iterative(strategy=strategy)
    request = begun(requests, scheduler)
    given = request.header
    # What controls and states add while it executes.
    request.data = [b"data", b"control", b"state"]
    assert requests.go_on([], [request], 3) == []
    assert (request.header.sequence_start, request.header.sequence_end) == (False, False)
    assert request.header.sequence_id == given.sequence_id
    assert request.data == [b"data"]
    batch = scheduler.take(4)
    assert batch is not None
    assert list(batch.requests) == [request]


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_slot_is_free_after_the_request(strategy: str) -> None:
    # T3
    requests, scheduler = iterative(strategy=strategy)
    request = begun(requests, scheduler)
    assert scheduler.live_sequence_count == 1
    assert requests.go_on([request], [], 3) == []
    assert scheduler.live_sequence_count == 0


def test_cancelled_request_frees_its_slot() -> None:
    # T5
    requests, scheduler = iterative()
    request = begun(requests, scheduler)
    request.cancelled = True
    ((dropped, error),) = requests.go_on([], [request], 3)
    assert dropped is request
    assert error.code is ErrorCode.CANCELLED
    assert scheduler.live_sequence_count == 0


def test_early_reschedule_waits_for_its_batch() -> None:
    # T2
    requests, scheduler = iterative()
    request = begun(requests, scheduler)
    requests.took(Batch([request], 1))
    assert not requests.may_go_on(request)
    assert requests.completed([request]) == [request]
    assert requests.may_go_on(request)


class Version:
    """The dispatcher of an iterative model whose only runner is the test."""

    def __init__(self, strategy: str) -> None:
        self.scheduler = create_scheduler(config_of(strategy))
        self.runner: Any = SimpleNamespace(index=0, free_ns=0, instance=None)
        self.errors: list[InferError] = []
        statistics = ModelStatistics("m", "1")
        parts: dict[str, Any] = {"statistics": statistics, "response_queue": self}
        self.dispatcher = SequenceDispatcher(
            config=config_of(strategy), scheduler=self.scheduler, loop=StepLoop(), **parts
        )
        self.executor = BatchExecutor(self.dispatcher, is_iterative=True, **parts)

    def hand_over(
        self, requests: Sequence[InferRequest], responses: Sequence[InferResponse], *, on_loop: bool = False
    ) -> None:
        self.errors += [response.error for response in responses if response.error is not None]

    def take(self) -> Batch:
        batch, _ = self.dispatcher.take(self.runner)
        assert batch is not None
        return batch

    def queue(self, *, executions: int) -> InferRequest:
        """Queue a request that has been put back `executions` times."""
        request = request_of()
        self.dispatcher.enqueue(request)
        for _ in range(executions):
            self.dispatcher.note_executed(self.take())
            self.dispatcher.go_on((), [request])
        return request

    def lose_worker(self) -> None:
        batch = self.take()
        error = InstanceDiedError(ErrorCode.UNAVAILABLE, "the worker died before it executed this request")
        error.has_begun = False
        self.executor.fail(batch, error)

    def restart_sequence(self) -> None:
        request = self.take().requests[0]
        self.scheduler.drain()
        self.scheduler.release(request, 1)
        self.dispatcher.go_on((), [request])


DROPS: dict[str, Callable[[Version], object]] = {
    "abort": lambda version: version.dispatcher.abort("the server exits"),
    "stop": lambda version: version.dispatcher.stop(0.0),
    "unhealthy instance": lambda version: version.dispatcher._reject_queued(
        version.scheduler.drain, "it is unhealthy"
    ),
    "dead worker": Version.lose_worker,
}


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
@pytest.mark.parametrize("drop", DROPS.values(), ids=DROPS)
@pytest.mark.parametrize("executions", [0, 1, 2])
def test_dropped_request_says_whether_it_was_executed(
    strategy: str, drop: Callable[[Version], object], executions: int
) -> None:
    version = Version(strategy)
    version.queue(executions=executions)
    drop(version)
    (error,) = version.errors
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.has_begun == (executions > 0)


@pytest.mark.parametrize("executions", [0, 1])
def test_request_that_cannot_go_on_was_executed(executions: int) -> None:
    version = Version("direct")
    version.queue(executions=executions)
    version.restart_sequence()
    (error,) = version.errors
    assert "has ended while it was executed" in error.message
    assert error.has_begun


def test_cancelled_request_that_cannot_go_on_was_executed() -> None:
    version = Version("direct")
    request = version.queue(executions=0)
    version.take()
    request.cancelled = True
    version.dispatcher.go_on((), [request])
    (error,) = version.errors
    assert error.code is ErrorCode.CANCELLED
    assert error.has_begun

"""A served model keeps its promises with each kind of instance runner: one suite for threads and for the loop."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from naiad.backend.api import Instance, InstanceDiedError, RemoteInstance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.serving.execution import loop_runner as instance_on_loop
from naiad.engine.serving.served_model import ServedModel
from naiad.scheduler.factory import create_scheduler
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from support.engine_parts import Answers, ScriptedModel, config, header, request, served_model
from support.waiting import until

Script = Callable[[Batch], Sequence[InferResponse]]


def echo(batch: Batch) -> Sequence[InferResponse]:
    made = ResponseHeader("m", "1", [TensorSpec("OUT", DataType.FP32, (1, 2))])
    return [InferResponse(made, [r.data[0]]) for r in batch.requests]


class Blocking(Instance):
    def __init__(self, script: Script = echo) -> None:
        self.script = script
        self.sizes: list[int] = []
        self.reason = ""

    @property
    def health(self) -> str:
        return self.reason or self.unavailable_reason

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        self.sizes.append(batch.size)
        return self.script(batch)


class Anywhere(Blocking):
    runs_on_any_thread = True


class Remote(RemoteInstance):
    """A worker that is a thread: what it answers arrives through a pipe, one byte a batch."""

    def __init__(self, script: Script = echo) -> None:
        self.script = script
        self.sizes: list[int] = []
        self.reason = ""
        self._readable, self._writable = os.pipe()
        self._batch: Batch | None = None
        self._thread: threading.Thread | None = None
        self.blocked_on_loop = False

    @property
    def health(self) -> str:
        return self.reason or self.unavailable_reason

    def fileno(self) -> int:
        return self._readable

    @property
    def generation(self) -> int:
        return 1

    def begin(self, batch: Batch) -> None:
        self.sizes.append(batch.size)
        self._batch = batch
        self._thread = threading.Thread(target=os.write, args=(self._writable, b"!"))
        self._thread.start()

    def finish(self) -> Sequence[InferResponse] | None:
        assert os.read(self._readable, 1) == b"!"
        batch, self._batch = self._batch, None
        assert batch is not None
        return self.script(batch)

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        self.begin(batch)
        responses = self.finish()
        assert responses is not None
        return responses

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()
        os.close(self._readable)
        os.close(self._writable)


@pytest.fixture(params=[Blocking, Anywhere, Remote])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def run(
    steps: Callable[[ServedModel], Coroutine[Any, Any, None]], instances: Sequence[Instance], **fields: Any
) -> None:
    async def main() -> None:
        model = served_model(instances, asyncio.get_running_loop(), config(**fields))
        try:
            await steps(model)
        finally:
            assert await asyncio.to_thread(model.stop, 10.0)

    asyncio.run(asyncio.wait_for(main(), 60))


def make(answers: Answers, number: object = "", rows: int = 1) -> InferRequest:
    return request(answers, str(number), header(rows), arrival_ns=time.monotonic_ns())


def test_every_request_is_answered_once_and_in_order(kind: Any) -> None:
    answers = Answers()

    async def steps(model: ServedModel) -> None:
        for number in range(300):
            model.submit(make(answers, number))
            if number % 7 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(answers) == 300)

    run(steps, [kind()], dynamic_batching={})
    assert [request_id for request_id, _ in answers.received] == [str(number) for number in range(300)]
    assert all(response.error is None for _, response in answers.received)


# A thread sends a large batch to a worker.
@pytest.mark.parametrize(("blocking", "rows"), [(Blocking, 1), (Anywhere, 1), (Remote, 1 << 18)])
def test_aborted_execution_gets_one_response(blocking: Any, rows: int) -> None:
    answers = Answers()
    begun, opened, ended = threading.Event(), threading.Event(), threading.Event()

    def script(batch: Batch) -> Sequence[InferResponse]:
        begun.set()
        assert opened.wait(30)
        return echo(batch)

    class Held(blocking):  # type: ignore[misc]  # one of the kinds
        def execute(self, batch: Batch) -> Sequence[InferResponse]:
            try:
                return super().execute(batch)  # type: ignore[no-any-return]
            finally:
                ended.set()

    async def steps(model: ServedModel) -> None:
        model.submit(make(answers, rows=rows))
        await asyncio.to_thread(begun.wait, 30)
        model.abort("the server exits")
        assert len(answers) == 1
        opened.set()
        await asyncio.to_thread(ended.wait, 30)
        await asyncio.sleep(0.1)

    run(steps, [Held(script)], max_batch_size=1 << 18)
    assert [response.error is None for _, response in answers.received] == [False]


@pytest.mark.parametrize("blocking", [Blocking, Anywhere])
def test_late_instance_does_not_keep_its_requests(blocking: Any) -> None:
    """An adaptive batcher leaves requests to the instance that executes; another is woken when that is late."""
    answers, is_stuck, is_over = Answers(), threading.Event(), threading.Event()

    def script(batch: Batch) -> Sequence[InferResponse]:
        if any(r.id == "stuck" for r in batch.requests):
            is_stuck.set()
            is_over.wait(60)
        else:
            time.sleep(0.004)
        return echo(batch)

    async def steps(model: ServedModel) -> None:
        for number in range(40):
            model.submit(make(answers, number))
            await until(lambda number=number: len(answers) == number + 1)
        model.submit(make(answers, "stuck"))
        await until(is_stuck.is_set)
        for number in range(20):
            model.submit(make(answers, number))
            await until(lambda number=number: len(answers) == 41 + number)
        assert "stuck" not in [request_id for request_id, _ in answers.received]
        is_over.set()
        await until(lambda: len(answers) == 61)

    adaptive = {"adaptive_batching": {"string_value": "true"}}
    run(steps, [blocking(script), blocking(script)], dynamic_batching={}, parameters=adaptive)


def test_a_delay_gathers_a_batch_and_ends(kind: Any) -> None:
    answers = Answers()
    instance = kind()

    async def steps(model: ServedModel) -> None:
        for number in range(3):
            model.submit(make(answers, number))
            await asyncio.sleep(0.002)
        await until(lambda: len(answers) == 3)
        for number in range(8):
            model.submit(make(answers, number))
        await until(lambda: len(answers) == 11)

    run(steps, [instance], dynamic_batching={"max_queue_delay_microseconds": 500_000})
    assert instance.sizes == [3, 8]


def test_a_failing_batch_fails_alone(kind: Any) -> None:
    answers = Answers()

    def script(batch: Batch) -> Sequence[InferResponse]:
        if batch.requests[0].id == "bad":
            raise InstanceDiedError(ErrorCode.UNAVAILABLE, "m_0 was killed by SIGSEGV")
        return echo(batch)

    async def steps(model: ServedModel) -> None:
        for request_id in ("good", "bad", "good"):
            seen = len(answers)
            model.submit(make(answers, request_id))
            await until(lambda seen=seen: len(answers) > seen)

    run(steps, [kind(script)])
    errors = [response.error for _, response in answers.received]
    assert [error and error.message for error in errors] == [None, "m_0 was killed by SIGSEGV", None]


def test_an_instance_that_falls_ill_and_recovers(kind: Any) -> None:
    answers = Answers()
    instance = kind()

    async def steps(model: ServedModel) -> None:
        model.submit(make(answers))
        await until(lambda: len(answers) == 1)
        instance.reason = "worker restarts"
        assert model.health == "worker restarts"
        model.submit(make(answers))
        await until(lambda: len(answers) == 2)
        instance.reason = ""
        await asyncio.sleep(0.1)
        model.submit(make(answers, "after"))
        await until(lambda: len(answers) == 3)

    run(steps, [instance])
    assert answers.received[-1][0] == "after"
    assert answers.received[-1][1].error is None


def test_two_instances_share_the_queue(kind: Any) -> None:
    answers = Answers()
    instances = [kind(), kind()]

    async def steps(model: ServedModel) -> None:
        for number in range(200):
            model.submit(make(answers, number))
        await until(lambda: len(answers) == 200)

    run(steps, instances)
    assert sum(map(len, (instance.sizes for instance in instances))) == 200


def test_stop_answers_what_was_accepted(kind: Any) -> None:
    answers = Answers()

    async def steps(model: ServedModel) -> None:
        for number in range(50):
            model.submit(make(answers, number))

    run(steps, [kind()])
    assert len(answers) == 50


def test_thread_delivers_a_large_batch() -> None:
    answers = Answers()
    on_loop: list[bool] = []

    def script(batch: Batch) -> Sequence[InferResponse]:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return echo(batch)

    async def steps(model: ServedModel) -> None:
        for width in (2, 1 << 20, 2):
            big = request(answers, str(width), header(width=width), arrival_ns=time.monotonic_ns())
            seen = len(answers)
            model.submit(big)
            await until(lambda seen=seen: len(answers) > seen)

    made = {"max_batch_size": 8, "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}]}

    async def main() -> None:
        wide = ModelConfig(name="m", **made)
        model = ServedModel(
            name="m",
            version=1,
            config=wide,
            backend_model=ScriptedModel(),
            instances=[Remote(script)],
            scheduler=create_scheduler(wide),
            statistics=ModelStatistics("m", "1"),
            loop=asyncio.get_running_loop(),
        )
        await steps(model)
        assert await asyncio.to_thread(model.stop, 10.0)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert on_loop == [True, False, True]


class Held(Remote):
    """Answers when it is released, and notes what it is notified of."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.marked: list[str] = []

    def begin(self, batch: Batch) -> None:
        self._batch = batch
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        assert self.gate.wait(60)
        os.write(self._writable, b"!")

    @property
    def is_busy(self) -> bool:
        return self._batch is not None

    def mark(self, request: InferRequest) -> None:
        self.marked.append(request.id)


def test_one_that_leaves_hears_of_a_cancellation() -> None:
    leaves, stays, answers = Held(), Remote(), Answers()

    async def steps(model: ServedModel) -> None:
        made = make(answers, "a")
        model.submit(made)
        await until(lambda: leaves.is_busy)
        left = model.change_instances([stays], config())
        assert left is not None
        assert not model.cancel(made)
        assert leaves.marked == ["a"]
        leaves.gate.set()
        await until(lambda: len(answers) == 1)
        assert await asyncio.to_thread(left.stop, 60.0)

    run(steps, [leaves])


class Dying(Remote):
    """Has open requests when its process closes its lines; how that has ended is known when the test says so."""

    is_busy = is_silent = False
    looks = 0

    def begin(self, batch: Batch) -> None:
        self.is_busy = True
        super().begin(batch)

    def finish(self) -> Sequence[InferResponse] | None:
        if not self.is_silent:
            return super().finish()
        self.looks += 1
        return None

    def close_lines(self) -> None:
        self.is_silent = True
        os.write(self._writable, b"!")


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_dying_instance_leaves_requests_to_another(adaptive: str) -> None:
    dying, other, answers = Dying(), Remote(), Answers()

    async def steps(model: ServedModel) -> None:
        model.submit(make(answers, 0))
        await until(lambda: len(answers) == 1)
        assert dying.sizes == [1]
        dying.close_lines()
        await until(lambda: dying.looks > 0)
        for number in range(1, 4):
            model.submit(make(answers, number))
            await until(lambda number=number: len(answers) == number + 1)
        assert other.sizes == [1, 1, 1]
        dying.is_busy = dying.is_silent = False

    # The first takes the first request, and is woken first afterwards: it has joined the idle last.
    parameters = {"adaptive_batching": {"string_value": adaptive}}
    run(steps, [dying, other], dynamic_batching={}, parameters=parameters)


def test_temporary_lack_of_files_delays_no_response(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, make_duplicate, left = Answers(), os.dup, [2]

    def fail_at_first(descriptor: int) -> int:
        if left[0]:
            left[0] -= 1
            raise OSError(24, "Too many open files")
        return make_duplicate(descriptor)

    monkeypatch.setattr(instance_on_loop.os, "dup", fail_at_first)

    async def steps(model: ServedModel) -> None:
        for number in range(3):
            model.submit(make(answers, number))
        await until(lambda: len(answers) == 3)

    run(steps, [Remote()])
    assert left == [0]
    assert all(response.error is None for _, response in answers.received)

"""Workers of Ray, whose package is replaced: which part has failed when a worker ends; workers that cannot start."""

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.core.version import __version__
from naiad.tools.predict.distributed.part import JobPart, OpenedModel, PartOutcome, WorkerProblem
from naiad.tools.predict.distributed.ray_pool import MAX_STARTS, RayPool, lost
from naiad.tools.predict.distributed.worker_pool import PartFailedError, WorkerLostError
from naiad.tools.predict.files.input_files import InputFiles
from naiad.tools.predict.files.row_reader import FileSpan
from naiad.tools.predict.files.row_writer import WrittenRows
from naiad.tools.predict.prediction_job import PredictJob
from support.batch_parts import Doubling, metadata

MODEL = OpenedModel(
    metadata(Doubling.inputs, Doubling.outputs)[0],
    metadata(Doubling.inputs, Doubling.outputs)[1].SerializeToString(),
    __version__,
    "here",
)
JOB = PredictJob("models", "m", ["in.csv"], "out.csv", ray="local", workers=1, timeout_s=20)


class ActorDiedError(Exception):
    """As Ray's."""


class FakeRay:
    """Ray with one kind of actor: `opened` are the answers of `open`, `answer` is called with each part."""

    def __init__(self, opened, answer=None) -> None:
        self.opened = list(opened)
        self.answer = answer
        self.killed = 0

    def remote(self, **options):
        return lambda kind: SimpleNamespace(remote=lambda *arguments: FakeActor(self))

    def kill(self, actor) -> None:
        self.killed += 1

    def cluster_resources(self):
        return {"CPU": 4.0}


class FakeActor:
    def __init__(self, ray: FakeRay) -> None:
        self.ray = ray
        self.open = SimpleNamespace(remote=lambda: reference(ray.opened.pop(0) if ray.opened else MODEL))
        self.execute = SimpleNamespace(options=lambda num_returns: SimpleNamespace(remote=self.call))

    def call(self, part: JobPart):
        return self.ray.answer(part)


def reference(value):
    future: Future[object] = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    elif value is not None:
        future.set_result(value)
    return SimpleNamespace(future=lambda: future, answer=future)


def part(row: int) -> JobPart:
    return JobPart(FileSpan(InputFiles(Path("in.csv")), row, row, 10, 1000, row), row)


def done(rows: int = 10):
    return reference(PartOutcome(rows, 0, "", 0.1, 100)), reference(WrittenRows(rows, 0, {"rows.csv": b"x"}))


def in_pool(ray: FakeRay, use, job: PredictJob = JOB):
    async def run():
        pool = RayPool(ray, job, ())
        pool.start()
        try:
            return await asyncio.wait_for(use(pool), 30)
        finally:
            await pool.close()

    return asyncio.run(run())


def test_only_the_part_that_had_begun_has_failed() -> None:
    calls: list[tuple[int, object]] = []

    def answer(each: JobPart):
        if len(calls) < 2:
            calls.append((each.row, reference(None)))
            if len(calls) == 2:  # both parts are with the worker, which ends: the second one hears of it first
                for _, call in reversed(calls):
                    call.answer.set_exception(ActorDiedError("The actor died unexpectedly"))
            return calls[-1][1], reference(None)
        calls.append((each.row, None))
        return done()

    async def use(pool: RayPool):
        first, second = asyncio.ensure_future(pool.execute(part(0))), asyncio.ensure_future(pool.execute(part(10)))
        with pytest.raises(WorkerLostError, match="the worker has ended: The actor died unexpectedly"):
            await first
        return await (await second).fetch()

    ray = FakeRay([], answer)
    assert in_pool(ray, use) == WrittenRows(10, 0, {"rows.csv": b"x"})
    assert [row for row, _ in calls] == [0, 10, 10]
    assert ray.killed == 2


def test_a_worker_survives_the_problem_of_a_part() -> None:
    problems = {
        0: WorkerProblem("the disk is broken"),
        10: WorkerProblem("the server is away", ErrorCode.UNAVAILABLE),
    }

    def answer(each: JobPart):
        return (reference(problems[each.row]), reference(None)) if each.row in problems else done()

    async def use(pool: RayPool):
        with pytest.raises(PartFailedError, match="the disk is broken"):
            await pool.execute(part(0))
        with pytest.raises(InferError, match="the server is away"):
            await pool.execute(part(10))
        assert pool.workers == 1
        return (await pool.execute(part(20))).outcome.rows

    assert in_pool(FakeRay([], answer), use) == 10


def test_rows_that_are_gone_are_a_lost_worker() -> None:
    async def use(pool: RayPool):
        executed = await pool.execute(part(0))
        with pytest.raises(WorkerLostError, match="the node has died"):
            await executed.fetch()

    answer = (reference(PartOutcome(10, 0, "", 0.1, 100)), reference(RuntimeError("the node has died")))
    in_pool(FakeRay([], lambda each: answer), use)


@pytest.mark.parametrize(
    ("opened", "reason"),
    [
        ([WorkerProblem("backend 'onnx' needs onnxruntime (worker on h1)", ErrorCode.UNSUPPORTED)], "worker on h1"),
        ([RuntimeError("x\nModuleNotFoundError: No module named 'naiad'\n")], "have no naiad"),
        ([replace(MODEL, version="0.0.1")], f"has naiad 0.0.1, and this process {__version__}"),
        ([ActorDiedError("gone")] * MAX_STARTS, f"has ended {MAX_STARTS} times before its model was loaded"),
    ],
)
def test_workers_that_cannot_start_end_the_job(opened, reason: str) -> None:
    with pytest.raises(InferError) as caught:
        in_pool(FakeRay(opened), lambda pool: pool.model())
    assert reason in caught.value.message


def test_a_worker_with_another_model_ends_the_job() -> None:
    async def use(pool: RayPool):
        await pool.model()
        return await pool.execute(part(0))

    other = replace(MODEL, config=b"", host="there")
    with pytest.raises(InferError, match="of the worker on there is another one than on here"):
        in_pool(FakeRay([MODEL, other], lambda each: (reference(None), None)), use, replace(JOB, workers=2))


def test_a_worker_that_ended_once_is_replaced() -> None:
    async def use(pool: RayPool):
        config = await pool.config()
        return config.name, (await pool.metadata()).name

    ray = FakeRay([ActorDiedError("gone"), MODEL])
    assert in_pool(ray, use) == ("m", "m")


def test_without_resources_the_wait_ends() -> None:
    class Pending(FakeRay):
        def remote(self, **options):
            actor = SimpleNamespace(open=SimpleNamespace(remote=lambda: reference(None)))
            return lambda kind: SimpleNamespace(remote=lambda *arguments: actor)

    with pytest.raises(InferError) as caught:
        in_pool(Pending([]), lambda pool: pool.model(), replace(JOB, worker_gpus=1, timeout_s=0.01))
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert "a worker needs 1 CPU and 1 GPU, and ray 'local' has 4 CPU, 0 GPU in all" in caught.value.message


@pytest.mark.parametrize(
    ("fields", "workers"), [({}, 4), ({"worker_cpus": 2}, 2), ({"worker_gpus": 1}, 1), ({"worker_cpus": 0}, 1)]
)
def test_workers_are_as_many_as_resources(fields, workers: int) -> None:
    async def use(pool: RayPool):
        return pool.max_parts

    found = in_pool(FakeRay([]), use, replace(JOB, workers=0, **fields))
    assert found == 4 * workers


def test_errors_of_ray_are_one_line() -> None:
    text = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: PartWorker\n\tpid: 17\n"
        "The actor is dead because its worker process has died."
    )
    error = lost(ActorDiedError(text))
    assert str(error) == "the worker has ended: The actor is dead because its worker process has died."


class LostRay(FakeRay):
    """Ray whose connection is lost when a worker has taken a part, or before there is a worker."""

    def __init__(self, *, has_actors: bool) -> None:
        super().__init__([], self._lose)
        self.has_actors = has_actors

    def _lose(self, *parts: object):
        raise ConnectionError("Client is shutting down.\n")

    def remote(self, **options):
        make = super().remote(**options)
        return make if self.has_actors else lambda kind: SimpleNamespace(remote=self._lose)


@pytest.mark.parametrize("has_actors", [False, True])
def test_a_lost_connection_ends_the_job(*, has_actors: bool) -> None:
    async def use(pool: RayPool):
        await pool.model()
        await pool.execute(part(0))

    with pytest.raises(InferError, match="ray 'local' cannot be used any more: Client is shutting down") as caught:
        in_pool(LostRay(has_actors=has_actors), use)
    assert caught.value.code is ErrorCode.UNAVAILABLE

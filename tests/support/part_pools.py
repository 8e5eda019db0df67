"""Workers of a job in parts without a cluster: they execute in this process, and fail when a test wants it."""

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from naiad.tools.predict import prediction
from naiad.tools.predict.distributed import part_worker
from naiad.tools.predict.distributed.part import JobPart, OpenedModel, PartOutcome, WorkerProblem
from naiad.tools.predict.distributed.part_worker import PartWorker
from naiad.tools.predict.distributed.worker_pool import WorkerLostError, WorkerPool, raise_problem
from naiad.tools.predict.files.row_writer import WrittenRows
from naiad.tools.predict.prediction_job import PredictJob
from support.batch_parts import Doubling, open_here, served

Trouble = Callable[[str, JobPart], None]
"""Called with `execute` or `fetch` before each; raises what goes wrong."""


class ProcessPool(WorkerPool):
    """Workers of this process; what they get and return is pickled, as between processes."""

    def __init__(self, job: PredictJob, keys: Sequence[str], trouble: Trouble) -> None:
        self.job = job
        self.keys = keys
        self.trouble = trouble
        self.free: asyncio.Queue[PartWorker] = asyncio.Queue()
        self.executed: list[JobPart] = []
        self._model: OpenedModel

    async def start(self) -> None:
        for _ in range(self.workers):
            worker = PartWorker(*pickle.loads(pickle.dumps((self.job, "/", self.keys))))
            model = pickle.loads(pickle.dumps(await worker.open()))
            assert isinstance(model, OpenedModel), model
            self._model = model
            self.free.put_nowait(worker)

    @property
    def workers(self) -> int:
        return self.job.workers

    @property
    def max_parts(self) -> int:
        return 2 * self.job.workers

    async def model(self) -> OpenedModel:
        return self._model

    async def execute(self, part: JobPart) -> "Executed":
        worker = await self.free.get()
        try:
            self.executed.append(part)
            self.trouble("execute", part)
            outcome, written = pickle.loads(pickle.dumps(await worker.execute(pickle.loads(pickle.dumps(part)))))
        finally:
            self.free.put_nowait(worker)
        if isinstance(outcome, WorkerProblem):
            raise_problem(outcome)
        return Executed(self, part, outcome, written)


class Executed:
    def __init__(self, pool: ProcessPool, part: JobPart, outcome: PartOutcome, written: WrittenRows) -> None:
        self.pool, self.part, self.outcome, self.written = pool, part, outcome, written

    async def fetch(self) -> WrittenRows:
        self.pool.trouble("fetch", self.part)
        return self.written


class Losses:
    """Loses workers, a number of times for each call of each part."""

    def __init__(self, times: int, call: str = "execute") -> None:
        self.times = times
        self.call = call
        self.lost: dict[int, int] = {}

    def __call__(self, call: str, part: JobPart) -> None:
        count = self.lost.get(part.row, 0)
        if call == self.call and count < self.times:
            self.lost[part.row] = count + 1
            raise WorkerLostError("the worker has ended")


def no_trouble(call: str, part: JobPart) -> None:
    """All calls succeed."""


@contextlib.contextmanager
def distributed(model: Doubling, trouble: Trouble = no_trouble) -> Any:
    """Have jobs use workers of this process, and a model of this process; yield their pools."""
    pools: list[ProcessPool] = []

    @contextlib.asynccontextmanager
    async def open_pool(job: PredictJob, keys: Sequence[str]) -> AsyncIterator[ProcessPool]:
        pools.append(ProcessPool(job, keys, trouble))
        await pools[-1].start()
        yield pools[-1]

    with served(model), pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction, "open_ray_pool", open_pool)
        patch.setattr(part_worker, "open_endpoint", open_here(model))
        patch.setattr(part_worker.os, "chdir", lambda folder: None)
        yield pools

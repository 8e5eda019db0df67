"""Workers of a job that are actors of a Ray cluster.

Theory of operation. A task for each wanted worker keeps one actor: it makes the actor, waits until the model is
loaded, takes parts from the queue, and makes another actor when this one has ended. An actor that finds no free CPU
or GPU stays pending, which Ray's autoscaler answers with a machine; the job runs with the ready ones meanwhile.

An actor has two parts at a time, of which it executes the first; the second one waits in its process, so that it is
not idle between two. When it ends, the first part has failed, and the second one returns to the queue. Rows stay in
Ray's object store, on the machine that made them, until it is their turn to be written.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from naiad.core.errors import ErrorCode, InferError, excerpt, invalid_argument, unavailable, unsupported
from naiad.core.version import __version__
from naiad.tools.predict.distributed.part import JobPart, OpenedModel, PartOutcome, WorkerProblem
from naiad.tools.predict.distributed.part_worker import PartWorker
from naiad.tools.predict.distributed.ray_connection import connect
from naiad.tools.predict.distributed.worker_pool import PartFailedError, WorkerLostError, WorkerPool, raise_problem
from naiad.tools.predict.files.row_writer import WrittenRows
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.row_flow import first_error, in_thread
from naiad.tools.predict.stored_output.segment import Segment

_PARTS_PER_WORKER = 2
_PARTS_AHEAD = 4
"""Parts for each worker that may be executed and not written."""
MAX_STARTS = 5
"""Of one worker that ends, each time, before its model is loaded."""
_ERROR_LINE = re.compile(r"^(\w+Error: .*)$", re.MULTILINE)


@contextlib.asynccontextmanager
async def open_ray_pool(job: PredictJob, keys: Sequence[str]) -> AsyncIterator["RayPool"]:
    """Connect to the Ray of a job, and start its workers, for the block. Raises InferError."""
    connection = await in_thread(connect, job.ray)
    try:
        pool = RayPool(connection.ray, job, keys)
        try:
            pool.start()
            yield pool
        finally:
            await pool.close()
    finally:
        await in_thread(connection.close)


class RayPool(WorkerPool):
    """The actors of one job, for one event loop."""

    def __init__(self, ray: Any, job: PredictJob, keys: Sequence[str]) -> None:
        """`ray` is the package, connected; `keys` are the columns that the output repeats."""
        self._ray = ray
        self._job = job
        self._actor_class = ray.remote(
            num_cpus=job.worker_cpus,
            num_gpus=job.worker_gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=1,
        )(PartWorker)
        self._arguments = (job, os.getcwd(), keys)
        self._wanted = job.workers or _wanted(ray.cluster_resources(), job)
        self._workers = 0
        self._first: asyncio.Future[OpenedModel] = asyncio.get_running_loop().create_future()
        self._failure: InferError | None = None
        """What has ended all workers."""
        self._queue: asyncio.PriorityQueue[_Work] = asyncio.PriorityQueue()
        """The first rows first: later ones wait for them."""
        self._outstanding: set[_Work] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Make the workers."""
        self._tasks = [asyncio.create_task(self._keep_worker()) for _ in range(self._wanted)]

    async def close(self) -> None:
        """End the workers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._first.done():
            self._first.exception()  # it was raised where it was waited for

    @property
    def workers(self) -> int:
        """Those that have loaded the model."""
        return self._workers

    @property
    def max_parts(self) -> int:
        """Parts that may be executed and not written."""
        return _PARTS_AHEAD * self._wanted

    async def model(self) -> OpenedModel:
        """Wait for the first worker, for the timeout of the job."""
        try:
            async with asyncio.timeout(self._job.timeout_s):
                return await asyncio.shield(self._first)
        except TimeoutError:
            job = self._job
            resources = self._ray.cluster_resources()
            has = ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
            raise unavailable(
                f"no worker has started within {job.timeout_s:g} s; a worker needs {job.worker_cpus:g} CPU and "
                f"{job.worker_gpus:g} GPU, and ray '{job.ray}' has {has} in all"
            ) from None

    async def execute(self, part: JobPart) -> "_RayPart":
        """Execute a part when a worker is free."""
        if self._failure is not None:
            raise self._failure
        work = _Work(part)
        self._outstanding.add(work)
        self._queue.put_nowait(work)
        try:
            return await work.answer
        finally:
            self._outstanding.discard(work)

    async def _keep_worker(self) -> None:
        """Have one worker until this is cancelled, or the job has ended."""
        try:
            await self._restart_worker()
        except InferError as error:
            self._fail(error)
        except Exception as error:  # calls of Ray raise many kinds when its connection is lost
            reason = first_error(error) if isinstance(error, BaseExceptionGroup) else error
            text = " ".join(str(reason).split()) or type(reason).__name__
            self._fail(unavailable(f"ray '{self._job.ray}' cannot be used any more: {excerpt(text)}"))

    async def _restart_worker(self) -> None:
        """Have one worker, and another one when it ends. Raises InferError, and what calls of Ray raise."""
        starts = 0
        while True:
            worker = _Worker(self._ray, self._actor_class.remote(*self._arguments))
            try:
                self._check(await worker.open())
                starts = 0
                await self._serve(worker)
            except WorkerLostError as error:
                starts += 1
                if starts == MAX_STARTS:
                    text = f"a worker has ended {starts} times before its model was loaded: {error}"
                    raise unavailable(text) from None
            finally:
                worker.kill()

    def _check(self, model: OpenedModel) -> None:
        """Note the model of the first worker. Raises InferError if that of another one differs."""
        if model.version != __version__:
            raise invalid_argument(
                f"the worker on {model.host} has naiad {model.version}, and this process {__version__}; install the "
                "same one"
            )
        if not self._first.done():
            self._first.set_result(model)
        first = self._first.result()
        if (model.metadata, model.config) != (first.metadata, first.config):
            raise invalid_argument(
                f"model '{self._job.model}' of the worker on {model.host} is another one than on {first.host}; all "
                "machines need the same repository"
            )

    def _fail(self, error: InferError) -> None:
        """End the job: parts get the error, also in later calls."""
        self._failure = self._failure or error
        if not self._first.done():
            self._first.set_exception(error)
        for work in self._outstanding:
            work.fail(error)

    async def _serve(self, worker: "_Worker") -> None:
        """Have a worker execute parts until it ends."""
        self._workers += 1
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(_PARTS_PER_WORKER):
                    tasks.create_task(self._feed(worker))
        except* WorkerLostError:
            pass  # its parts have been returned
        finally:
            self._workers -= 1

    async def _feed(self, worker: "_Worker") -> None:
        """Have a worker execute one part after the other. Raises WorkerLostError when it has ended."""
        while True:
            work = await self._queue.get()
            if work.answer.done():
                continue
            worker.parts.append(work)
            try:
                executed = await worker.execute(work.part)
            except (WorkerLostError, asyncio.CancelledError) as error:
                # The parts stay listed: the other one, which had not begun, must not become the first.
                if worker.parts[0] is work:
                    work.fail(
                        error if isinstance(error, WorkerLostError) else WorkerLostError("the worker has ended")
                    )
                else:
                    self._queue.put_nowait(work)
                raise
            except (PartFailedError, InferError) as error:
                work.fail(error)
            else:
                if not work.answer.done():
                    work.answer.set_result(executed)
            worker.parts.remove(work)


class _Work:
    """A part that waits for its answer. The order of works is that of their rows."""

    def __init__(self, part: JobPart) -> None:
        self.part = part
        self.answer: asyncio.Future[_RayPart] = asyncio.get_running_loop().create_future()

    def __lt__(self, other: "_Work") -> bool:
        return self.part.row < other.part.row

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        if not self.answer.done():
            self.answer.set_exception(error)


class _RayPart:
    """A part whose rows are in Ray's object store."""

    def __init__(self, ray: Any, outcome: PartOutcome, rows: Any) -> None:
        self._ray = ray
        self._rows = rows
        self.outcome = outcome

    async def fetch(self) -> WrittenRows | Segment:
        """Return the rows, or where they are. Raises WorkerLostError if their machine is gone."""
        written: WrittenRows | Segment = await _value(self._ray, self._rows)
        return written


class _Worker:
    """One actor. Calls raise WorkerLostError when it has ended."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor
        self.parts: list[_Work] = []
        """Those it has, in order: it executes the first one."""

    async def open(self) -> OpenedModel:
        """Wait until it has loaded the model. Raises InferError if the model does not load."""
        opened = await _value(self._ray, self._actor.open.remote())
        if isinstance(opened, WorkerProblem):
            raise InferError(opened.code or ErrorCode.UNAVAILABLE, opened.message)
        model: OpenedModel = opened
        return model

    async def execute(self, part: JobPart) -> _RayPart:
        """Execute a part. Raises PartFailedError, and InferError for an error that ends the job."""
        answer, rows = self._actor.execute.options(num_returns=2).remote(part)
        outcome = await _value(self._ray, answer)
        if isinstance(outcome, WorkerProblem):
            raise_problem(outcome)
        return _RayPart(self._ray, outcome, rows)

    def kill(self) -> None:
        """End it at once: what it does is not needed."""
        with contextlib.suppress(Exception):  # Ray itself may have ended
            self._ray.kill(self._actor)


async def _value(ray: Any, reference: Any) -> Any:
    """Return what a call has returned. Raises WorkerLostError, and InferError if the workers lack naiad."""
    try:
        return await asyncio.wrap_future(reference.future())
    except Exception as error:  # each kind of error of Ray: its calls raise none of their own
        raise lost(error) from None


def lost(error: Exception) -> WorkerLostError | InferError:
    """Return the error for what Ray raises in place of an answer."""
    text = str(error)
    errors = _ERROR_LINE.findall(text)
    if any("No module named 'naiad" in each for each in errors):
        return unsupported(
            f"the workers of Ray have no naiad: {errors[-1]}; install naiad {__version__} there, with the packages "
            "of the model"
        )
    if errors:
        return WorkerLostError(excerpt(errors[-1]))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    return WorkerLostError(excerpt(f"the worker has ended: {' '.join(lines[1:] or lines)}"))


def _wanted(resources: Mapping[str, float], job: PredictJob) -> int:
    """Return how many workers a cluster has resources for, at least one."""
    counts = [
        int(resources.get(name, 0) / need)
        for name, need in (("CPU", job.worker_cpus), ("GPU", job.worker_gpus))
        if need
    ]
    return max(1, min(counts, default=1))

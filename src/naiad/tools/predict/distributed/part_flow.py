"""The flow of a job in parts: plan them, have workers execute them, and append their rows in order.

Theory of operation. Only this process writes: parts that have been executed are appended to the output in the order
of the input, and the checkpoint of a local run records them. So a part may be executed any number of times, by
workers that are killed or that are only believed to be gone, and its rows are in the output once. A killed job
repeats at most the parts that were executed and not appended, and a run without workers may continue it. Where the
output is in an object store, workers store the rows of their parts there, and this process appends their names.

A part whose worker ends, or that fails otherwise, is executed again. After `MAX_TRIES` its rows have failed, with the
reason, and the job goes on.
"""

import asyncio
import logging
from collections.abc import Sequence

from naiad.tools.predict.distributed.part import JobPart, PartSize
from naiad.tools.predict.distributed.worker_pool import ExecutedPart, PartFailedError, WorkerPool
from naiad.tools.predict.files.row_reader import Reader
from naiad.tools.predict.job_output import RowOutput
from naiad.tools.predict.row_flow import RowCount, in_thread
from naiad.tools.predict.rows.chunk import Chunk
from naiad.tools.predict.sources.folder import FILE_KEY

_log = logging.getLogger(__name__)

MAX_TRIES = 3
"""Of a part."""


class PartFlow:
    """Moves all rows of a reader to an output, once."""

    def __init__(
        self,
        reader: Reader,
        pool: WorkerPool,
        output: RowOutput,
        count: RowCount,
        rows_per_request: int,
        keys: Sequence[str],
    ) -> None:
        """`keys` are the columns that the output repeats."""
        self._reader = reader
        self._pool = pool
        self._output = output
        self._count = count
        self._keys = keys
        self._size = PartSize(rows_per_request)
        self._room = asyncio.Semaphore(pool.max_parts)
        self._queue: asyncio.Queue[_Planned | None] = asyncio.Queue()

    async def run(self) -> None:
        """Return when all rows are written. Raises an exception group of InferError and OSError."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._plan(tasks))
            tasks.create_task(self._write())

    async def _plan(self, tasks: asyncio.TaskGroup) -> None:
        row = self._output.rows
        while True:
            await self._room.acquire()
            span = await in_thread(self._reader.pass_over, self._size.rows)
            if span is None:
                break
            planned = _Planned(JobPart(span, row, self._output.segments))
            row += span.count
            planned.task = tasks.create_task(self._execute(planned))
            self._queue.put_nowait(planned)
        self._queue.put_nowait(None)

    async def _write(self) -> None:
        while (planned := await self._queue.get()) is not None:
            rows, reasons = await self._append(planned)
            await self._count.add(rows, reasons, planned.part.span.done_bytes)
            self._room.release()

    async def _append(self, planned: "_Planned") -> tuple[int, list[str]]:
        """Write the rows of a part; return their number and the reasons of those that failed."""
        executed = await planned.task
        while executed is not None:
            try:
                written = await executed.fetch()
            except PartFailedError as error:
                planned.fail(error)
                executed = await self._execute(planned)
                continue
            outcome = executed.outcome
            await in_thread(self._output.extend, written)
            return outcome.rows, [outcome.last_reason] * outcome.failed_rows
        _log.warning("%s", planned.reason)
        _, reasons = await in_thread(self._output.append, failed_chunk(planned.part, planned.reason, self._keys))
        return planned.part.span.count, reasons

    async def _execute(self, planned: "_Planned") -> ExecutedPart | None:
        """Execute a part, again when it fails; None after the last try."""
        while planned.tries < MAX_TRIES:
            try:
                executed = await self._pool.execute(planned.part)
            except PartFailedError as error:
                planned.fail(error)
                continue
            self._size.learn(executed.outcome)
            return executed
        return None


class _Planned:
    """A part, and how often it has failed."""

    def __init__(self, part: JobPart) -> None:
        self.part = part
        self.tries = 0
        self.reason = ""
        self.task: asyncio.Task[ExecutedPart | None]

    def fail(self, error: PartFailedError) -> None:
        """Count a try that failed."""
        self.tries += 1
        span = self.part.span
        where = f"rows {span.first} to {span.first + span.count - 1} of {span.files.path.name}"
        self.reason = f"{where}: {error}; set aside after {self.tries} tries"


def failed_chunk(part: JobPart, reason: str, keys: Sequence[str]) -> Chunk:
    """Return the rows of a part as failed ones. Their keys are unknown: nothing could read them."""
    span = part.span
    values: dict[str, list[str | None]] = {key: [None] * span.count for key in keys}
    if span.files.rows:
        values[FILE_KEY] = [file.name for file in span.files.rows]
    file = str(span.files.path) if span.files.rows else span.files.path.name
    failures = dict.fromkeys(range(span.count), reason)
    return Chunk(file, span.first, span.count, values, [], failures, files_are_rows=bool(span.files.rows))

"""The flow of rows: read, execute and write at the same time, each in order.

The reader and the writer work in threads, the requests on the event loop between them. A chunk enters the queue of
the writer when its requests have been sent. Requests at the same time are limited, and with them the chunks.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from naiad.tools.predict.files.row_reader import Reader
from naiad.tools.predict.job_output import Output
from naiad.tools.predict.pace import ChunkSize, FailureLimit, Pace
from naiad.tools.predict.prediction_job import JobProgress
from naiad.tools.predict.row_requests import ChunkRequests

if TYPE_CHECKING:
    from naiad.tools.predict.rows.chunk import Chunk

CHECKPOINT_S = 1.0
"""Between checkpoints: what a killed run repeats."""
_FIRST_CHECKPOINT_S = 0.1
"""Between the first ones; doubled each time."""
_PROGRESS_S = 0.2
_T = TypeVar("_T")

OnProgress: TypeAlias = Callable[[JobProgress], None]


class Pipeline:
    """Moves all rows of a reader to an output, once."""

    def __init__(
        self, reader: Reader, requests: ChunkRequests, output: Output, limit: FailureLimit, on_progress: OnProgress
    ) -> None:
        self._reader = reader
        self._requests = requests
        self._output = output
        self._limit = limit
        self._on_progress = on_progress
        signature = requests.signature
        self._size = ChunkSize(signature.max_rows, signature.concurrency)
        self._pace = Pace(reader.total_bytes, output.rows, output.failed_rows)
        self._queue: asyncio.Queue[tuple[Chunk, list[asyncio.Task[None]]] | None]
        self._queue = asyncio.Queue(signature.concurrency + 1)

    async def run(self) -> None:
        """Return when all rows are written. Raises an exception group of InferError and OSError."""
        self._pace.begin(time.monotonic(), self._reader.done_bytes)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send(tasks))
            tasks.create_task(self._write())

    async def _send(self, tasks: asyncio.TaskGroup) -> None:
        size = self._size
        ahead = tasks.create_task(in_thread(self._reader.read, size.rows, size.max_bytes))
        while (chunk := await ahead) is not None:
            ahead = tasks.create_task(in_thread(self._reader.read, size.rows, size.max_bytes))
            started = await self._requests.start(chunk, tasks)
            await self._queue.put((chunk, started))
        await self._queue.put(None)

    async def _write(self) -> None:
        # The first rows are recorded at once: a run that is killed again and again after a resume makes progress.
        recorded_s, interval_s = -CHECKPOINT_S, _FIRST_CHECKPOINT_S
        shown_s = time.monotonic()
        while (item := await self._queue.get()) is not None:
            chunk, started = item
            if started:
                await asyncio.wait(started)
                for task in started:
                    task.result()
            size_bytes, reasons = await in_thread(self._output.append, chunk)
            self._size.learn(chunk.count, size_bytes + chunk.input_bytes)
            self._limit.count(chunk.count - len(reasons), reasons)
            now_s = time.monotonic()
            self._pace.add(now_s, chunk.count, len(reasons), chunk.done_bytes)
            if now_s - recorded_s >= interval_s:
                if recorded_s > 0:
                    interval_s = min(2 * interval_s, CHECKPOINT_S)
                await in_thread(self._output.record)
                recorded_s = time.monotonic()
            if now_s - shown_s >= _PROGRESS_S:
                self._on_progress(self._pace.progress("predict"))
                shown_s = now_s
        self._on_progress(self._pace.progress("predict"))


async def in_thread(function: Callable[..., _T], *arguments: object) -> _T:
    """Run a function in a thread, and wait for its end also when this is cancelled: it uses files of the caller."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise

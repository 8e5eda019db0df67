"""The flow of rows: read, execute and write at the same time, each in order.

The reader and the writer work in threads, the requests on the event loop between them. A chunk enters the queue of
the writer when its requests have been sent. Requests at the same time are limited, and with them the chunks.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from naiad.tools.predict.job_output import RowOutput
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
_MAX_REASONS = 5
_T = TypeVar("_T")

OnProgress: TypeAlias = Callable[[JobProgress], None]


class ChunkReader(Protocol):
    """Where rows come from. Methods raise OSError and InferError."""

    def read(self, max_rows: int, max_bytes: int) -> "Chunk | None":
        """Return the next rows; None at the end."""


class ChunkWriter(Protocol):
    """Where rows go to. Methods raise OSError."""

    def append(self, chunk: "Chunk") -> tuple[int, list[str]]:
        """Write a chunk whose requests have ended; return the bytes of its outputs and the reasons of failures."""


class RowCount(Protocol):
    """What is done about rows after they are written."""

    async def add(self, rows: int, reasons: Sequence[str], done_bytes: int) -> None:
        """Count rows, with the reasons of those that failed, and the bytes of the input up to their end.

        Raises InferError to end the flow.
        """


class RecordedRows:
    """Counts the rows of an output: checkpoints, the limit of failed rows, and progress."""

    def __init__(self, output: RowOutput, limit: FailureLimit, pace: Pace, on_progress: OnProgress) -> None:
        self.reasons: dict[str, int] = {}
        """Reasons of failed rows, and how many rows have them, for the first few reasons."""
        self._output = output
        self._limit = limit
        self._pace = pace
        self._on_progress = on_progress
        # The first rows are recorded at once: a run that is killed again and again after a resume makes progress.
        self._longest_s = CHECKPOINT_S if output.checkpoint_s is None else output.checkpoint_s
        self._recorded_s, self._interval_s = -self._longest_s, _FIRST_CHECKPOINT_S
        self._shown_s = time.monotonic()

    async def add(self, rows: int, reasons: Sequence[str], done_bytes: int) -> None:
        """Count rows that are written. Raises InferError when too many have failed, and OSError."""
        for reason in reasons:
            if reason in self.reasons or len(self.reasons) < _MAX_REASONS:
                self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self._limit.count(rows - len(reasons), reasons)
        now_s = time.monotonic()
        self._pace.add(now_s, rows, len(reasons), done_bytes)
        if now_s - self._recorded_s >= self._interval_s or self._output.is_full:
            if self._recorded_s > 0:
                self._interval_s = min(2 * self._interval_s, self._longest_s)
            await in_thread(self._output.record)
            self._recorded_s = time.monotonic()
        if now_s - self._shown_s >= _PROGRESS_S:
            self.show()
            self._shown_s = now_s

    def show(self) -> None:
        """Report the progress."""
        self._on_progress(self._pace.progress("predict"))


class Pipeline:
    """Moves all rows of a reader to a writer, once."""

    def __init__(self, reader: ChunkReader, requests: ChunkRequests, writer: ChunkWriter, count: RowCount) -> None:
        self._reader = reader
        self._requests = requests
        self._writer = writer
        self._count = count
        signature = requests.signature
        self._size = ChunkSize(signature.max_rows, signature.concurrency)
        self._queue: asyncio.Queue[tuple[Chunk, list[asyncio.Task[None]]] | None]
        self._queue = asyncio.Queue(signature.concurrency + 1)

    async def run(self) -> None:
        """Return when all rows are written. Raises an exception group of InferError and OSError."""
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
        while (item := await self._queue.get()) is not None:
            chunk, started = item
            if started:
                await asyncio.wait(started)
                for task in started:
                    task.result()
            size_bytes, reasons = await in_thread(self._writer.append, chunk)
            self._size.learn(chunk.count, size_bytes + chunk.input_bytes)
            await self._count.add(chunk.count, reasons, chunk.done_bytes)


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that ended a group of tasks."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


async def in_thread(function: Callable[..., _T], *arguments: object) -> _T:
    """Run a function in a thread, and wait for its end also when this is cancelled: it uses files of the caller."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise

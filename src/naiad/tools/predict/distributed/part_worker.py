"""What executes parts: one model and one signature, in a process that has no other work.

A worker reads the rows of a part itself, executes them as a local run does, and returns what a local run would have
added to its files. It writes no file that outlives a part, so a part that is executed twice leaves nothing behind.
Where the output is in an object store, it stores that as a segment instead, of which the output takes one.
"""

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from naiad.core.errors import InferError, invalid_argument
from naiad.core.version import __version__
from naiad.files.temporary import own_directory, remove_abandoned
from naiad.repository.cloud.objects.stored_object import StoreError
from naiad.tools.predict.distributed.part import JobPart, OpenedModel, PartOutcome, WorkerProblem
from naiad.tools.predict.files.input_files import open_source
from naiad.tools.predict.files.row_writer import RowWriter, WrittenRows
from naiad.tools.predict.job_signature import RowSignature, read_signature
from naiad.tools.predict.model_host import ModelEndpoint, open_endpoint
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.row_flow import Pipeline, first_error, in_thread
from naiad.tools.predict.row_requests import ChunkRequests
from naiad.tools.predict.rows.chunk import Chunk
from naiad.tools.predict.rows.row_tensors import to_chunk
from naiad.tools.predict.sinks.sink import Layout
from naiad.tools.predict.stored_output.segment import Segment


class PartWorker:
    """Executes parts of one job, one after the other, on one event loop.

    Its methods return errors instead of raising them: errors of other processes arrive in many disguises.
    """

    def __init__(self, job: PredictJob, folder: str, keys: Sequence[str]) -> None:
        """`folder` is where the job was started: relative paths begin there. `keys` are the columns to repeat."""
        self._job = job
        self._folder = folder
        self._keys = keys
        self._stack = contextlib.AsyncExitStack()
        self._endpoint: ModelEndpoint
        self._signature: RowSignature

    async def open(self) -> OpenedModel | WorkerProblem:
        """Load the model, or connect to its server."""
        try:
            remove_abandoned()
            _enter(self._folder, self._job)
            self._endpoint = await self._stack.enter_async_context(open_endpoint(self._job))
            metadata, config = await self._endpoint.metadata(), await self._endpoint.config()
            self._signature = read_signature(self._job, metadata, config)
        except Exception as error:  # of any kind: it is the answer
            return _problem(error)
        # In the order of its names: workers compare it, and maps have another order in each process.
        return OpenedModel(metadata, config.SerializeToString(deterministic=True), __version__, socket.gethostname())

    async def execute(self, part: JobPart) -> tuple[PartOutcome | WorkerProblem, WrittenRows | Segment | None]:
        """Execute a part; return what came of it, and its rows, or where they are."""
        try:
            with own_directory("part") as folder:
                return await self._execute(part, folder)
        except BaseExceptionGroup as group:
            return _problem(first_error(group)), None
        except Exception as error:
            return _problem(error), None

    async def close(self) -> None:
        """Unload the model."""
        await self._stack.aclose()

    async def _execute(self, part: JobPart, folder: Path) -> tuple[PartOutcome, WrittenRows | Segment]:
        begin_s = time.monotonic()
        layout = Layout(self._keys, self._signature.outputs)
        reader = _PartReader(part, self._job, self._signature)
        try:
            writer = _PartWriter(RowWriter(self._job.output, folder, {}, layout, part.row))
            try:
                requests = ChunkRequests(self._endpoint, self._signature, self._job.timeout_s)
                await Pipeline(reader, requests, writer, writer).run()
                written = writer.writer.written()
            finally:
                writer.writer.close()
        finally:
            reader.close()
        rows: WrittenRows | Segment = written
        if part.segments is not None:
            rows = await in_thread(part.segments.put, part.row, written)
        seconds = time.monotonic() - begin_s
        outcome = PartOutcome(written.rows, written.failed_rows, writer.last_reason, seconds, writer.size_bytes)
        return outcome, rows


class _PartReader:
    """The rows of one part."""

    def __init__(self, part: JobPart, job: PredictJob, signature: RowSignature) -> None:
        """Raises InferError and OSError, also if the file of this machine is another one than that of the job."""
        span = part.span
        self._left = span.count
        self._signature = signature
        self._source = open_source(span.files, job, signature)
        if not span.files.rows and self._source.total_bytes != span.file_bytes:
            self._source.close()
            raise invalid_argument(
                f"{span.files.path} has {self._source.total_bytes:,} bytes, and {span.file_bytes:,} on the machine "
                "where the job was started; all machines need the same files"
            )
        if not span.files.rows:
            self._source.seek(span.position, span.first)

    def read(self, max_rows: int, max_bytes: int) -> Chunk | None:
        """Return the next rows; None at the end of the part."""
        if not self._left:
            return None
        rows = self._source.read(min(max_rows, self._left), max_bytes)
        if rows is None:
            raise invalid_argument(f"{self._source.path} ends {self._left:,} rows too early; it has changed")
        self._left -= rows.count
        return to_chunk(rows, self._signature.inputs, self._signature.pictures, self._source.path.parent)

    def close(self) -> None:
        """Close the file."""
        self._source.close()


class _PartWriter:
    """Writes the chunks of one part, and counts what the next part's size depends on."""

    def __init__(self, writer: RowWriter) -> None:
        self.writer = writer
        self.size_bytes = 0
        self.last_reason = ""

    def append(self, chunk: Chunk) -> tuple[int, list[str]]:
        """Write a chunk."""
        size_bytes, reasons = self.writer.append(chunk)
        self.size_bytes += size_bytes + chunk.input_bytes
        return size_bytes, reasons

    async def add(self, rows: int, reasons: Sequence[str], done_bytes: int) -> None:
        """Note the last reason; the job counts the rows."""
        if reasons:
            self.last_reason = reasons[-1]


def _enter(folder: str, job: PredictJob) -> None:
    """Make the folder of the job the current one. Raises InferError if this machine lacks it and a path needs it."""
    try:
        os.chdir(folder)
    except OSError as error:
        relative = [each for each in (job.target, *job.inputs) if "://" not in each and not Path(each).is_absolute()]
        if relative:
            raise invalid_argument(
                f"the machine has no folder {folder}, where '{relative[0]}' begins ({error.strerror}); all machines "
                "need the files under the same path: name absolute paths of a shared file system"
            ) from None


def _problem(error: BaseException) -> WorkerProblem:
    host = socket.gethostname()
    if isinstance(error, InferError):
        text = f"{error.message.strip()} (worker on {host})"
        return WorkerProblem(text, error.code, is_of_store=isinstance(error, StoreError))
    return WorkerProblem(f"{str(error) or type(error).__name__} (worker on {host})")

"""Run a batch prediction: the model, the files, the checkpoint, and the flow of rows between them."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import invalid_argument
from naiad.core.model import ModelMetadata
from naiad.tools.predict.distributed.part_flow import PartFlow
from naiad.tools.predict.distributed.ray_pool import open_ray_pool
from naiad.tools.predict.distributed.worker_pool import WorkerPool
from naiad.tools.predict.files.input_files import find_files
from naiad.tools.predict.files.row_formats import check_suffix
from naiad.tools.predict.files.row_reader import Reader
from naiad.tools.predict.job_checkpoint import Announce, CannotContinueError, Facts, JobCheckpoint, file_facts
from naiad.tools.predict.job_output import Output, RowOutput, has_rejections, publish, written_files
from naiad.tools.predict.job_signature import RowSignature, read_signature, size_hint
from naiad.tools.predict.model_host import ModelEndpoint, is_address, model_folders, model_objects, open_endpoint
from naiad.tools.predict.pace import FailureLimit, Pace
from naiad.tools.predict.prediction_job import JobProgress, PredictJob, Summary
from naiad.tools.predict.row_flow import OnProgress, Pipeline, RecordedRows, first_error, in_thread
from naiad.tools.predict.row_requests import ChunkRequests
from naiad.tools.predict.since.selection import CLAIM, Selection, select_files, state_of
from naiad.tools.predict.sinks.sink import Layout
from naiad.tools.predict.sources.folder import FILE_KEY
from naiad.tools.predict.stored_output.stored_checkpoint import StoredCheckpoint, check_writable
from naiad.tools.predict.stored_output.stored_output import StoredOutput
from naiad.tools.predict.stores.store_place import is_store_url

_log = logging.getLogger(__name__)


def predict(job: PredictJob, on_progress: OnProgress | None = None) -> Summary:
    """Run a job, or continue it where an interrupted run with the same files has stopped.

    `on_progress` is called from this thread, a few times a second. Raises InferError for a job, a model or a file
    that is wrong, and for too many failed rows, and OSError for a file that cannot be read or written. After an
    error or an interruption the finished rows are kept.
    """
    job.check()
    check_suffix(job.output)
    if is_store_url(job.output):
        check_writable(job.output, job.timeout_s)
    written = written_files(job.output, state_of(job) if job.since else "")
    files = find_files(job.inputs, written, job.timeout_s, may_be_none=bool(job.since))
    with contextlib.closing(select_files(job, files)) as selection:
        earlier = selection.earlier
        if selection.output != job.output:
            earlier = _complete_earlier(job, selection, on_progress or _ignore)
            selection.go_on()
        if selection.files:
            return replace(_run(job, selection, on_progress or _ignore), earlier=earlier)
        nothing = Summary(0, 0, 0.0, job.output, "", skipped_files=selection.skipped, is_nothing_new=True)
        return nothing if earlier is None else replace(earlier, skipped_files=selection.skipped)


def _complete_earlier(job: PredictJob, selection: Selection, on_progress: OnProgress) -> Summary:
    """Continue the output of a run that did not end, or begin it again if that was for another model or flags."""
    _log.warning("the run that writes %s did not end; its output is completed first", selection.output)
    try:
        return _run(job, selection, on_progress)
    except CannotContinueError as error:
        _log.warning("%s begins with the first row again: %s", selection.output, error.changed)
        selection.must_restart = True
        return _run(job, selection, on_progress)


def _run(job: PredictJob, selection: Selection, on_progress: OnProgress) -> Summary:
    """Write the output of a selection."""
    job = replace(job, output=selection.output, restart=job.restart or selection.must_restart)
    return _in_loop(_Run(job, selection, on_progress))


def _in_loop(run: "_Run") -> Summary:
    try:
        try:
            import uvloop
        except ModuleNotFoundError:
            return asyncio.run(run.run())
        return uvloop.run(run.run())
    except BaseExceptionGroup as group:
        raise first_error(group) from None


def _with_workers(on_progress: OnProgress, pool: WorkerPool) -> OnProgress:
    """Return a display that also gets the number of workers."""
    return lambda progress: on_progress(replace(progress, workers=pool.workers))


def _ignore(progress: JobProgress) -> None:
    """Show nothing."""


class _Run:
    """One run of a job."""

    def __init__(self, job: PredictJob, selection: Selection, on_progress: OnProgress) -> None:
        self._job = job
        self._selection = selection
        self._files = selection.files
        self._on_progress = on_progress
        self._begin_s = time.monotonic()
        self._reasons: Mapping[str, int] = {}

    async def run(self) -> Summary:
        """Return when the output is in its place."""
        self._on_progress(JobProgress("load"))
        async with self._open_model() as endpoint:
            config = await endpoint.config()
            metadata = await endpoint.metadata()
            signature = read_signature(self._job, metadata, config)
            if hint := size_hint(self._job, signature):
                _log.warning("%s", hint)
            reader = await asyncio.to_thread(Reader, self._files, self._job, signature)
            try:
                facts = await asyncio.to_thread(self._facts, metadata, config, sorted(reader.set_aside))
                return await self._write(endpoint, signature, facts, reader)
            finally:
                reader.close()

    async def _write(
        self, endpoint: ModelEndpoint | WorkerPool, signature: RowSignature, facts: Facts, reader: Reader
    ) -> Summary:
        """Write the output, or what an earlier run has left of it, and put it in its place."""
        checkpoint = await in_thread(self._open_checkpoint, facts)
        try:
            resumed_rows = checkpoint.position.rows
            if checkpoint.position.finished and isinstance(checkpoint, JobCheckpoint):
                await in_thread(publish, checkpoint, self._announced(reader))
            else:
                await self._complete(endpoint, signature, checkpoint, reader)
            await in_thread(self._selection.commit)
            return replace(self._summary(checkpoint, resumed_rows), set_aside=reader.set_aside)
        except BaseException:
            if not self._selection.is_announced:
                await in_thread(checkpoint.discard_if_empty)
            raise
        finally:
            checkpoint.close()

    def _facts(self, metadata: ModelMetadata, config: ModelConfig, set_aside: Sequence[str]) -> Facts:
        job = self._job
        facts: dict[str, object] = {
            "model": job.model,
            "version": job.version,
            "version that serves": ", ".join(metadata.versions),
            "target": job.target,
            "columns": dict(job.columns),
            "outputs": list(job.outputs),
            "keys": list(job.keys),
            "input files": file_facts(file for each in self._files for file in each.all),
        }
        if self._selection.claim_id:
            facts[CLAIM] = self._selection.claim_id
        if set_aside:
            # Rows are counted without them: one that can be read now would move the rows behind it.
            facts["files that cannot be read"] = set_aside
        if is_address(job.target):
            return facts | {"configuration of the model": str(config)}
        if is_store_url(job.target):
            return facts | {"model files": model_objects(job, config)}
        return facts | {"model files": file_facts(model_folders(job.target, config))}

    def _open_checkpoint(self, facts: Facts) -> JobCheckpoint | StoredCheckpoint:
        job = self._job
        if is_store_url(job.output):
            return StoredCheckpoint(job.output, facts, restart=job.restart, patience_s=job.timeout_s)
        return JobCheckpoint(Path(job.output), facts, restart=job.restart)

    def _open_model(self) -> AbstractAsyncContextManager[ModelEndpoint | WorkerPool]:
        """Return where the model is executed, open for a block."""
        if not self._job.ray:
            return open_endpoint(self._job)
        return open_ray_pool(self._job, self._keys())

    async def _complete(
        self,
        endpoint: ModelEndpoint | WorkerPool,
        signature: RowSignature,
        checkpoint: JobCheckpoint | StoredCheckpoint,
        reader: Reader,
    ) -> None:
        """Execute the rows that are left."""
        layout = Layout(self._keys(), signature.outputs)
        output: RowOutput
        if isinstance(checkpoint, StoredCheckpoint):
            output = StoredOutput(checkpoint, layout)
        else:
            output = Output(checkpoint, layout)
        try:
            await self._move(endpoint, signature, reader, output)
        finally:
            output.close()

    def _keys(self) -> list[str]:
        are_rows = any(each.rows for each in self._files)
        return [*self._job.keys, *([FILE_KEY] if are_rows and FILE_KEY not in self._job.keys else ())]

    async def _move(
        self, endpoint: ModelEndpoint | WorkerPool, signature: RowSignature, reader: Reader, output: RowOutput
    ) -> None:
        done = await in_thread(reader.skip, output.rows)
        if done != output.rows:
            raise invalid_argument(f"the input has {done:,} rows, and {output.rows:,} were done; add --restart")
        limit = FailureLimit(self._job.max_failed_rows, output.rows, output.failed_rows)
        pace = Pace(reader.total_bytes, output.rows, output.failed_rows)
        pace.begin(time.monotonic(), reader.done_bytes)
        flow: Pipeline | PartFlow
        if isinstance(endpoint, WorkerPool):
            count = RecordedRows(output, limit, pace, _with_workers(self._on_progress, endpoint))
            flow = PartFlow(reader, endpoint, output, count, signature.max_rows, self._keys())
        else:
            count = RecordedRows(output, limit, pace, self._on_progress)
            flow = Pipeline(reader, ChunkRequests(endpoint, signature, self._job.timeout_s), output, count)
        self._reasons = count.reasons
        try:
            await flow.run()
            count.show()
        except BaseException:
            await in_thread(output.keep)
            raise
        self._on_progress(Pace(0, output.rows, output.failed_rows).progress("write"))
        await in_thread(output.finish, reader.set_aside, self._announced(reader))

    def _announced(self, reader: Reader) -> Announce:
        """Return what records a complete output before it appears."""
        return functools.partial(self._selection.announce, set_aside=reader.set_aside, unread=reader.unread)

    def _summary(self, checkpoint: JobCheckpoint | StoredCheckpoint, resumed_rows: int) -> Summary:
        position = checkpoint.position
        rejected = f"{checkpoint.output}.rejected.jsonl" if has_rejections(position) else ""
        seconds = time.monotonic() - self._begin_s
        skipped = self._selection.skipped
        output = str(checkpoint.output)
        return Summary(
            position.rows,
            position.failed_rows,
            seconds,
            output,
            rejected,
            resumed_rows,
            reasons=self._reasons,
            skipped_files=skipped,
        )

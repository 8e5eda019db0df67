"""The rows of a job on their way to an object store.

Rows that this process writes collect in files of a temporary folder, and become a segment at each checkpoint. Workers
of a cluster write their segments themselves, and only their names come here. The complete file is made at the end
from all segments, in the temporary folder, which then needs the space of the output.
"""

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

import orjson

from naiad.core.errors import InferError, excerpt, invalid_argument
from naiad.files.temporary import OwnDirectory, remove_abandoned
from naiad.tools.predict.files.row_writer import REJECTED, RowWriter, WrittenRows
from naiad.tools.predict.job_checkpoint import Announce, JobPosition
from naiad.tools.predict.rows.chunk import Chunk
from naiad.tools.predict.sinks.sink import Layout
from naiad.tools.predict.stored_output.segment import MAX_SEGMENTS, Segment, SegmentFolder
from naiad.tools.predict.stored_output.stored_checkpoint import StoredCheckpoint

CHECKPOINT_S = 10.0
"""Between checkpoints, each of which is a few requests."""
MAX_COLLECTED_BYTES = 32 << 20
"""Of rows that wait for a checkpoint."""


class StoredOutput:
    """Writes rows in order, after the rows of interrupted runs. Methods raise InferError and OSError."""

    checkpoint_s = CHECKPOINT_S

    def __init__(self, checkpoint: StoredCheckpoint, layout: Layout) -> None:
        """Raises InferError if the format cannot hold the outputs."""
        self._checkpoint = checkpoint
        self._layout = layout
        self._segments = list(checkpoint.segments)
        self._stored_rows = sum(each.rows for each in self._segments)
        self._stored_failed_rows = sum(each.failed_rows for each in self._segments)
        remove_abandoned()
        self._directory = OwnDirectory("rows")
        self._folders = 0
        try:
            self._writer = self._new_writer()
        except BaseException:
            self._directory.remove()
            raise

    @property
    def segments(self) -> SegmentFolder:
        """Where workers store rows themselves."""
        return self._checkpoint.folder

    @property
    def rows(self) -> int:
        """Rows that are written, also by runs before this one."""
        return self._writer.rows

    @property
    def failed_rows(self) -> int:
        """Rows that are written without a prediction."""
        return self._writer.failed_rows

    @property
    def is_full(self) -> bool:
        """Whether the rows that wait for a checkpoint should wait no longer."""
        return self._writer.grown_bytes > MAX_COLLECTED_BYTES

    def append(self, chunk: Chunk) -> tuple[int, list[str]]:
        """Write a chunk whose requests have ended; return the bytes of its outputs and the reasons of failures."""
        return self._writer.append(chunk)

    def extend(self, written: WrittenRows | Segment) -> None:
        """Append what another process has written for the next rows, or has stored."""
        if isinstance(written, WrittenRows):
            self._writer.extend(written)
            return
        self._store()
        self._add(written)

    def record(self) -> None:
        """Make a checkpoint."""
        self._store()
        self._checkpoint.record(JobPosition(self._stored_rows, self._stored_failed_rows))

    def keep(self) -> None:
        """Make a last checkpoint after an error, if all rows that were counted have been written."""
        if self._writer.is_whole:
            with contextlib.suppress(OSError, InferError):  # The checkpoint before stays valid.
                self.record()

    def finish(self, set_aside: Mapping[str, str], announce: Announce) -> None:
        """Make the complete file and store it; the reasons of files that were set aside come last."""
        self.record()
        folder = self._new_folder()
        writer = RowWriter(self._checkpoint.output, folder, {}, self._layout)
        try:
            for written in self.segments.all(self._segments):
                writer.extend(written)
            for file, reason in set_aside.items():
                record = {"row": None, "file": file, "file_row": None, "reason": excerpt(reason)}
                writer.rejected.write(orjson.dumps(record) + b"\n")
            sizes = writer.sync()
            path = writer.sink.finish()
            position = JobPosition(writer.rows, writer.failed_rows, sizes, path.name)
            announce(path, position)
            self._checkpoint.publish(position, path, folder / REJECTED if sizes[REJECTED] else None)
        finally:
            writer.close()

    def close(self) -> None:
        """Remove the temporary folder."""
        self._writer.close()
        self._directory.remove()

    def _store(self) -> None:
        """Make a segment of the rows that wait, if there are some."""
        if self._writer.rows > self._stored_rows:
            self._add(self.segments.put(self._stored_rows, self._writer.written()))

    def _add(self, segment: Segment) -> None:
        if len(self._segments) >= MAX_SEGMENTS:
            raise invalid_argument(
                f"{self._checkpoint.output} has {len(self._segments):,} segments, and more are not kept: a part of a "
                "worker has rows of one file only; put small files together, or run several jobs"
            )
        self._segments.append(segment)
        self._stored_rows += segment.rows
        self._stored_failed_rows += segment.failed_rows
        self._writer.close()
        self._writer = self._new_writer()

    def _new_writer(self) -> RowWriter:
        rows, failed_rows = self._stored_rows, self._stored_failed_rows
        return RowWriter(self._checkpoint.output, self._new_folder(), {}, self._layout, rows, failed_rows)

    def _new_folder(self) -> Path:
        shutil.rmtree(self._directory.path / str(self._folders), ignore_errors=True)
        self._folders += 1
        folder = self._directory.path / str(self._folders)
        folder.mkdir()
        return folder

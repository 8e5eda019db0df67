"""The output of a job while it is written: rows, reasons of failed rows, checkpoints, and the last step."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import orjson

from naiad.core.errors import excerpt
from naiad.tools.predict.files.row_writer import REJECTED, RowWriter, WrittenRows
from naiad.tools.predict.job_checkpoint import Announce, JobCheckpoint, JobPosition
from naiad.tools.predict.rows.chunk import Chunk
from naiad.tools.predict.sinks.sink import Layout
from naiad.tools.predict.stored_output.segment import Segment, SegmentFolder
from naiad.tools.predict.stores.store_place import is_store_url


class RowOutput(Protocol):
    """Writes rows in order, after the rows of an interrupted run. Methods raise InferError and OSError."""

    @property
    def rows(self) -> int:
        """Rows that are written, also by runs before this one."""

    @property
    def failed_rows(self) -> int:
        """Rows that are written without a prediction."""

    @property
    def checkpoint_s(self) -> float | None:
        """Time between checkpoints; None for the usual one."""

    @property
    def is_full(self) -> bool:
        """Whether the rows that wait for a checkpoint should wait no longer."""

    @property
    def segments(self) -> SegmentFolder | None:
        """Where workers store rows themselves; None if they return them."""

    def append(self, chunk: Chunk) -> tuple[int, list[str]]:
        """Write a chunk whose requests have ended; return the bytes of its outputs and the reasons of failures."""

    def extend(self, written: WrittenRows | Segment) -> None:
        """Append what another process has written for the next rows, or has stored."""

    def record(self) -> None:
        """Make a checkpoint."""

    def keep(self) -> None:
        """Make a last checkpoint after an error, if all rows that were counted have been written."""

    def finish(self, set_aside: Mapping[str, str], announce: Announce) -> None:
        """Announce the complete output and have it appear; the reasons of files that were set aside come last."""

    def close(self) -> None:
        """Close the files."""


def written_files(output: str, state: str = "") -> list[Path | str]:
    """Return the files that a job leaves, objects as URLs; `state` is one more."""
    names = [output, f"{output}.rejected.jsonl", *([state] if state else ())]
    return [each if is_store_url(each) else Path(each) for each in names]


def rejected_path(output: Path) -> Path:
    """Return the file with the reasons of failed rows."""
    return output.with_name(f"{output.name}.rejected.jsonl")


class Output:
    """Writes rows to files beside the output. Methods raise OSError."""

    checkpoint_s = None
    is_full = False
    segments = None

    def __init__(self, checkpoint: JobCheckpoint, layout: Layout) -> None:
        """Raises InferError if the format cannot hold the outputs, or files of the checkpoint are damaged."""
        self._checkpoint = checkpoint
        position, name = checkpoint.position, str(checkpoint.output)
        self._writer = RowWriter(name, checkpoint.folder, position.sizes, layout, position.rows, position.failed_rows)

    @property
    def rows(self) -> int:
        """Rows that are written, also by runs before this one."""
        return self._writer.rows

    @property
    def failed_rows(self) -> int:
        """Rows that are written without a prediction."""
        return self._writer.failed_rows

    def append(self, chunk: Chunk) -> tuple[int, list[str]]:
        """Write a chunk whose requests have ended; return the bytes of its outputs and the reasons of failures."""
        return self._writer.append(chunk)

    def extend(self, written: WrittenRows | Segment) -> None:
        """Append what another process has written for the next rows."""
        assert isinstance(written, WrittenRows), "nothing stores rows elsewhere"
        self._writer.extend(written)

    def record(self) -> None:
        """Write a checkpoint."""
        sizes = self._writer.sync()
        self._checkpoint.record(JobPosition(self.rows, self.failed_rows, sizes))

    def keep(self) -> None:
        """Write a last checkpoint after an error, if all rows that were counted have been written."""
        if self._writer.is_whole:
            with contextlib.suppress(OSError):  # The checkpoint before stays valid.
                self.record()

    def finish(self, set_aside: Mapping[str, str], announce: Announce) -> None:
        """Make the complete file and move it to its place; the reasons of files that were set aside come last."""
        writer = self._writer
        self.record()  # a run that continues from here writes these reasons again, from the same place
        for file, reason in set_aside.items():
            record = {"row": None, "file": file, "file_row": None, "reason": excerpt(reason)}
            writer.rejected.write(orjson.dumps(record) + b"\n")
        sizes = writer.sync()
        path = writer.sink.finish()
        writer.rejected.close()
        self._checkpoint.record(JobPosition(self.rows, self.failed_rows, sizes, path.name))
        publish(self._checkpoint, announce)

    def close(self) -> None:
        """Close the files."""
        self._writer.close()


def has_rejections(position: JobPosition) -> bool:
    """Return whether there are reasons of failed rows or of files that were set aside."""
    return bool(position.failed_rows or position.sizes.get(REJECTED))


def publish(checkpoint: JobCheckpoint, announce: Announce) -> None:
    """Move the files of a finished run to their places. Raises OSError, and what `announce` raises."""
    position, folder = checkpoint.position, checkpoint.folder
    announce(folder / position.finished, position)
    rejected = folder / REJECTED if has_rejections(position) else None
    checkpoint.publish(folder / position.finished, rejected, rejected_path(checkpoint.output))

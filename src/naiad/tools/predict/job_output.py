"""The output of a job while it is written: rows, reasons of failed rows, checkpoints, and the last step."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

import orjson

from naiad.core.errors import excerpt
from naiad.tools.predict.files.row_formats import open_sink
from naiad.tools.predict.job_checkpoint import JobCheckpoint, JobPosition
from naiad.tools.predict.rows.chunk import Chunk
from naiad.tools.predict.rows.row_outputs import OutputBlock, to_block
from naiad.tools.predict.sinks.sink import Layout, PartFile
from naiad.tools.predict.sources.folder import FILE_KEY

_REJECTED = "rejected.jsonl"


def written_files(output: Path) -> list[Path]:
    """Return the files that a job leaves."""
    return [output, rejected_path(output)]


def rejected_path(output: Path) -> Path:
    """Return the file with the reasons of failed rows."""
    return output.with_name(f"{output.name}.rejected.jsonl")


class Output:
    """Writes chunks in order, after the rows of an interrupted run. Methods raise OSError."""

    def __init__(self, checkpoint: JobCheckpoint, layout: Layout) -> None:
        """Raises InferError if the format cannot hold the outputs, or files of the checkpoint are damaged."""
        self._checkpoint = checkpoint
        self._layout = layout
        position = checkpoint.position
        self.rows, self.failed_rows = position.rows, position.failed_rows
        self._sink = open_sink(str(checkpoint.output), checkpoint.folder, position.sizes, layout)
        self._rejected = PartFile(checkpoint.folder, _REJECTED, position.sizes)
        self._is_whole = True

    def append(self, chunk: Chunk) -> tuple[int, list[str]]:
        """Write a chunk whose requests have ended; return the bytes of its outputs and the reasons of failures."""
        block = to_block(chunk, self.rows, list(self._layout.outputs))
        problems = self._sink.problems(block)
        if problems:
            chunk.failures.update(problems)
            block = to_block(chunk, self.rows, list(self._layout.outputs))
        self._is_whole = False
        self._sink.append(block)
        reasons = [chunk.failures[offset] for offset in sorted(chunk.failures)]
        for offset in sorted(chunk.failures):
            self._rejected.write(_rejection(chunk, self.rows, offset))
        self.rows += chunk.count
        self.failed_rows += len(reasons)
        self._is_whole = True
        return _size(block), reasons

    def record(self) -> None:
        """Write a checkpoint."""
        sizes = self._sink.sync()
        self._rejected.sync()
        sizes[_REJECTED] = self._rejected.size
        self._checkpoint.record(JobPosition(self.rows, self.failed_rows, sizes))

    def keep(self) -> None:
        """Write a last checkpoint after an error, if all rows that were counted have been written."""
        if self._is_whole:
            with contextlib.suppress(OSError):  # The checkpoint before stays valid.
                self.record()

    def finish(self, set_aside: Mapping[str, str]) -> None:
        """Make the complete file and move it to its place; the reasons of files that were set aside come last."""
        for file, reason in set_aside.items():
            record = {"row": None, "file": file, "file_row": None, "reason": excerpt(reason)}
            self._rejected.write(orjson.dumps(record) + b"\n")
        self.record()
        path = self._sink.finish()
        position = self._checkpoint.position
        self._rejected.close()
        self._checkpoint.record(JobPosition(position.rows, position.failed_rows, position.sizes, path.name))
        publish(self._checkpoint)

    def close(self) -> None:
        """Close the files."""
        self._sink.close()
        self._rejected.close()


def has_rejections(position: JobPosition) -> bool:
    """Return whether there are reasons of failed rows or of files that were set aside."""
    return bool(position.failed_rows or position.sizes.get(_REJECTED))


def publish(checkpoint: JobCheckpoint) -> None:
    """Move the files of a finished run to their places. Raises OSError."""
    position, folder = checkpoint.position, checkpoint.folder
    rejected = folder / _REJECTED if has_rejections(position) else None
    checkpoint.publish(folder / position.finished, rejected, rejected_path(checkpoint.output))


def _rejection(chunk: Chunk, first: int, offset: int) -> bytes:
    record: dict[str, object] = {
        "row": first + offset,
        "file": _file_of(chunk, offset),
        "file_row": 0 if chunk.files_are_rows else chunk.first + offset,
        "reason": excerpt(chunk.failures[offset]),
    }
    record |= {key: values[offset] for key, values in chunk.keys.items() if key not in record}
    return orjson.dumps(record, default=str) + b"\n"


def _file_of(chunk: Chunk, offset: int) -> str:
    """Return the file of a row, which for a folder is the row itself."""
    return str(Path(chunk.file) / str(chunk.keys[FILE_KEY][offset])) if chunk.files_are_rows else chunk.file


def _size(block: OutputBlock) -> int:
    size = 0
    for column in block.columns.values():
        arrays = [column.whole] if column.whole is not None else [row for row in column.rows if row is not None]
        for array in arrays:
            strings = sum(map(len, array.ravel())) if array.dtype == object else 0
            size += array.nbytes + strings
    return size

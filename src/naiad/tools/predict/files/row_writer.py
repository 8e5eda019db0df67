"""Rows with their outputs to the files of a folder, and the reasons of failed rows beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from naiad.core.errors import excerpt
from naiad.tools.predict.files.row_formats import open_sink
from naiad.tools.predict.rows.chunk import Chunk
from naiad.tools.predict.rows.row_outputs import OutputBlock, to_block
from naiad.tools.predict.sinks.sink import Layout, PartFile
from naiad.tools.predict.sources.folder import FILE_KEY

REJECTED = "rejected.jsonl"
"""Name of the file with the reasons."""


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """What consecutive rows add to the files, so that another process can append it to its own. Picklable."""

    rows: int
    failed_rows: int
    growth: Mapping[str, bytes]
    """By file."""


class RowWriter:
    """Writes chunks in order. Methods raise OSError."""

    def __init__(
        self, output: str, folder: Path, sizes: Mapping[str, int], layout: Layout, rows: int = 0, failed_rows: int = 0
    ) -> None:
        """Open the files with the sizes that a checkpoint has; `rows` and `failed_rows` are before these.

        Raises InferError if the format of `output` cannot hold the outputs, or the files are damaged.
        """
        self.rows, self.failed_rows = rows, failed_rows
        self._first_row, self._first_failed_rows = rows, failed_rows
        self._layout = layout
        self.sink = open_sink(output, folder, sizes, layout)
        self.rejected = PartFile(folder, REJECTED, sizes)
        self._first_sizes = {part.name: part.size for part in self._parts}
        self.is_whole = True
        """Whether all rows that are counted are written."""

    def append(self, chunk: Chunk) -> tuple[int, list[str]]:
        """Write a chunk whose requests have ended; return the bytes of its outputs and the reasons of failures."""
        block = to_block(chunk, self.rows, list(self._layout.outputs))
        problems = self.sink.problems(block)
        if problems:
            chunk.failures.update(problems)
            block = to_block(chunk, self.rows, list(self._layout.outputs))
        self.is_whole = False
        self.sink.append(block)
        reasons = [chunk.failures[offset] for offset in sorted(chunk.failures)]
        for offset in sorted(chunk.failures):
            self.rejected.write(_rejection(chunk, self.rows, offset))
        self.rows += chunk.count
        self.failed_rows += len(reasons)
        self.is_whole = True
        return _size(block), reasons

    @property
    def grown_bytes(self) -> int:
        """Size of what was written since the writer was made."""
        return sum(part.size - self._first_sizes[part.name] for part in self._parts)

    def extend(self, written: WrittenRows) -> None:
        """Append what another writer has written for the next rows."""
        self.is_whole = False
        for part in self._parts:
            part.write(written.growth[part.name])
        self.rows += written.rows
        self.failed_rows += written.failed_rows
        self.is_whole = True

    def written(self) -> WrittenRows:
        """Return the rows since the writer was made."""
        growth = {part.name: part.content_from(self._first_sizes[part.name]) for part in self._parts}
        return WrittenRows(self.rows - self._first_row, self.failed_rows - self._first_failed_rows, growth)

    def sync(self) -> dict[str, int]:
        """Write everything to the disk; return the size of each file by name."""
        sizes = self.sink.sync()
        self.rejected.sync()
        return sizes | {REJECTED: self.rejected.size}

    def close(self) -> None:
        """Close the files."""
        self.sink.close()
        self.rejected.close()

    @property
    def _parts(self) -> Sequence[PartFile]:
        return [*self.sink.parts, self.rejected]


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
    return f"{chunk.file}/{chunk.keys[FILE_KEY][offset]}" if chunk.files_are_rows else chunk.file


def _size(block: OutputBlock) -> int:
    size = 0
    for column in block.columns.values():
        arrays = [column.whole] if column.whole is not None else [row for row in column.rows if row is not None]
        for array in arrays:
            strings = sum(map(len, array.ravel())) if array.dtype == object else 0
            size += array.nbytes + strings
    return size

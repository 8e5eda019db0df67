"""Results of requests, in the order of the rows: what the sinks write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from naiad.core.tensor import Array
from naiad.tools.predict.rows.chunk import Chunk, ChunkResult


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """An output of consecutive rows: one array, or an array for each row where shapes differ."""

    whole: Array | None
    """A row along the first axis; zeros and empty strings in failed rows."""
    rows: Sequence[Array | None] = ()
    """None for a failed row."""

    def row(self, offset: int) -> Array | None:
        """Return the array of one row; None for a failed one whose shape is unknown."""
        return self.rows[offset] if self.whole is None else np.asarray(self.whole[offset])


@dataclass(frozen=True, slots=True)
class OutputBlock:
    """Consecutive rows of the output."""

    first: int
    """Number of the first one among all rows, from 0."""
    count: int
    keys: Mapping[str, Sequence[Any]]
    failures: Mapping[int, str]
    """Offset in this block -> reason."""
    columns: Mapping[str, OutputColumn]


def to_block(chunk: Chunk, first: int, outputs: Sequence[str]) -> OutputBlock:
    """Return the outputs of a chunk whose requests have ended."""
    columns = {name: _column(chunk.results, name, chunk.count) for name in outputs}
    return OutputBlock(first, chunk.count, chunk.keys, chunk.failures, columns)


def _column(results: Sequence[ChunkResult], name: str, count: int) -> OutputColumn:
    parts = [(result.offsets, result.outputs[name]) for result in results]
    kinds = {(part.shape[1:], part.dtype) for _, part in parts}
    if len(kinds) == 1:
        return OutputColumn(_joined(parts, count))
    rows: list[Array | None] = [None] * count
    for offsets, part in parts:
        for offset, row in zip(offsets, part, strict=True):
            rows[offset] = np.asarray(row)
    return OutputColumn(None, rows)


def _joined(parts: Sequence[tuple[Sequence[int], Array]], count: int) -> Array:
    offsets, part = parts[0]
    if len(part) == count and isinstance(offsets, range):
        return part
    whole = np.empty((count, *part.shape[1:]), part.dtype)
    whole.fill(b"" if part.dtype == object else 0)
    for offsets, part in parts:
        whole[_index(offsets)] = part
    return whole


def _index(offsets: Sequence[int]) -> Any:
    if isinstance(offsets, range) and offsets.step == 1:
        return slice(offsets.start, offsets.stop)
    return np.asarray(offsets)

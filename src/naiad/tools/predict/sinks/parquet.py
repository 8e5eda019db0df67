"""Output as `.parquet`, written with pyarrow.

While the job runs, the rows are a stream of record batches in Arrow's format, which only grows. The file is written
from it at the end. Outputs of failed rows are null. BYTES are columns of strings; a row whose value is no UTF-8
fails.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.tensor import Array
from naiad.tools.predict.rows.row_outputs import OutputBlock, OutputColumn
from naiad.tools.predict.sinks.sink import Layout, PartFile, check_names, is_single
from naiad.tools.predict.sinks.texts import key_value, nested, plain
from naiad.tools.predict.sources.parquet import pyarrow
from naiad.tools.values.tensor import ModelTensor

GROUP_BYTES = 64 << 20
"""About the size of a row group before compression."""
_MAX_GROUP_ROWS = 1 << 17


class ParquetSink:
    """Writes a stream and, at the end, the file."""

    def __init__(self, folder: Path, sizes: Mapping[str, int], layout: Layout) -> None:
        """Raises InferError if pyarrow is missing, and for two columns of one name."""
        check_names([layout.row_name, *layout.keys, *layout.outputs])
        self._folder = folder
        self._layout = layout
        self._arrow = pa = pyarrow(folder)
        self._types = {name: _row_type(pa, tensor) for name, tensor in layout.outputs.items()}
        fields = [pa.field(layout.row_name, pa.int64()), *(pa.field(key, pa.string()) for key in layout.keys)]
        self._schema = pa.schema([*fields, *(pa.field(name, kind) for name, kind in self._types.items())])
        self._part = PartFile(folder, "rows.arrows", sizes)
        if not self._part.size:
            self._part.write(self._schema.serialize().to_pybytes())

    @property
    def parts(self) -> Sequence[PartFile]:
        """The stream, whose head is the schema."""
        return [self._part]

    def problems(self, block: OutputBlock) -> dict[int, str]:
        """Return the rows with strings that are no UTF-8."""
        found: dict[int, str] = {}
        for name, tensor in self._layout.outputs.items():
            if tensor.datatype is not DataType.BYTES:
                continue
            for offset in range(block.count):
                row = None if offset in block.failures else block.columns[name].row(offset)
                if row is not None and not all(map(_is_text, row.ravel())):
                    found[offset] = f"output '{name}' is no UTF-8, which .parquet needs; write .jsonl instead"
        return found

    def append(self, block: OutputBlock) -> None:
        """Write rows."""
        pa = self._arrow
        rows = np.arange(block.first, block.first + block.count, dtype=np.int64)
        columns = [pa.array(rows)]
        columns += [pa.array(map(_key, block.keys[key]), pa.string()) for key in self._layout.keys]
        failed = np.zeros(block.count, np.bool_)
        failed[list(block.failures)] = True
        for name, tensor in self._layout.outputs.items():
            columns.append(_column(pa, block.columns[name], tensor, self._types[name], failed))
        batch = pa.record_batch(columns, schema=self._schema)
        self._part.write(batch.serialize().to_pybytes())

    def sync(self) -> dict[str, int]:
        """Write everything to the disk."""
        self._part.sync()
        return {self._part.name: self._part.size}

    def finish(self) -> Path:
        """Write the file, in row groups whose borders do not depend on when the job was interrupted."""
        from pyarrow import parquet

        path = self._folder / "rows.parquet"
        with parquet.ParquetWriter(path, self._schema) as writer:
            for table in self._groups():
                writer.write_table(table.combine_chunks())  # else pages end where blocks did
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return path

    def close(self) -> None:
        """Close the file."""
        self._part.close()

    def _groups(self) -> Iterator[Any]:
        pa = self._arrow
        pending, count, group = [], 0, 0
        with pa.OSFile(str(self._part.path)) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                group = group or _group_rows(batch)
                pending.append(batch)
                count += batch.num_rows
                while count >= group:
                    table = pa.Table.from_batches(pending, self._schema)
                    yield table.slice(0, group)
                    pending, count = table.slice(group).to_batches(), count - group
        if count:
            yield pa.Table.from_batches(pending, self._schema)


def _group_rows(batch: Any) -> int:
    """Return the rows of a group, a power of two."""
    wanted = GROUP_BYTES // max(1, batch.nbytes // batch.num_rows)
    return max(1, min(_MAX_GROUP_ROWS, 1 << max(0, int(wanted).bit_length() - 1)))


def _row_type(pa: Any, tensor: ModelTensor) -> Any:
    if tensor.datatype is DataType.BYTES:
        kind = pa.string()
    else:
        kind = pa.float32() if tensor.datatype is DataType.BF16 else pa.from_numpy_dtype(tensor.datatype.numpy)
    for _ in () if is_single(tensor) else tensor.dims:
        kind = pa.list_(kind)
    return kind


def _column(pa: Any, column: OutputColumn, tensor: ModelTensor, kind: Any, failed: Array) -> Any:
    if column.whole is None or column.whole.dtype == object:
        return pa.array([_value(column, offset, tensor, failed) for offset in range(len(failed))], kind)
    array = np.ascontiguousarray(plain(column.whole))
    mask = failed if failed.any() else None
    if is_single(tensor):
        return pa.array(array.reshape(len(array)), kind, mask=mask)
    values = pa.array(array.reshape(-1))
    for axis in range(array.ndim - 1, 0, -1):
        lists = int(np.prod(array.shape[:axis], dtype=np.int64))
        offsets = pa.array(np.arange(lists + 1, dtype=np.int32) * array.shape[axis], pa.int32())
        nulls = pa.array(mask) if axis == 1 and mask is not None else None
        values = pa.ListArray.from_arrays(offsets, values, mask=nulls)
    return values


def _value(column: OutputColumn, offset: int, tensor: ModelTensor, failed: Array) -> Any:
    row = None if failed[offset] else column.row(offset)
    if row is None:
        return None
    value = nested(plain(row), lambda each: each.decode() if isinstance(each, bytes) else each.item())
    return value[0] if is_single(tensor) and isinstance(value, list) else value


def _is_text(element: bytes) -> bool:
    try:
        element.decode()
    except UnicodeDecodeError:
        return False
    return True


def _key(value: Any) -> str | None:
    value = key_value(value)
    return value if value is None or isinstance(value, str) else str(value)

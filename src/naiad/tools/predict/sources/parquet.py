"""Rows of `.parquet` files, read with pyarrow in pieces of a row group."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.errors import unsupported
from naiad.core.tensor import Array
from naiad.tools.predict.job_signature import RowSignature
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.rows.chunk import Column, FileRows
from naiad.tools.predict.sources.row_source import element_count, plan_columns, unreadable
from naiad.tools.predict.stores.object_path import FilePath
from naiad.tools.values.tensor import ModelTensor

_BATCH_ROWS = 4096


def pyarrow(path: FilePath) -> Any:
    """Return the package. Raises InferError(UNSUPPORTED) with the command that installs it."""
    try:
        import pyarrow as package
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise unsupported(f"{path}: .parquet files need pyarrow; pip install 'naiad[batch]'") from None
    return package


class ParquetSource:
    """One file. A null is a value that is missing in its row."""

    def __init__(self, path: FilePath, job: PredictJob, signature: RowSignature) -> None:
        """Read the schema. Raises OSError, and InferError if an input or key has no column."""
        self.path = path
        self._arrow = pyarrow(path)
        self._file = self._open()
        self._tensors = signature.inputs
        self.rows: int = self._file.metadata.num_rows
        self.total_bytes = path.stat().st_size
        self._row = 0
        self._ahead: Any = None
        self._place = 0
        self._batches: Any = None
        self._is_careful = False
        """Whether a batch has rows of one row group only, which makes small ones of small groups."""
        try:
            self._plan = plan_columns(job, signature, path, self._file.schema_arrow.names)
        except BaseException:
            self.close()
            raise
        self.note = self._plan.note

    @property
    def done_bytes(self) -> int:
        """How much of the file is read, by rows."""
        return self.total_bytes * self._row // self.rows if self.rows else self.total_bytes

    @property
    def position(self) -> int:
        """Number of the next row: it is found without reading those before."""
        return self._row

    def seek(self, position: int, row: int) -> None:
        """Go to a row of a source from which nothing is read yet."""
        self.skip(row)

    def skip(self, count: int) -> int:
        """Pass over rows; none is read, until a row behind them in the same row group is."""
        count = min(count, self.rows - self._row)
        if count:
            self._row += count
            self._batches = None
        return count

    def be_careful(self) -> None:
        """Read each row group by itself."""
        self._is_careful = True

    def damage_end(self, row: int) -> int:
        """Return the first row behind the row group of a row."""
        group, first = self._group_of(row)
        return first + int(self._file.metadata.row_group(group).num_rows)

    def read(self, max_rows: int, max_bytes: int) -> FileRows | None:
        """Return the next rows, all of one batch of the file; None at the end."""
        if self._batches is None:
            self._start()
        if (self._ahead is None or self._place >= self._ahead.num_rows) and not self._next():
            return None
        row_bytes = max(1, self._ahead.nbytes // self._ahead.num_rows)
        count = min(max_rows, self._ahead.num_rows - self._place, max(1, max_bytes // row_bytes))
        piece = self._ahead.slice(self._place, count)
        columns: dict[str, Column] = {}
        for name, names in self._plan.inputs.items():
            tensor = self._tensors[name] if len(names) == 1 else replace(self._tensors[name], dims=())
            columns.update({each: _column(piece.column(each), tensor) for each in names})
        columns |= {key: piece.column(key).to_pylist() for key in self._plan.keys}
        rows = self._plan.rows(self.path.name, self._row, count, columns)
        self._row += count
        self._place += count
        return rows

    def close(self) -> None:
        """Close the file."""
        self._batches = self._ahead = None
        self._file.close()

    def _open(self) -> Any:
        from pyarrow import parquet

        try:
            return parquet.ParquetFile(self.path if isinstance(self.path, Path) else self.path.open("rb"))
        except (self._arrow.ArrowException, ValueError) as error:
            raise unreadable(self.path, "a .parquet file", error) from None

    def _start(self) -> None:
        """Begin with the row group of the next row, at that row."""
        first_group, first = self._group_of(self._row)
        left = range(first_group, self._file.metadata.num_row_groups)
        groups = [[each] for each in left] if self._is_careful else [list(left)]
        self._batches = itertools.chain.from_iterable(
            self._file.iter_batches(_BATCH_ROWS, row_groups=each, columns=self._plan.columns) for each in groups
        )
        self._ahead, self._place = None, 0
        rest = self._row - first
        while rest and self._next():
            self._place = min(rest, self._ahead.num_rows)
            rest -= self._place

    def _group_of(self, row: int) -> tuple[int, int]:
        """Return the row group with a row, and its first row; the number of groups, and of rows, behind the last."""
        first = 0
        for group in range(self._file.metadata.num_row_groups):
            rows = int(self._file.metadata.row_group(group).num_rows)
            if row < first + rows:
                return group, first
            first += rows
        return self._file.metadata.num_row_groups, first

    def _next(self) -> bool:
        """Read the next batch that has rows; return whether there is one."""
        self._place = 0
        try:
            self._ahead = next((batch for batch in self._batches if batch.num_rows), None)
        except (self._arrow.ArrowException, ValueError) as error:
            self._batches = None
            raise unreadable(self.path, "a .parquet file", error) from None
        return self._ahead is not None


def _column(column: Any, tensor: ModelTensor) -> Column:
    """Return values without copying them one by one, if they are numbers without nulls; None for null."""
    if tensor.datatype is not DataType.BYTES:
        array = _numbers(column, tensor)
        if array is not None:
            return array
    values: list[Any] = column.to_pylist()
    return values


def _numbers(column: Any, tensor: ModelTensor) -> Array | None:
    from pyarrow import types

    kind = column.type
    if column.null_count and not (tensor.null_is_nan and types.is_floating(kind)):
        return None
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(column, tensor)
    if not types.is_primitive(kind) or types.is_temporal(kind) or element_count(tensor) not in (1, -1):
        return None
    if len(tensor.dims) > 1 and element_count(tensor) == -1:
        return None
    return np.asarray(column.to_numpy(zero_copy_only=False)).reshape(len(column), *([1] * len(tensor.dims)))


def _lists(column: Any, tensor: ModelTensor) -> Array | None:
    """Return numbers in lists of one length; None if they are something else."""
    from pyarrow import types

    count, kind, size = len(column), column.type, element_count(tensor)
    values = column.flatten()
    if not types.is_primitive(values.type) or values.null_count or size <= 0 or len(values) != count * size:
        return None
    if not types.is_fixed_size_list(kind) and (np.diff(np.asarray(column.offsets)) != size).any():
        return None
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(count, *tensor.dims)

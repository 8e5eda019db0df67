"""Output as `.npz`: an array for each output, rows along the first axis.

While the job runs, each array is a file of raw values. The archive is written from them at the end, with fixed dates,
so that equal rows make equal files. Failed rows are zeros, NaN for floating-point numbers, and False in the array
`ok`. An output whose rows differ in shape becomes one array with all values and `NAME.shapes` with a shape per row.
"""

import os
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.errors import unsupported
from naiad.core.tensor import Array, Shape
from naiad.tools.predict.rows.row_outputs import OutputBlock, OutputColumn
from naiad.tools.predict.sinks.sink import Layout, PartFile
from naiad.tools.predict.sinks.texts import plain
from naiad.tools.values.tensor import ModelTensor

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Stored:
    """One array of the archive: raw values of all rows."""

    name: str
    dtype: np.dtype[Any]
    dims: Shape
    """Of a row; empty with `shapes`."""
    values: PartFile
    shapes: PartFile | None = None
    """Of rows that may differ, int64."""


class NpzSink:
    """Writes raw files and, at the end, the archive."""

    def __init__(self, folder: Path, sizes: Mapping[str, int], layout: Layout) -> None:
        """Raises InferError for strings: numpy has none of varying length."""
        self._folder = folder
        self._layout = layout
        self._ok_name = "ok" if "ok" not in layout.outputs else "_ok"
        if layout.keys:
            raise unsupported(f"--key {layout.keys[0]}: .npz has no strings of varying length; write .csv or .jsonl")
        for tensor in layout.outputs.values():
            if tensor.datatype is DataType.BYTES:
                raise unsupported(
                    f"output '{tensor.name}' is BYTES, and .npz has no strings of varying length; write .jsonl, .csv "
                    "or .parquet, or choose other outputs with --outputs"
                )
        self._files: list[PartFile] = []
        self._row = self._stored(layout.row_name, "row", np.dtype(np.int64), (), sizes)
        self._ok = self._stored(self._ok_name, "ok", np.dtype(np.bool_), (), sizes)
        self._outputs = {
            name: self._output(tensor, f"output{index}", sizes)
            for index, (name, tensor) in enumerate(layout.outputs.items())
        }

    @property
    def parts(self) -> Sequence[PartFile]:
        """The files of raw values."""
        return self._files

    def problems(self, block: OutputBlock) -> dict[int, str]:
        """Return nothing: arrays can hold all rows."""
        return {}

    def append(self, block: OutputBlock) -> None:
        """Write rows."""
        rows = np.arange(block.first, block.first + block.count, dtype=np.int64)
        ok = np.ones(block.count, np.bool_)
        ok[list(block.failures)] = False
        self._row.values.write(rows.tobytes())
        self._ok.values.write(ok.tobytes())
        for name, stored in self._outputs.items():
            if stored.shapes is None:
                stored.values.write(_whole(block, block.columns[name], stored).tobytes())
            else:
                _append_varying(block, block.columns[name], stored, stored.shapes)

    def sync(self) -> dict[str, int]:
        """Write everything to the disk."""
        for file in self._files:
            file.sync()
        return {file.name: file.size for file in self._files}

    def finish(self) -> Path:
        """Write the archive."""
        path = self._folder / "rows.npz"
        rows = self._ok.values.size
        with path.open("wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for stored in (self._row, self._ok, *self._outputs.values()):
                _add(archive, stored, rows)
        with path.open("rb") as written:
            os.fsync(written.fileno())
        return path

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def _output(self, tensor: ModelTensor, name: str, sizes: Mapping[str, int]) -> _Stored:
        dtype = np.dtype(np.float32) if tensor.datatype is DataType.BF16 else tensor.datatype.numpy
        if -1 not in tensor.dims:
            return self._stored(tensor.name, name, dtype, tensor.dims, sizes)
        shapes = self._part(f"{name}.shapes", sizes)
        return _Stored(tensor.name, dtype, tensor.dims, self._part(f"{name}.values", sizes), shapes)

    def _stored(self, name: str, file: str, dtype: Any, dims: Shape, sizes: Mapping[str, int]) -> _Stored:
        return _Stored(name, np.dtype(dtype), dims, self._part(f"{file}.values", sizes))

    def _part(self, name: str, sizes: Mapping[str, int]) -> PartFile:
        self._files.append(PartFile(self._folder, name, sizes))
        return self._files[-1]


def _whole(block: OutputBlock, column: OutputColumn, stored: _Stored) -> Array:
    if column.whole is None:  # no row succeeded
        array = np.zeros((block.count, *stored.dims), stored.dtype)
    else:
        array = np.ascontiguousarray(plain(column.whole), stored.dtype)
    if block.failures:
        array = array.copy()
        array[list(block.failures)] = _empty(stored.dtype)
    return array


def _append_varying(block: OutputBlock, column: OutputColumn, stored: _Stored, shapes: PartFile) -> None:
    if column.whole is not None and not block.failures:
        array = np.ascontiguousarray(plain(column.whole), stored.dtype)
        stored.values.write(array.tobytes())
        shapes.write(np.tile(np.array(array.shape[1:], np.int64), (block.count, 1)).tobytes())
        return
    for offset in range(block.count):
        row = None if offset in block.failures else column.row(offset)
        if row is None:
            shapes.write(np.zeros(len(stored.dims), np.int64).tobytes())
        else:
            shapes.write(np.array(row.shape, np.int64).tobytes())
            stored.values.write(np.ascontiguousarray(plain(row), stored.dtype).tobytes())


def _empty(dtype: np.dtype[Any]) -> Any:
    return np.nan if dtype.kind == "f" else 0


def _add(archive: zipfile.ZipFile, stored: _Stored, rows: int) -> None:
    shapes = None if stored.shapes is None else _shapes(stored.shapes, rows, len(stored.dims))
    dims = stored.dims if shapes is None else _common_shape(shapes)
    if dims is not None:
        _add_array(archive, stored.name, stored.dtype, (rows, *dims), stored.values.path)
        return
    count = stored.values.size // stored.dtype.itemsize
    _add_array(archive, stored.name, stored.dtype, (count,), stored.values.path)
    assert stored.shapes is not None
    shape = (rows, len(stored.dims))
    _add_array(archive, f"{stored.name}.shapes", np.dtype(np.int64), shape, stored.shapes.path)


def _shapes(file: PartFile, rows: int, axes: int) -> Array:
    values = np.memmap(file.path, np.int64, "r") if file.size else np.empty(0, np.int64)
    return np.asarray(values).reshape(rows, axes)


def _common_shape(shapes: Array) -> Shape | None:
    """Return the shape of all rows; None if they differ, as a failed row does."""
    if not len(shapes) or not (shapes == shapes[0]).all():
        return None
    return tuple(int(size) for size in shapes[0])


def _add_array(archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: Sequence[int], path: Path) -> None:
    member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(shape)}
    with archive.open(member, "w", force_zip64=True) as target, path.open("rb") as values:
        np.lib.format.write_array_header_1_0(target, header)
        shutil.copyfileobj(values, target, _COPY_BYTES)

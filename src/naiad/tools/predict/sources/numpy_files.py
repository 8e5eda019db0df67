"""Rows of `.npy` and `.npz` files, along the first axis of their arrays. They are read in pieces, not mapped."""

import math
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, TypeVar

import numpy as np

from naiad.core.errors import InferError, invalid_argument
from naiad.core.tensor import Array
from naiad.tools.predict.job_signature import RowSignature
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.rows.chunk import FileRows
from naiad.tools.predict.sources.row_source import (
    ColumnPlan,
    as_infer_error,
    element_count,
    order_note,
    plan_columns,
    single_input,
    unreadable,
)
from naiad.tools.predict.stores.object_path import FilePath
from naiad.tools.values.conversion import array_of_array
from naiad.tools.values.tensor import InputError, ModelTensor

_T = TypeVar("_T")
_DAMAGED = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError)


class _ArrayStream:
    """An array in a file, read row by row from its beginning."""

    def __init__(self, file: IO[bytes], what: str) -> None:
        """Read the header. Raises ValueError for an array that cannot be read in order."""
        self._file = file
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{what} has version {version} of the format; expected 1.0 or 2.0")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, self.dtype = read(file)
        if self.dtype.hasobject:
            raise ValueError(f"{what} has Python objects, which are not read; strings need a dtype of S or U")
        if is_fortran:
            raise ValueError(f"{what} is in Fortran order; save numpy.ascontiguousarray(array)")
        if not shape:
            raise ValueError(f"{what} is a single value; expected rows along the first axis")
        self.rows = int(shape[0])
        self.row_shape = tuple(int(size) for size in shape[1:])
        self.row_bytes = math.prod(self.row_shape) * self.dtype.itemsize

    def read(self, count: int) -> Array:
        """Return the next rows. Raises ValueError where the file ends too early."""
        array = np.empty((count, *self.row_shape), self.dtype)
        if not array.size:
            return array
        view = array.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(view):
            piece = self._file.readinto(view[done:])  # type: ignore[attr-defined]  # of files and archive members
            if not piece:
                raise ValueError("the file ends within the array")
            done += piece
        return array

    def skip(self, count: int) -> None:
        self._file.seek(count * self.row_bytes, 1)

    def close(self) -> None:
        self._file.close()


class NumpySource:
    """An `.npy` file for a model with one input, or an `.npz` file with an array for each."""

    def __init__(self, path: FilePath, job: PredictJob, signature: RowSignature) -> None:
        """Check datatypes and shapes of all arrays. Raises InferError and OSError."""
        self.path = path
        self._archive: zipfile.ZipFile | None = None
        self._arrays: dict[str, _ArrayStream] = {}
        self._tensors: dict[str, ModelTensor] = {}
        self._plan, self._is_archive = self._planned(job, signature)
        self.note = self._plan.note
        self._open()
        try:
            self.rows = self._checked(signature)
        except BaseException:
            self.close()
            raise
        self._done = self._passed = 0
        self.total_bytes = path.stat().st_size

    @property
    def done_bytes(self) -> int:
        """How much of the file is read, about: an archive may be compressed."""
        return self.total_bytes * self._done // self.rows if self.rows else self.total_bytes

    @property
    def position(self) -> int:
        """Number of the next row: it is found without reading those before."""
        return self._done

    def seek(self, position: int, row: int) -> None:
        """Go to a row of a source from which nothing is read yet."""
        self.skip(row)

    def skip(self, count: int) -> int:
        """Pass over rows; return how many there were."""
        count = min(count, self.rows - self._done)
        self._done += count
        self._passed += count
        return count

    def be_careful(self) -> None:
        """Do nothing: a row is read without those behind it."""

    def damage_end(self, row: int) -> int:
        """Return the number of rows: what comes behind is found by reading."""
        return self.rows

    def read(self, max_rows: int, max_bytes: int) -> FileRows | None:
        """Return the next rows; None at the end."""
        arrays = self._arrays
        row_bytes = max(1, sum(array.row_bytes for array in arrays.values()))
        count = min(max_rows, self.rows - self._done, max(1, max_bytes // row_bytes))
        if count <= 0:
            return None
        if self._passed:
            self._guarded(self._skip)
        columns = self._guarded(lambda: {name: self._read(name, count) for name in arrays})
        rows = self._plan.rows(self.path.name, self._done, count, columns)
        self._done += count
        return rows

    def close(self) -> None:
        """Close the file."""
        for array in self._arrays.values():
            array.close()
        self._arrays = {}
        if self._archive is not None:
            self._archive.close()
            self._archive = None

    def _skip(self) -> None:
        """Go behind the rows that were passed over."""
        for array in self._arrays.values():
            array.skip(self._passed)
        self._passed = 0

    def _read(self, name: str, count: int) -> Array:
        array = self._arrays[name].read(count)
        tensor = self._tensors.get(name)
        return _as_row(array, tensor) if tensor is not None else array

    def _planned(self, job: PredictJob, signature: RowSignature) -> tuple[ColumnPlan, bool]:
        if self.path.suffix.lower() == ".npy":
            if job.keys:
                raise invalid_argument(f"{self.path}: an .npy file has no columns for --key; use .npz")
            name = single_input(signature, self.path, "an .npy file").name
            note = order_note(self.path, name, signature.features.names) if signature.features.names else ""
            return ColumnPlan({name: [name]}, (), note=note), False
        with self.path.open("rb") as file:
            try:
                with zipfile.ZipFile(file) as archive:
                    names = [each.removesuffix(".npy") for each in archive.namelist()]
            except _DAMAGED as error:
                raise unreadable(self.path, "an .npz file", error) from None
        return plan_columns(job, signature, self.path, names), True

    def _open(self) -> None:
        file = self.path.open("rb")
        try:
            if not self._is_archive:
                self._arrays[self._plan.columns[0]] = _ArrayStream(file, "the array")
                return
            self._archive = zipfile.ZipFile(file)
            for name in self._plan.columns:
                self._arrays[name] = _ArrayStream(self._archive.open(f"{name}.npy"), f"array '{name}'")
        except _DAMAGED as error:
            self.close()
            file.close()
            raise unreadable(self.path, f"an {self.path.suffix} file", error) from None

    def _checked(self, signature: RowSignature) -> int:
        for input_name, names in self._plan.inputs.items():
            for name in names:
                if len(names) == 1:
                    self._tensors[name] = signature.inputs[input_name]
                    self._check(name, signature.inputs[input_name])
        counts = {name: array.rows for name, array in self._arrays.items()}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"'{name}' has {count}" for name, count in counts.items())
            raise invalid_argument(f"{self.path}: expected as many rows in each array; {found}")
        return next(iter(counts.values()))

    def _check(self, name: str, tensor: ModelTensor) -> None:
        array = self._arrays[name]
        try:
            sample = _as_row(np.zeros((1, *array.row_shape), array.dtype), tensor)[0]
            array_of_array(tensor, np.asarray(sample), f"array '{name}', a row along the first axis")
        except InputError as error:
            raise as_infer_error(self.path, error) from None

    def _guarded(self, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except InferError:
            raise
        except _DAMAGED as error:
            raise unreadable(self.path, f"an {self.path.suffix} file", error) from None


def _as_row(array: Array, tensor: ModelTensor) -> Array:
    """Return values of one dimension as tensors of one element."""
    if array.ndim == 1 and tensor.dims and element_count(tensor) == 1:
        return array.reshape(len(array), *tensor.dims)
    return array

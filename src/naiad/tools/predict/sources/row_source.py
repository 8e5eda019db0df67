"""What all formats have in common: a stream of rows, and which column of a file is which input."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from naiad.config.tensors.features import Features
from naiad.core.errors import InferError, excerpt, invalid_argument
from naiad.core.tensor import Shape
from naiad.tools.predict.job_signature import RowSignature
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.rows.chunk import ABSENT, Column, FileRows
from naiad.tools.predict.rows.row_tensors import names_of
from naiad.tools.predict.stores.object_path import FilePath, FolderPath
from naiad.tools.values.tensor import InputError, ModelTensor


class RowSource(Protocol):
    """Rows of one file, or of a group of files with a row each. It reads in order, with constant memory.

    Making one checks what the head of the file shows, and raises InferError if no row could fit the model.
    """

    total_bytes: int
    note: str
    """How columns became inputs where names say nothing; "" if they do."""

    @property
    def path(self) -> FilePath | FolderPath:
        """What is read."""

    @property
    def done_bytes(self) -> int:
        """How much of `total_bytes` is read."""

    @property
    def position(self) -> int:
        """Where the next row begins, for `seek` of another source of the same file."""

    def seek(self, position: int, row: int) -> None:
        """Go to the row with this number in the file, which begins at `position`. Raises OSError and InferError."""

    def skip(self, count: int) -> int:
        """Pass over rows without converting them; return how many there were. Raises OSError and InferError."""

    def read(self, max_rows: int, max_bytes: int) -> FileRows | None:
        """Return the next rows, at least one; None at the end. Raises OSError and InferError.

        It stops before `max_rows` when the rows have `max_bytes`.
        """

    def close(self) -> None:
        """Close the file."""


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """Which columns become inputs and keys."""

    inputs: Mapping[str, Sequence[str]]
    """Input -> its column; several are its elements, in order."""
    keys: Sequence[str]
    codes: Mapping[str, Mapping[object, int]] = field(default_factory=dict)
    """Column -> category to the number that the model takes for it."""
    dims: Mapping[str, Shape] = field(default_factory=dict)
    """Input of several columns -> its shape."""
    note: str = ""
    """How columns became inputs, where the names say nothing."""

    @property
    def columns(self) -> list[str]:
        """All columns, each once."""
        return list(dict.fromkeys([*(name for names in self.inputs.values() for name in names), *self.keys]))

    def rows(self, file: str, first: int, count: int, values: Mapping[str, Column]) -> FileRows:
        """Return rows of a file; `values` has the columns that exist."""
        failures: dict[int, str] = {}
        coded = self.coded(values, failures)
        columns = {
            name: _joined([coded[each] for each in names], self.dims.get(name)) for name, names in self.inputs.items()
        }
        keys = {name: _listed(values[name]) for name in self.keys}
        return FileRows(file, first, count, columns, keys, failures)

    def coded(self, values: Mapping[str, Column], failures: dict[int, str]) -> Mapping[str, Column]:
        """Return columns with numbers for categories; a row with an unknown category is added to `failures`."""
        if not self.codes:
            return values
        found = dict(values)
        for name, codes in self.codes.items():
            found[name] = column = []
            for offset, value in enumerate(_listed(values[name])):
                is_null = value is None or value != value
                code = codes.get(value) if isinstance(value, (str, int, float)) else None
                column.append(code)
                if code is None and not is_null:
                    failures.setdefault(offset, f"column '{name}' has no category {value!r}; it has {_known(codes)}")
        return found


def _listed(values: Column) -> Sequence[Any]:
    if isinstance(values, np.ndarray):
        listed: list[Any] = values.tolist()
        return listed
    return [None if value is ABSENT else value for value in values]


def _known(codes: Mapping[object, int]) -> str:
    return excerpt(", ".join(repr(name) for name in {code: name for name, code in codes.items()}.values()))


def _joined(columns: Sequence[Column], dims: Shape | None) -> Column:
    if len(columns) == 1:
        return columns[0]
    arrays = [column for column in columns if isinstance(column, np.ndarray) and column.ndim == 1]
    if dims is not None and len(arrays) == len(columns):
        return np.stack(arrays, axis=1).reshape(len(arrays[0]), *dims)
    listed = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns]
    return [ABSENT if ABSENT in row else list(row) for row in zip(*listed, strict=True)]


def named_columns(job: PredictJob, signature: RowSignature) -> dict[str, list[str]]:
    """Return the columns that the job gives to inputs, and a column of its own name for each other input."""
    given: dict[str, list[str]] = {}
    for column, name in job.columns.items():
        given.setdefault(name, []).append(column)
    return {name: given.get(name, [name]) for name in signature.inputs}


def plan_columns(job: PredictJob, signature: RowSignature, path: FilePath, columns: Sequence[str]) -> ColumnPlan:
    """Return the plan for a file with these columns. Raises InferError if an input or a key has none.

    An input without a column of its name has `NAME_0`, `NAME_1` and so on. The only input of a model has the columns
    that the model was trained on; if it does not know them, all columns that are no keys, if they are as many as its
    elements.
    """
    check_keys(job.keys, path, columns)
    features = signature.features
    inputs: dict[str, Sequence[str]] = {}
    note = ""
    for name, wanted in named_columns(job, signature).items():
        found = _find(signature, signature.inputs[name], wanted, columns, job)
        if not found and _is_only(signature, name) and name not in job.columns.values():
            found = _by_features(signature, job, path, columns)
            note = "" if features.names or not found else order_note(path, name, found)
        if found:
            inputs[name] = found
        elif not signature.inputs[name].is_optional or name in job.columns.values():
            raise invalid_argument(
                f"{path}: no column {names_of(wanted)} for the input '{name}' of model '{signature.model}'; the file "
                f"has {names_of(columns)}, the model takes {names_of(signature.inputs)}; name it with "
                f"--column COLUMN={name}"
            )
    dims = {name: signature.inputs[name].dims for name, names in inputs.items() if len(names) > 1}
    plan = ColumnPlan(inputs, job.keys, _codes(features, inputs), dims, note)
    counts = Counter(columns)
    for column in plan.columns:
        if counts[column] > 1:
            raise invalid_argument(
                f"{path}: {counts[column]} columns have the name '{column}', and one is needed; rename all but one"
            )
    return plan


def order_note(path: FilePath, name: str, columns: Sequence[str]) -> str:
    """Return the note about columns that are taken in their order, because the model or the file has no names."""
    return f"{path}: the input '{name}' has no columns by name; it takes them in this order: {names_of(columns)}"


def _codes(features: Features, inputs: Mapping[str, Sequence[str]]) -> dict[str, dict[object, int]]:
    """Return the numbers of categories by column; files with text alone have numbers as text."""
    columns = dict(zip(features.names, next(iter(inputs.values()), ()), strict=False))
    return {
        columns[name]: {key: code for code, each in enumerate(known) for key in (str(each), each)}
        for name, known in features.categories.items()
        if name in columns
    }


def check_keys(keys: Sequence[str], path: FilePath, columns: Sequence[str]) -> None:
    """Raise InferError unless a file has all columns that the output repeats."""
    for key in keys:
        if key not in columns:
            raise invalid_argument(f"{path}: no column '{key}', which --key names; it has {names_of(columns)}")


def _find(
    signature: RowSignature, tensor: ModelTensor, wanted: Sequence[str], columns: Sequence[str], job: PredictJob
) -> Sequence[str]:
    if all(column in columns for column in wanted):
        return wanted
    size = element_count(tensor)
    if tensor.name in job.columns.values() or size <= 0:
        return ()
    numbered = [f"{tensor.name}_{index}" for index in range(size)]
    if all(column in columns for column in numbered):
        return numbered
    return ()


def _is_only(signature: RowSignature, name: str) -> bool:
    return [each.name for each in signature.required] == [name]


def _by_features(signature: RowSignature, job: PredictJob, path: FilePath, columns: Sequence[str]) -> Sequence[str]:
    """Return the columns of the only input: by the names that the model has, otherwise all that are no keys.

    Raises InferError with both lists for a file that lacks columns of the model.
    """
    if names := signature.features.names:
        try:
            return signature.features.columns(columns, str(path))
        except InferError as error:
            (tensor,) = signature.required
            raise invalid_argument(
                f"{error.message}; rename them, or give a column for each feature, in this order: --column "
                f"{names[0]}={tensor.name} ..."
            ) from None
    others = [column for column in columns if column not in job.keys]
    return others if len(others) == element_count(signature.required[0]) else ()


def element_count(tensor: ModelTensor) -> int:
    """Return the elements of a row; -1 if it varies."""
    count = 1
    for size in tensor.dims:
        if size < 0:
            return -1
        count *= size
    return count


def single_input(signature: RowSignature, path: FilePath | FolderPath, kind: str) -> ModelTensor:
    """Return the only input that a row needs. Raises InferError for a model with several."""
    if len(signature.required) != 1:
        raise invalid_argument(
            f"{path}: {kind} has values of one input; model '{signature.model}' needs "
            f"{names_of(each.name for each in signature.required)}; use a format with columns, such as .npz"
        )
    return signature.required[0]


def as_infer_error(path: FilePath, error: InputError | Exception) -> InferError:
    """Return an error about a whole file."""
    return invalid_argument(f"{path}: {error}")


def unreadable(path: FilePath, what: str, error: Any) -> InferError:
    """Return the error for a file that has another format than its name says."""
    return invalid_argument(f"{path}: not readable as {what}: {error}")

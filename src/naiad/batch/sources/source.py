"""What all formats have in common: a stream of rows, and which column of a file is which input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from naiad.batch.job import PredictJob
from naiad.batch.rows.chunk import ABSENT, Column, FileRows
from naiad.batch.rows.tensors import names_of
from naiad.batch.signature import ModelSignature
from naiad.core.errors import InferError, invalid_argument
from naiad.values.tensor import InputError, ModelTensor


class Source(Protocol):
    """Rows of one file, or of a group of files with a row each. It reads in order, with constant memory.

    Making one checks what the head of the file shows, and raises InferError if no row could fit the model.
    """

    path: Path
    total_bytes: int

    @property
    def done_bytes(self) -> int:
        """How much of `total_bytes` is read."""

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

    @property
    def columns(self) -> list[str]:
        """All columns, each once."""
        return list(dict.fromkeys([*(name for names in self.inputs.values() for name in names), *self.keys]))

    def rows(self, file: str, first: int, count: int, values: Mapping[str, Column]) -> FileRows:
        """Return rows of a file; `values` has the columns that exist."""
        columns = {name: _joined([values[each] for each in names]) for name, names in self.inputs.items()}
        return FileRows(file, first, count, columns, {name: _listed(values[name]) for name in self.keys})


def _listed(values: Column) -> Sequence[Any]:
    if isinstance(values, np.ndarray):
        listed: list[Any] = values.tolist()
        return listed
    return [None if value is ABSENT else value for value in values]


def _joined(columns: Sequence[Column]) -> Column:
    if len(columns) == 1:
        return columns[0]
    return [ABSENT if ABSENT in row else list(row) for row in zip(*columns, strict=True)]


def named_columns(job: PredictJob, signature: ModelSignature) -> dict[str, list[str]]:
    """Return the columns that the job gives to inputs, and a column of its own name for each other input."""
    given: dict[str, list[str]] = {}
    for column, name in job.columns.items():
        given.setdefault(name, []).append(column)
    return {name: given.get(name, [name]) for name in signature.inputs}


def plan_columns(job: PredictJob, signature: ModelSignature, path: Path, columns: Sequence[str]) -> ColumnPlan:
    """Return the plan for a file with these columns. Raises InferError if an input or a key has none.

    An input without a column of its name has `NAME_0`, `NAME_1` and so on; the only input of a model has all columns
    that are no keys, if they are as many as its elements.
    """
    check_keys(job.keys, path, columns)
    inputs: dict[str, Sequence[str]] = {}
    for name, wanted in named_columns(job, signature).items():
        found = _find(signature, signature.inputs[name], wanted, columns, job)
        if found:
            inputs[name] = found
        elif not signature.inputs[name].is_optional or name in job.columns.values():
            raise invalid_argument(
                f"{path}: no column {names_of(wanted)} for the input '{name}' of model '{signature.model}'; the file "
                f"has {names_of(columns)}; name it with --column COLUMN={name}"
            )
    return ColumnPlan(inputs, job.keys)


def check_keys(keys: Sequence[str], path: Path, columns: Sequence[str]) -> None:
    """Raise InferError unless a file has all columns that the output repeats."""
    for key in keys:
        if key not in columns:
            raise invalid_argument(f"{path}: no column '{key}', which --key names; it has {names_of(columns)}")


def _find(
    signature: ModelSignature, tensor: ModelTensor, wanted: Sequence[str], columns: Sequence[str], job: PredictJob
) -> Sequence[str]:
    if all(column in columns for column in wanted):
        return wanted
    size = element_count(tensor)
    if tensor.name in job.columns.values() or size <= 0:
        return ()
    numbered = [f"{tensor.name}_{index}" for index in range(size)]
    if all(column in columns for column in numbered):
        return numbered
    others = [column for column in columns if column not in job.keys]
    is_only = [each.name for each in signature.required] == [tensor.name]
    return others if is_only and len(others) == size else ()


def element_count(tensor: ModelTensor) -> int:
    """Return the elements of a row; -1 if it varies."""
    count = 1
    for size in tensor.dims:
        if size < 0:
            return -1
        count *= size
    return count


def single_input(signature: ModelSignature, path: Path, kind: str) -> ModelTensor:
    """Return the only input that a row needs. Raises InferError for a model with several."""
    if len(signature.required) != 1:
        raise invalid_argument(
            f"{path}: {kind} has values of one input; model '{signature.model}' needs "
            f"{names_of(each.name for each in signature.required)}; use a format with columns, such as .npz"
        )
    return signature.required[0]


def as_infer_error(path: Path, error: InputError | Exception) -> InferError:
    """Return an error about a whole file."""
    return invalid_argument(f"{path}: {error}")


def unreadable(path: Path, what: str, error: Any) -> InferError:
    """Return the error for a file that has another format than its name says."""
    return invalid_argument(f"{path}: not readable as {what}: {error}")

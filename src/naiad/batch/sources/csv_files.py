"""Rows of `.csv` files with a header. Numbers and strings follow the datatypes of the model."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from naiad.batch.job import PredictJob
from naiad.batch.rows.chunk import Column, FileRows
from naiad.batch.signature import ModelSignature
from naiad.batch.sources.source import element_count, plan_columns, unreadable
from naiad.core.datatype import DataType
from naiad.values.conversion import is_float
from naiad.values.json_values import parse_text
from naiad.values.tensor import InputError, ModelTensor

_MAX_CELL_CHARACTERS = 16 << 20
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


class CsvSource:
    """One file, UTF-8. A cell is a value, or a list in JSON for an input with several elements."""

    def __init__(self, path: Path, job: PredictJob, signature: ModelSignature) -> None:
        """Read the header. Raises OSError, and InferError if an input or key has no column."""
        self.path = path
        self.total_bytes = path.stat().st_size
        csv.field_size_limit(max(csv.field_size_limit(), _MAX_CELL_CHARACTERS))
        # Bytes that are no UTF-8 reach the model unchanged.
        self._file = path.open("r", encoding="utf-8-sig", errors="surrogateescape", newline="")
        self._cells = 0
        self._reader = csv.reader(self._counted())
        self._row = 0
        try:
            header = next(self._reader, None)
            if not header:
                raise unreadable(path, "a .csv file", "it has no header line with the names of the columns")
            self._plan = plan_columns(job, signature, path, header)
        except csv.Error as error:
            self.close()
            raise unreadable(path, "a .csv file", error) from None
        except BaseException:
            self.close()
            raise
        self.note = self._plan.note
        self._width = len(header)
        self._places = {name: header.index(name) for name in self._plan.columns}
        self._tensors = signature.inputs

    @property
    def done_bytes(self) -> int:
        """How much of the file is read, counted in characters."""
        return min(self._cells, self.total_bytes)

    def skip(self, count: int) -> int:
        """Pass over rows; return how many there were."""
        for done in range(count):
            if self._next() is None:
                return done
            self._row += 1
        return count

    def read(self, max_rows: int, max_bytes: int) -> FileRows | None:
        """Return the next rows; None at the end."""
        first, start = self._row, self._cells
        table: list[list[str]] = []
        failures: dict[int, str] = {}
        while len(table) < max_rows and self._cells - start < max_bytes:
            cells = self._next()
            if cells is None:
                break
            if isinstance(cells, str):
                failures[len(table)] = cells
                cells = [""] * self._width
            table.append(cells)
        if not table:
            return None
        self._row += len(table)
        texts: dict[str, Sequence[str]] = {
            name: [row[place] for row in table] for name, place in self._places.items()
        }
        coded: dict[int, str] = {}
        columns = {name: self._input(name, names, texts, coded) for name, names in self._plan.inputs.items()}
        failures = {**coded, **failures}
        keys = {name: [_clean(text) for text in texts[name]] for name in self._plan.keys}
        return FileRows(self.path.name, first, len(table), columns, keys, failures)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _input(
        self, name: str, names: Sequence[str], texts: Mapping[str, Sequence[str]], failures: dict[int, str]
    ) -> Column:
        codes = self._plan.codes
        if not any(each in codes for each in names):
            return _column(self._tensors[name], [texts[each] for each in names])
        values: dict[str, Column] = {
            each: [text.strip() or None for text in texts[each]] if each in codes else [*map(_number, texts[each])]
            for each in names
        }
        coded = self._plan.coded(values, failures)
        return [list(row) for row in zip(*(coded[each] for each in names), strict=True)]

    def _counted(self) -> Any:
        for line in self._file:
            self._cells += len(line)
            yield line

    def _next(self) -> list[str] | str | None:
        """Return the cells of the next row, or why it has none; None at the end."""
        while True:
            try:
                cells = next(self._reader, None)
            except csv.Error as error:
                return f"not a row of a .csv file: {error}"
            if cells is None:
                return None
            if len(cells) == self._width:
                return cells
            if cells:
                return f"expected {self._width} cells, as in the header, got {len(cells)}"


def _column(tensor: ModelTensor, columns: Sequence[Sequence[str]]) -> Column:
    """Return the values of an input, whose elements are in one or several columns."""
    if tensor.datatype is DataType.BYTES:
        return _values(tensor, columns, _string)
    numbers = _numbers(tensor, columns)
    if numbers is not None:
        return numbers
    return _values(tensor, columns, _boolean if tensor.datatype is DataType.BOOL else _number)


def _numbers(tensor: ModelTensor, columns: Sequence[Sequence[str]]) -> Column | None:
    """Return plain numbers as one array; None if a cell is something else."""
    size = element_count(tensor)
    if tensor.datatype is DataType.BOOL or size not in (-1, len(columns)) or (size == -1 and len(tensor.dims) != 1):
        return None
    try:
        dtype = np.float64 if is_float(tensor.datatype) else np.int64
        stacked = np.stack([np.array(column).astype(dtype) for column in columns], axis=1)
    except (ValueError, OverflowError):
        return None
    dims = [len(columns) if each == -1 else each for each in tensor.dims]
    return stacked.reshape(len(stacked), *dims)


def _values(tensor: ModelTensor, columns: Sequence[Sequence[str]], read: Callable[[str], Any]) -> Column:
    if len(columns) > 1:
        return [[read(text) for text in row] for row in zip(*columns, strict=True)]
    size = element_count(tensor)
    return [_list(tensor, text) if size != 1 and text.lstrip()[:1] == "[" else read(text) for text in columns[0]]


def _list(tensor: ModelTensor, text: str) -> Any:
    """Return the list of a cell; a string may begin with a bracket and be none."""
    try:
        value = parse_text(text.encode("utf-8", "surrogatepass"), "the cell")
    except InputError:
        value = None
    if tensor.datatype is DataType.BYTES and not (isinstance(value, list) and all(type(e) is str for e in value)):
        return _string(text)
    return text if value is None else value


def _string(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _number(text: str) -> Any:
    if not text.strip():
        return None
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _boolean(text: str) -> Any:
    return None if not text.strip() else _BOOLEANS.get(text.strip().lower(), text)


def _clean(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

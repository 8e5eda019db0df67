"""Rows of `.csv` files with a header. Numbers and strings follow the datatypes of the model."""

import csv
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from typing import Any, TypeAlias

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.errors import excerpt
from naiad.core.tensor import Array
from naiad.tools.predict.job_signature import RowSignature
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.rows.chunk import Column, FileRows
from naiad.tools.predict.sources.bounded_lines import BoundedLines
from naiad.tools.predict.sources.csv_numbers import BLANK_LINES, plain_lines, read_floats, split_cells
from naiad.tools.predict.sources.row_source import element_count, plan_columns, unreadable
from naiad.tools.predict.stores.object_path import FilePath
from naiad.tools.values.conversion import is_float
from naiad.tools.values.json_values import parse_text
from naiad.tools.values.tensor import InputError, ModelTensor

_MAX_CELL_CHARACTERS = 16 << 20
_BYTE_ORDER_MARK = "\ufeff"
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_Block: TypeAlias = tuple[int, Mapping[str, Array], Mapping[str, Sequence[str]]]
"""Number of rows, numbers by column, and texts by column."""


class CsvSource:
    """One file, UTF-8. A cell is a value, or a list in JSON for an input with several elements."""

    def __init__(self, path: FilePath, job: PredictJob, signature: RowSignature) -> None:
        """Read the header. Raises OSError, and InferError if an input or key has no column."""
        self.path = path
        self.total_bytes = path.stat().st_size
        csv.field_size_limit(max(csv.field_size_limit(), _MAX_CELL_CHARACTERS))
        self._file = _open_text(path, 0)
        first = next(self._file, "")
        self._ahead = deque([first.removeprefix(_BYTE_ORDER_MARK)] if first else ())
        """Lines that are read and belong to no row yet."""
        self._done = _size(first) - sum(map(_size, self._ahead))
        self._lines = 0
        self._is_at_end = False
        """Whether the reader of cells has asked for a line after the last one."""
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
        self._picture_input = signature.pictures.name if signature.pictures is not None else ""
        self._floats = self._float_columns()

    @property
    def done_bytes(self) -> int:
        """How much of the file is read."""
        return self._done

    @property
    def position(self) -> int:
        """Byte of the file at which the next line begins."""
        return self._done

    def seek(self, position: int, row: int) -> None:
        """Go to the row whose first line begins at a byte."""
        self._file.close()
        self._file = _open_text(self.path, position)
        self._ahead.clear()
        self._reader = csv.reader(self._counted())
        self._done, self._row = position, row
        self._is_at_end = False

    def skip(self, count: int) -> int:
        """Pass over rows; return how many there were. Lines without quotes are not split into cells."""
        for done in range(count):
            line = self._line()
            while line in BLANK_LINES:
                line = self._line()
            if line is not None and '"' in line:
                self._put_back([line])
                self._next()
            elif line is None:
                return done
            self._row += 1
        return count

    def read(self, max_rows: int, max_bytes: int) -> FileRows | None:
        """Return the next rows; None at the end."""
        first = self._row
        failures: dict[int, str] = {}
        count, floats, texts = self._plain(max_rows, max_bytes) or self._cell_by_cell(max_rows, max_bytes, failures)
        if not count:
            return None
        self._row += count
        coded: dict[int, str] = {}
        columns = {name: self._input(name, names, texts, floats, coded) for name, names in self._plan.inputs.items()}
        failures = {**coded, **failures}
        keys = {name: _keys(name, texts[name], failures) for name in self._plan.keys}
        return FileRows(self.path.name, first, count, columns, keys, failures)

    def _plain(self, max_rows: int, max_bytes: int) -> _Block | None:
        """Return the next rows, their numbers read as a whole; None if they need a look cell by cell."""
        if not self._floats:
            return None
        start = self._done
        lines: list[str] = []
        while len(lines) < max_rows and self._done - start < max_bytes:
            line = self._line()
            if line is None:
                break
            lines.append(line)
        names = list(self._floats)
        rows = plain_lines(lines, self._width)
        if rows:
            places = [self._places[name] for name in names]
            array = read_floats(rows, places, null_is_nan=all(self._floats.values()))
            if array is not None:
                others = [name for name in self._places if name not in self._floats or name in self._plan.keys]
                cells = split_cells(rows) if others else []
                texts = {name: [row[self._places[name]] for row in cells] for name in others}
                return len(rows), dict(zip(names, array.T, strict=True)), texts
        self._put_back(lines)
        return None

    def _cell_by_cell(self, max_rows: int, max_bytes: int, failures: dict[int, str]) -> _Block:
        """Return the next rows as text; a row that cannot be read is added to `failures`."""
        start = self._done
        table: list[list[str]] = []
        while len(table) < max_rows and self._done - start < max_bytes:
            cells = self._next()
            if cells is None:
                break
            if isinstance(cells, str):
                failures[len(table)] = cells
                cells = [""] * self._width
            table.append(cells)
        return len(table), {}, {name: [row[place] for row in table] for name, place in self._places.items()}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _more(self, first: int) -> str:
        """Return how many lines a row has that cannot be read; "" for one."""
        count = self._lines - first
        return f", after {count} lines; a quote at their begin is not closed" if count > 1 else ""

    def _float_columns(self) -> dict[str, bool]:
        """Return the columns that are elements of floating-point inputs -> whether an empty cell is NaN."""
        found: dict[str, bool] = {}
        for name, names in self._plan.inputs.items():
            tensor = self._tensors[name]
            if is_float(tensor.datatype) and _dims(tensor, len(names)) is not None:
                found.update({each: tensor.null_is_nan for each in names if each not in self._plan.codes})
        return found

    def _input(
        self,
        name: str,
        names: Sequence[str],
        texts: Mapping[str, Sequence[str]],
        floats: Mapping[str, Array],
        failures: dict[int, str],
    ) -> Column:
        tensor, codes = self._tensors[name], self._plan.codes
        if name == self._picture_input:
            return _values(tensor, [texts[each] for each in names], str)
        if not any(each in codes for each in names):
            if names[0] in floats:
                return _stacked(tensor, [floats[each] for each in names])
            return _column(tensor, [texts[each] for each in names])
        values: dict[str, Column] = {}
        for each in names:
            if each in codes:
                values[each] = [text.strip() or None for text in texts[each]]
            else:
                values[each] = floats[each] if each in floats else [*map(_number, texts[each])]
        coded = self._plan.coded(values, failures)
        if tensor.null_is_nan and all(each in codes or each in floats for each in names):
            return _stacked(tensor, [np.array(coded[each], np.float64) for each in names])
        listed = [column.tolist() if isinstance(column, np.ndarray) else column for column in map(coded.get, names)]
        return [list(row) for row in zip(*listed, strict=True)]

    def _line(self) -> str | None:
        """Return the next line; None at the end."""
        line = self._ahead.popleft() if self._ahead else next(self._file, None)
        if line is not None:
            self._done += _size(line)
        return line

    def _put_back(self, lines: Sequence[str]) -> None:
        """Have these lines be the next ones again."""
        self._ahead.extendleft(reversed(lines))
        self._done -= sum(map(_size, lines))

    def _counted(self) -> Iterator[str]:
        while (line := self._line()) is not None:
            self._lines += 1
            yield line
        self._is_at_end = True

    def _next(self) -> list[str] | str | None:
        """Return the cells of the next row, or why it has none; None at the end."""
        first = self._lines
        while True:
            try:
                cells = next(self._reader, None)
            except csv.Error as error:
                return f"not a row of a .csv file: {error}{self._more(first)}"
            if cells is None:
                return None
            if self._is_at_end:  # A row that ends with its line needs no line after it.
                return f"not a row of a .csv file: the file ends within a quoted cell{self._more(first)}"
            if len(cells) == self._width:
                return cells
            if cells:
                return f"expected {self._width} cells, as in the header, got {len(cells)}"


def _open_text(path: FilePath, position: int) -> TextIOWrapper:
    """Return the text of a file from a byte on. Bytes that are no UTF-8 reach the model unchanged."""
    file = BoundedLines(path.open("rb", buffering=0), str(path))
    file.seek(position)
    return TextIOWrapper(file, "utf-8", "surrogateescape", newline="")


def _size(line: str) -> int:
    """Return the bytes of a line in its file."""
    return len(line) if line.isascii() else len(line.encode("utf-8", "surrogateescape"))


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
    if tensor.datatype is DataType.BOOL or _dims(tensor, len(columns)) is None:
        return None
    if not all(_is_plain("".join(column)) for column in columns):
        return None
    try:
        if is_float(tensor.datatype):
            arrays = [np.fromiter(map(float, column), np.float64, len(column)) for column in columns]
        else:
            arrays = [np.fromiter(map(int, column), np.int64, len(column)) for column in columns]
    except (ValueError, OverflowError):
        return None
    if any(np.isinf(array).any() for array in arrays):
        return None
    return _stacked(tensor, arrays)


def _is_plain(text: str) -> bool:
    """Return whether a text has nothing that only Python reads as a number: `1_000`, digits of other scripts."""
    return "_" not in text and text.isascii()


def _dims(tensor: ModelTensor, count: int) -> list[int] | None:
    """Return the shape of a row of `count` plain columns; None if a cell has a list."""
    size = element_count(tensor)
    if size not in (-1, count) or (size == -1 and len(tensor.dims) != 1):
        return None
    return [count if each == -1 else each for each in tensor.dims]


def _stacked(tensor: ModelTensor, columns: Sequence[Array]) -> Array:
    dims = _dims(tensor, len(columns)) or []
    return np.stack(columns, axis=1).reshape(len(columns[0]), *dims)


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
    for convert in (int, float) if _is_plain(text) else ():
        try:
            value = convert(text)
        except ValueError:
            continue
        # Digits that no float holds are no number; `inf` is one.
        return text if convert is float and math.isinf(value) and any(map(str.isdigit, text)) else value
    return text


def _boolean(text: str) -> Any:
    return None if not text.strip() else _BOOLEANS.get(text.strip().lower(), text)


def _keys(name: str, texts: Sequence[str], failures: dict[int, str]) -> Sequence[str]:
    """Return the values of a key; rows that have another text in the output than in the file become failures."""
    if "".join(texts).isascii():
        return texts
    found = [text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in texts]
    for offset, (text, shown) in enumerate(zip(texts, found, strict=True)):
        if text != shown:
            failures.setdefault(offset, f"key '{name}' is no UTF-8: {excerpt(shown)}; convert the file with iconv")
    return found

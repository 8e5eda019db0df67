"""Output as `.csv` with a header: a column for each element; cells of failed rows are empty."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.tensor import Array
from naiad.tools.predict.rows.row_outputs import OutputBlock, OutputColumn
from naiad.tools.predict.sinks.sink import Layout, TextSink, check_names
from naiad.tools.predict.sinks.texts import is_finite, json_rows, number_texts, plain, row_texts, shortest
from naiad.tools.values.tensor import ModelTensor

MAX_COLUMNS = 100
"""More elements than this, or strings of several elements, are a list in JSON in one cell."""
_SPECIAL = re.compile(rb'[",\r\n]|^\s|\s$')


class CsvSink(TextSink):
    """Numbers of an output are columns `NAME_0`, `NAME_1` and so on; single values have the column `NAME`."""

    def __init__(self, folder: Path, sizes: Mapping[str, int], layout: Layout) -> None:
        """Raises InferError for two columns of one name."""
        names = [layout.row_name, *layout.keys]
        for name, tensor in layout.outputs.items():
            width = _width(tensor)
            names += [name] if width <= 1 else [f"{name}_{index}" for index in range(width)]
        check_names(names)
        super().__init__(folder, "rows.csv", sizes)
        self._layout = layout
        if not self.part.size:
            self.part.write(b",".join(_quoted(name.encode()) for name in names) + b"\n")

    def append(self, block: OutputBlock) -> None:
        """Write rows."""
        layout, count = self._layout, block.count
        columns = [[b"%d" % row for row in range(block.first, block.first + count)]]
        columns += [[_key(value) for value in block.keys[key]] for key in layout.keys]
        for name, tensor in layout.outputs.items():
            cells = _cells(block.columns[name], count, tensor)
            for offset in block.failures:
                cells[offset] = b"," * (max(1, _width(tensor)) - 1)
            columns.append(cells)
        self.part.write(b"\n".join(map(b",".join, zip(*columns, strict=True))) + b"\n")


def _width(tensor: ModelTensor) -> int:
    """Return the number of columns with an element each; 0 for one column with a list."""
    if -1 in tensor.dims:
        return 0
    size = int(np.prod(tensor.dims, dtype=np.int64))
    if size == 1:
        return 1
    return size if 0 < size <= MAX_COLUMNS and tensor.datatype is not DataType.BYTES else 0


def _cells(column: OutputColumn, count: int, tensor: ModelTensor) -> list[bytes]:
    width = _width(tensor)
    if not width:
        return [_quoted(text) for text in json_rows(column, count, is_single=False)]
    if column.whole is None:  # no row succeeded: all outputs of this width have one shape
        return [b""] * count
    array = plain(column.whole).reshape(count, width)
    if array.dtype == object:
        return [_quoted(element) or b'""' for element in array[:, 0]]
    if is_finite(array):
        return number_texts(array.reshape(count)) if width == 1 else row_texts(array)
    return [_numbers(row) for row in array]


def _numbers(row: Array) -> bytes:
    if is_finite(row):
        return row_texts(row[np.newaxis])[0]  # as in a block in which all rows are finite
    return ",".join(str(shortest(value)) for value in row).encode()


def _key(value: Any) -> bytes:
    if isinstance(value, bytes):
        return _quoted(value)
    return b"" if value is None else _quoted(str(value).encode("utf-8", "surrogateescape"))


def _quoted(text: bytes) -> bytes:
    return b'"%b"' % text.replace(b'"', b'""') if _SPECIAL.search(text) else text

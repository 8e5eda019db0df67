"""Floating-point numbers of plain lines of a `.csv` file, read as a whole block.

`csv.reader` makes a string of each cell, which costs several times as much. This reads only what both read in the
same way: lines without quotes, with all their cells. For other lines it returns None, and the caller reads each cell.

Lines of nothing but numbers become one array of JSON, which orjson reads in a third of the time of `numpy.loadtxt`;
`loadtxt` reads what JSON does not have: `+1`, `.5`, `nan`, and columns of text between the numbers.
"""

from collections.abc import Sequence

import numpy as np
import orjson

from naiad.core.tensor import Array

BLANK_LINES = ("\n", "\r\n", "\r", "")
_OF_NUMBERS = b"0123456789+-.eE,"


def plain_lines(lines: Sequence[str], width: int) -> list[str] | None:
    """Return the lines that are rows; None if a line has a quote or another number of cells than `width`."""
    commas = width - 1
    if all(line.count(",") == commas and '"' not in line for line in lines) and width > 1:
        return list(lines)
    found = [line for line in lines if line not in BLANK_LINES]
    if any(line.count(",") != commas or '"' in line for line in found):
        return None
    return found


def split_cells(lines: Sequence[str]) -> list[list[str]]:
    """Return the cells of plain lines."""
    return [line.rstrip("\r\n").split(",") for line in lines]


def read_floats(lines: Sequence[str], places: Sequence[int], *, null_is_nan: bool) -> Array | None:
    """Return FP64 of shape [lines, places]; None if a cell is no number. With `null_is_nan` an empty cell is NaN.

    None also where a number is infinite: the cell may have digits that no float holds.
    """
    array = _parsed(lines, places)
    if array is None and null_is_nan:
        array = _parsed([_with_nan(line) for line in lines], places)
    return None if array is None or np.isinf(array).any() else array


def _parsed(lines: Sequence[str], places: Sequence[int]) -> Array | None:
    table = _json_numbers(lines)
    if table is not None:
        return table[:, list(places)]
    try:
        array = np.loadtxt(lines, np.float64, comments=None, delimiter=",", usecols=places, ndmin=2)
    except ValueError:
        return None
    return array if len(array) == len(lines) else None  # numpy passes over lines of blanks


def _json_numbers(lines: Sequence[str]) -> Array | None:
    """Return the numbers of all cells, FP64 of shape [lines, cells]; None if JSON would read a cell differently."""
    cells = "".join(lines).encode("utf-8", "surrogateescape").replace(b"\r\n", b"\n").replace(b"\n", b",")
    text = cells.removesuffix(b",")
    # JSON has other values than numbers, and an integer without the sign of zero.
    if text.translate(None, _OF_NUMBERS) or b"-0," in text or text.endswith(b"-0"):
        return None
    try:
        values = orjson.loads(b"[%b]" % text)
        table = np.fromiter(values, np.float64, len(values))
        return table.reshape(len(lines), -1)
    except (ValueError, OverflowError):  # a number that JSON writes otherwise
        return None


def _with_nan(line: str) -> str:
    """Return a line with nan in its empty cells."""
    line = line.rstrip("\r\n").replace(",,", ",nan,").replace(",,", ",nan,")
    if line.startswith(","):
        line = f"nan{line}"
    return f"{line}nan" if line.endswith(",") or not line else line

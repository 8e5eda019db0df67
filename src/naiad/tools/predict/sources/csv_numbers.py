"""Floating-point numbers of plain lines of a `.csv` file, read as a whole block by numpy.

`csv.reader` makes a string of each cell, which costs several times as much. This reads only what both read in the
same way: lines without quotes, with all their cells. For other lines it returns None, and the caller reads each cell.
"""

from collections.abc import Sequence

import numpy as np

from naiad.core.tensor import Array

BLANK_LINES = ("\n", "\r\n", "\r", "")


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
    """Return FP64 of shape [lines, places]; None if a cell is no number. With `null_is_nan` an empty cell is NaN."""
    array = _parsed(lines, places)
    if array is None and null_is_nan:
        array = _parsed([_with_nan(line) for line in lines], places)
    return array


def _parsed(lines: Sequence[str], places: Sequence[int]) -> Array | None:
    try:
        array = np.loadtxt(lines, np.float64, comments=None, delimiter=",", usecols=places, ndmin=2)
    except ValueError:
        return None
    return array if len(array) == len(lines) else None  # numpy passes over lines of blanks


def _with_nan(line: str) -> str:
    """Return a line with nan in its empty cells."""
    line = line.rstrip("\r\n").replace(",,", ",nan,").replace(",,", ",nan,")
    if line.startswith(","):
        line = f"nan{line}"
    return f"{line}nan" if line.endswith(",") or not line else line

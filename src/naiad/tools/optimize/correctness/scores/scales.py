"""What counts as small in an output: the scale that differences are related to, from the source's answers.

Columns of one output may mean different things: a price, an age, a probability. Where columns differ by more than
a factor of 10 in size, each group of columns has its own scale. A table, which has one row for each sample, takes it
from all samples, as a single number has no scale but its own value; there, a few huge values do not count.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from naiad.core.tensor import Array

FEW_COLUMNS = 32
"""Columns up to this number are taken for quantities of their own, more for the features of one vector or map."""
_MOST_COLUMNS = 4096
_FACTOR = 10.0
"""Columns that differ by more have different scales."""
_MEDIANS = 3.0
"""A column whose root mean square is more than this many medians has a heavy tail; that of normal numbers is 1.5."""
_SHARE_OF_MEDIAN = 0.05
"""The scale of a column with a heavy tail: limits are relative to the numbers themselves, down to this share."""
_LEAST_SHARE = 1e-3
"""Of the scale of the whole output: the scale of a column with nothing but zeros."""
_LEAST_OF_SAMPLE = 0.01
"""Of the scale over all samples: the scale of a group in a sample that has hardly anything in it."""
_MOST_VALUES = 1 << 20
_FEWEST_OF_A_SAMPLE = 8
"""Elements that give a scale of a sample."""


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of one output."""

    axis: int = -1
    """The axis of the columns, counted from the last one."""
    groups: Array = field(default_factory=lambda: np.zeros(1, np.int64))
    """By column."""
    sizes: Array = field(default_factory=lambda: np.zeros(1))
    """By column, over all samples."""
    means: Array = field(default_factory=lambda: np.zeros(1))
    zeros: Array = field(default_factory=lambda: np.zeros(1))
    """By column, share of the elements."""
    is_of_all_samples: bool = False
    """The output is a table: its scale is that over all samples."""

    @property
    def columns(self) -> int:
        """The number of columns; 1 for an output without them."""
        return len(self.groups)

    def rows(self, values: Array) -> Array:
        """Return an array of rows and columns."""
        if self.columns == 1 or not values.ndim:
            return values.reshape(-1, 1)
        return np.moveaxis(values, self.axis, -1).reshape(-1, self.columns)

    def of(self, values: Array) -> Any:
        """Return the scale of each element of an answer of the source, in a shape for broadcasting."""
        sizes = self.sizes
        if not self.is_of_all_samples:
            sizes = np.maximum(self._of_sample(self.rows(values)), _LEAST_OF_SAMPLE * sizes)
        if self.columns == 1:
            return sizes[0]
        shape = [1] * values.ndim
        shape[self.axis] = self.columns
        return sizes.reshape(shape)

    def _of_sample(self, rows: Array) -> Array:
        counts = np.bincount(self.groups) * len(rows)
        squares = np.square(rows).mean(0)
        means = np.bincount(self.groups, squares) / np.maximum(np.bincount(self.groups), 1)
        own = np.sqrt(means)[self.groups]
        return np.where(counts[self.groups] < _FEWEST_OF_A_SAMPLE, np.maximum(own, self.sizes), own)


class ScaleObserver:
    """Adds up the answers of the source."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] | None = None
        self._is_same_rank = True
        self._lengths: dict[int, int] = {}
        """By axis, if it is the same in all answers."""
        self._squares: dict[int, Array] = {}
        self._sums: dict[int, Array] = {}
        self._nonzero: dict[int, Array] = {}
        self._elements = 0
        self._total = 0.0
        self._values: list[Array] = []
        self._kept = 0
        self._answers = 0

    def add(self, output: Array) -> None:
        """Add an answer with floating-point numbers."""
        values = np.where(np.isfinite(output), output, 0).astype(np.float64)
        if self._shape is None:
            self._shape = values.shape
            # The first axis of an answer to one sample is a batch, or a column of a model without one.
            axes = range(-values.ndim, 0)
            self._lengths = {axis: values.shape[axis] for axis in axes if 1 < values.shape[axis] <= _MOST_COLUMNS}
        if values.ndim != len(self._shape):
            self._lengths = {}
        for axis in [axis for axis, length in self._lengths.items() if values.shape[axis] != length]:
            del self._lengths[axis]
        for axis in self._lengths:
            rows = np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])
            for sums, added in (
                (self._squares, np.square(rows).sum(0)),
                (self._sums, rows.sum(0)),
                (self._nonzero, (rows != 0).sum(0)),
            ):
                sums[axis] = sums.get(axis, 0) + added
        self._elements += values.size
        self._answers += 1
        self._total += float(np.square(values).sum())
        if self._kept + values.size <= _MOST_VALUES:
            self._values.append(values)
            self._kept += values.size

    def scales(self) -> Scales:
        """Return the scales."""
        overall = np.sqrt(self._total / max(self._elements, 1))
        axis = self._axis()
        if axis is None:
            is_single = self._elements == self._answers
            flat = np.concatenate([each.ravel() for each in self._values] or [np.zeros(1)])
            size = _robust(flat) if is_single else overall
            mean = flat.mean() if flat.size else 0.0
            zeros = (flat == 0).mean() if flat.size else 0.0
            return Scales(
                sizes=np.array([size]), means=np.array([mean]), zeros=np.array([zeros]), is_of_all_samples=is_single
            )
        columns = self._lengths[axis]
        rows = self._elements // columns
        sizes = np.sqrt(self._squares[axis] / rows)
        is_table = rows == self._answers and columns <= FEW_COLUMNS
        if is_table and self._values:
            table = np.concatenate([np.moveaxis(each, axis, -1).reshape(-1, columns) for each in self._values])
            sizes = np.array([_robust(column) for column in table.T])
        groups = _groups(sizes, by_gaps=columns > FEW_COLUMNS)
        of_group = np.sqrt(np.bincount(groups, np.square(sizes)) / np.bincount(groups))[groups]
        return Scales(
            axis,
            groups,
            np.maximum(of_group, _LEAST_SHARE * overall * (sizes == 0)),
            self._sums[axis] / rows,
            1 - self._nonzero[axis] / rows,
            is_table,
        )

    def _axis(self) -> int | None:
        """Return the axis along which sizes differ most; the last one unless another one differs clearly more."""
        if not self._lengths:
            return None
        spreads = {axis: _spread(self._squares[axis]) for axis in self._lengths}
        last = -1 if -1 in spreads else max(spreads)
        best = max(spreads, key=lambda axis: (spreads[axis], axis))
        return best if spreads[best] > 2 * spreads[last] + np.log(_FACTOR) ** 2 / 4 else last


def _spread(squares: Array) -> float:
    logarithms = np.log(squares[squares > 0]) / 2
    return float(logarithms.var()) if len(logarithms) > 1 else 0.0


def _robust(values: Array) -> float:
    """Return the root mean square, or a share of the median where a few huge values make it up."""
    sizes = np.abs(values[values != 0])
    if not len(sizes):
        return 0.0
    with np.errstate(over="ignore"):
        size = float(np.sqrt(np.square(values).mean()))
    median = float(np.median(sizes))
    return size if size <= _MEDIANS * median else _SHARE_OF_MEDIAN * median


def _groups(sizes: Array, *, by_gaps: bool) -> Array:
    """Return the group of each column: within a factor of the greatest one, or without a gap of that factor."""
    groups = np.zeros(len(sizes), np.int64)
    number, start = 0, None
    for column in np.argsort(-sizes, kind="stable"):
        size = float(sizes[column])
        if start is not None and size * _FACTOR < start and (size > 0 or not by_gaps):
            number, start = number + 1, size
        elif start is None or by_gaps:
            start = size or start
        groups[column] = number
    return groups

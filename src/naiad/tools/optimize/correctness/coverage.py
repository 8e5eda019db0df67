"""What the samples have, and so what they cannot show: one length, masks without zeros, equal channels."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from naiad.core.datatype import is_floating
from naiad.core.tensor import Array
from naiad.tools.optimize.samples.sample_reader import digest

FEW_SAMPLES = 8
_MOST_VALUES = 4096
"""Different integers that are remembered."""
_MOST_CHANNELS = 4
KEPT = 8
"""Samples that probes are made of."""


@dataclass
class InputCoverage:
    """The values of one input over all samples."""

    name: str
    kind: str
    """Of numpy's datatype: `f`, `i`, `u`, `b`, `S`, ..."""
    low: float = np.inf
    high: float = -np.inf
    has_gaps: bool = False
    """A sample has NaN, which stands for a value that is missing."""
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    values: set[int] = field(default_factory=set)
    """Of integers."""
    texts: set[str] = field(default_factory=set)
    """Different strings, as digests."""
    contents: set[str] = field(default_factory=set)
    lows: Array | None = None
    highs: Array | None = None
    """By column, of rows of floating-point numbers with one length."""
    whole: Array | None = None
    """By column, whether it has whole numbers alone."""
    equal_axis: int | None = None
    """An axis of a few channels that are equal in all samples."""

    @property
    def is_number(self) -> bool:
        """Whether it has numbers."""
        return self.kind in "biuf"

    @property
    def is_flag(self) -> bool:
        """Whether all elements of all samples are one of 0 and 1: a mask of ones, or types of zeros."""
        return self.is_constant and self.low in (0.0, 1.0) and any(math.prod(shape) > 1 for shape in self.shapes)

    @property
    def is_constant(self) -> bool:
        """Whether all elements of all samples are equal."""
        return self.is_number and self.low == self.high

    @property
    def constant_columns(self) -> Array:
        """The columns of a table that are equal in all samples, where others are not."""
        if self.lows is None or self.highs is None or len(self.shapes) != 1:
            return np.zeros(0, np.int64)
        is_equal = self.lows == self.highs
        return np.zeros(0, np.int64) if is_equal.all() else np.flatnonzero(is_equal)

    @property
    def varying_columns(self) -> Array:
        """The columns of a table that differ between samples, all of them finite."""
        if self.lows is None or self.highs is None or len(self.shapes) != 1:
            return np.zeros(0, np.int64)
        with np.errstate(invalid="ignore"):
            is_finite = np.isfinite(self.lows) & np.isfinite(self.highs)
            return np.flatnonzero(is_finite & (self.lows < self.highs))

    def _add_row(self, row: Array) -> None:
        with np.errstate(invalid="ignore"):
            is_whole = (row == np.round(row)) | np.isnan(row)
            if self.lows is None or self.highs is None or self.whole is None:
                self.lows, self.highs, self.whole = row, row, is_whole
            elif row.shape == self.lows.shape:
                self.lows, self.highs = np.fmin(self.lows, row), np.fmax(self.highs, row)
                self.whole = self.whole & is_whole

    def add(self, array: Array) -> None:
        """Add a sample."""
        if self.kind == "f" and array.ndim == 1 and array.size <= _MOST_VALUES:
            self._add_row(array)
        if len(self.contents) < 2:
            self.contents.add(digest([{self.name: array}]))
        axis = _equal_axis(array)
        self.equal_axis = axis if not self.shapes or self.equal_axis == axis else None
        self.shapes.add(array.shape)
        if not self.is_number or not array.size:
            if len(self.texts) < _MOST_VALUES:
                self.texts.update(digest([{self.name: np.array([each], object)}]) for each in array.ravel())
            return
        numbers = array.astype(np.float64)
        self.has_gaps |= bool(np.isnan(numbers).any())
        finite = numbers[np.isfinite(numbers)]
        if finite.size:
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
        if self.kind in "iu" and len(self.values) < _MOST_VALUES:
            self.values.update(int(each) for each in np.unique(array)[:_MOST_VALUES])


class Coverage:
    """What all samples have in common. Holds a few of them."""

    def __init__(self, kept: int = KEPT) -> None:
        """Hold `kept` samples, and twice as many while they are added."""
        self.inputs: dict[str, InputCoverage] = {}
        self.samples = 0
        self._wanted = max(kept, 1)
        self._held: dict[int, Mapping[str, Array]] = {}
        self._stride = 1
        self._incomplete: tuple[int, Mapping[str, Array]] | None = None
        self._contents: set[str] = set()

    def add(self, sample: Mapping[str, Array]) -> None:
        """Add a sample, without the batch dimension."""
        index = self.samples
        self.samples += 1
        self._hold(index, sample)
        if len(self._contents) < 2:
            self._contents.add(digest([sample]))
        for name, array in sample.items():
            kind = "f" if is_floating(array.dtype) else array.dtype.kind
            self.inputs.setdefault(name, InputCoverage(name, kind)).add(array)

    @property
    def places(self) -> list[int]:
        """The indices of the samples that are held, from all parts of the data, as data is often in order of class.

        One of them has missing values, if any has.
        """
        held = sorted(self._held)
        count = min(self._wanted, len(held))
        chosen = [held[number * (len(held) - 1) // max(count - 1, 1)] for number in range(count)]
        if self._incomplete and not any(_is_incomplete(self._held[each]) for each in chosen):
            chosen[-1] = self._incomplete[0]
        return sorted(set(chosen))

    @property
    def kept(self) -> list[Mapping[str, Array]]:
        """The samples at `places`, which probes are made of."""
        return [self._held[each] if each in self._held else self._incomplete_one() for each in self.places]

    def _incomplete_one(self) -> Mapping[str, Array]:
        assert self._incomplete is not None
        return self._incomplete[1]

    def _hold(self, index: int, sample: Mapping[str, Array]) -> None:
        if self._incomplete is None and _is_incomplete(sample):
            self._incomplete = (index, sample)
        if index % self._stride:
            return
        self._held[index] = sample
        if len(self._held) >= 2 * self._wanted:
            self._stride *= 2
            self._held = {each: held for each, held in self._held.items() if each % self._stride == 0}

    @property
    def are_equal(self) -> bool:
        """Whether all samples are the same."""
        return len(self._contents) == 1

    def gaps(self) -> Iterator[str]:
        """Yield what no probe can make of the samples."""
        if self.samples == 1:
            yield "what differs between inputs: there is a single sample"
        elif self.are_equal:
            yield f"what differs between inputs: the {self.samples} samples are equal"
        elif self.samples < FEW_SAMPLES:
            yield f"the columns of outputs over all samples: {self.samples} are too few, {FEW_SAMPLES} are enough"
        for each in self.inputs.values():
            if each.kind in "iu" and not each.is_constant and each.values:
                count = len(each.values)
                yield f"integers of '{each.name}' that are not among the {count} values of the samples"
            elif not each.is_number and len(each.contents) == 1:
                yield f"other strings of '{each.name}' than the samples have, which are equal"
            elif not each.is_number:
                yield f"strings of '{each.name}' that are not among the {len(each.texts)} of the samples"
            elif each.is_constant and not each.is_flag:
                yield f"other values of '{each.name}' than {each.low:g}, which all samples have"


def variable_lengths(
    coverage: Coverage, variable: Mapping[str, Sequence[int]]
) -> Mapping[tuple[int, int], Sequence[tuple[str, int]]]:
    """Return the inputs and axes by shortest and longest length in the samples, of those that may vary.

    `variable` has the axes of samples that the source declares as variable. Without any, the only axis of integers,
    such as tokens, may vary, and that of other inputs with the same length.
    """
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for each in coverage.inputs.values():
        if len({len(shape) for shape in each.shapes}) != 1:
            continue
        rank = len(next(iter(each.shapes)))
        axes = variable.get(each.name, ()) if variable else [0] if rank == 1 and each.kind in "iub" else ()
        for axis in axes:
            lengths = {shape[axis] for shape in each.shapes} if axis < rank else {1}
            if max(lengths) > 1:
                found.setdefault((min(lengths), max(lengths)), []).append((each.name, axis))
    return found


def _is_incomplete(sample: Mapping[str, Array]) -> bool:
    return any(is_floating(array.dtype) and bool(np.isnan(array).any()) for array in sample.values())


def _equal_axis(array: Array) -> int | None:
    """Return an axis with a few channels that are all equal."""
    if not is_floating(array.dtype) or array.ndim < 3:
        return None
    for axis, length in enumerate(array.shape):
        if 2 <= length <= _MOST_CHANNELS and (array == array.take([0], axis)).all():
            return axis
    return None

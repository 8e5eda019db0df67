"""What the samples have, and so what they cannot show: one length, masks without zeros, equal channels."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from naiad.core.tensor import Array
from naiad.tools.optimize.samples.reading import digest

FEW_SAMPLES = 8
_MOST_VALUES = 4096
"""Different integers that are remembered."""
_MOST_CHANNELS = 4
_KEPT = 8
"""Samples that probes are made of."""


@dataclass
class InputCoverage:
    """The values of one input over all samples."""

    name: str
    kind: str
    """Of numpy's datatype: `f`, `i`, `u`, `b`, `S`, ..."""
    low: float = np.inf
    high: float = -np.inf
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    values: set[int] = field(default_factory=set)
    """Of integers."""
    contents: set[str] = field(default_factory=set)
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

    def add(self, array: Array) -> None:
        """Add a sample."""
        if len(self.contents) < 2:
            self.contents.add(digest([{self.name: array}]))
        axis = _equal_axis(array)
        self.equal_axis = axis if not self.shapes or self.equal_axis == axis else None
        self.shapes.add(array.shape)
        if not self.is_number or not array.size:
            return
        numbers = array.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        if finite.size:
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
        if self.kind in "iu" and len(self.values) < _MOST_VALUES:
            self.values.update(int(each) for each in np.unique(array)[:_MOST_VALUES])


class Coverage:
    """What all samples have in common. Holds the first of them."""

    def __init__(self) -> None:
        self.inputs: dict[str, InputCoverage] = {}
        self.kept: list[Mapping[str, Array]] = []
        self.samples = 0
        self._contents: set[str] = set()

    def add(self, sample: Mapping[str, Array]) -> None:
        """Add a sample, without the batch dimension."""
        self.samples += 1
        if len(self.kept) < _KEPT:
            self.kept.append(sample)
        if len(self._contents) < 2:
            self._contents.add(digest([sample]))
        for name, array in sample.items():
            self.inputs.setdefault(name, InputCoverage(name, array.dtype.kind)).add(array)

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
            elif each.is_constant and not each.is_flag:
                yield f"other values of '{each.name}' than {each.low:g}, which all samples have"


def shared_lengths(
    coverage: Coverage, variable: Mapping[str, Sequence[int]]
) -> Mapping[int, Sequence[tuple[str, int]]]:
    """Return the inputs and axes by length, of those that may vary but have one length in all samples.

    `variable` has the axes of samples that the source declares as variable. Without any, the only axis of integers,
    such as tokens, may vary, and that of other inputs with the same length.
    """
    found: dict[int, list[tuple[str, int]]] = {}
    for each in coverage.inputs.values():
        if len(each.shapes) != 1:
            continue
        (shape,) = each.shapes
        axes = variable.get(each.name, ()) if variable else [0] if len(shape) == 1 and each.kind in "iub" else ()
        for axis in axes:
            if axis < len(shape) and shape[axis] > 1:
                found.setdefault(shape[axis], []).append((each.name, axis))
    return found


def _equal_axis(array: Array) -> int | None:
    """Return an axis with a few channels that are all equal."""
    if array.dtype.kind != "f" or array.ndim < 3:
        return None
    for axis, length in enumerate(array.shape):
        if 2 <= length <= _MOST_CHANNELS and (array == array.take([0], axis)).all():
            return axis
    return None

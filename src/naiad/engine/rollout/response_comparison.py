"""Whether two responses of a model are equal within a tolerance."""

import numpy as np

from naiad.config.rollout.rollout_declaration import DEFAULT_ATOL
from naiad.core.datatype import DataType
from naiad.core.response import InferResponse
from naiad.core.tensor import Array, Buffer, TensorSpec, to_array

_FLOATS = frozenset((DataType.FP16, DataType.FP32, DataType.FP64, DataType.BF16))


class ResponseComparison:
    """Compares responses of two versions; it remembers how large the numbers of each output are."""

    def __init__(self, rtol: float, atol: float) -> None:
        """Floating-point values are equal if |found - expected| <= atol + rtol * |expected|.

        The default `atol` counts as at most `rtol` of the greatest number that the output has had: it would hide
        every difference of an output whose numbers are smaller.
        """
        self._rtol = rtol
        self._atol = atol
        self._is_bounded = atol == DEFAULT_ATOL and rtol > 0
        self._greatest: dict[str, float] = {}
        """Written by the event loop and by the thread for long responses; a number that is lost comes again."""

    def are_equal(self, expected: InferResponse, found: InferResponse) -> bool:
        """Return whether `found` has the outputs of `expected`: names, datatypes, shapes and values.

        NaN equals NaN. Values that are no floating-point numbers must be the same. Outputs may be in any order.
        """
        there = {spec.name: (spec, data) for spec, data in zip(found.header.outputs, found.data, strict=True)}
        if len(there) != len(expected.header.outputs):
            return False
        for spec, data in zip(expected.header.outputs, expected.data, strict=True):
            other = there.get(spec.name)
            if other is None or other[0] != spec or not self._is_equal(spec, data, other[1]):
                return False
        return True

    def _is_equal(self, spec: TensorSpec, expected: Buffer, found: Buffer) -> bool:
        if spec.datatype not in _FLOATS:
            return expected == found
        is_same = expected == found
        if is_same and not self._is_learning(spec.name):
            return True
        wide = np.float64 if spec.datatype is DataType.FP64 else np.float32
        one = to_array(spec, expected).astype(wide, copy=False)
        atol = self._atol_of(spec.name, one)
        if is_same or len(expected) != len(found):
            return is_same
        other = to_array(spec, found).astype(wide, copy=False)
        return bool(np.allclose(other, one, rtol=self._rtol, atol=atol, equal_nan=True))

    def _is_learning(self, name: str) -> bool:
        """Return whether greater numbers of an output would matter."""
        return self._is_bounded and self._rtol * self._greatest.get(name, 0.0) < self._atol

    def _atol_of(self, name: str, expected: Array) -> float:
        if self._is_learning(name):
            greatest = float(np.abs(expected).max(initial=0.0, where=np.isfinite(expected)))
            self._greatest[name] = max(greatest, self._greatest.get(name, 0.0))
        greatest = self._greatest.get(name, 0.0)
        return min(self._atol, self._rtol * greatest) if greatest else self._atol

"""Whether two responses of a model are equal within a tolerance."""

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer, TensorSpec, to_array

_FLOATS = frozenset((DataType.FP16, DataType.FP32, DataType.FP64, DataType.BF16))


def are_equal(expected: InferResponse, found: InferResponse, rtol: float, atol: float) -> bool:
    """Return whether `found` has the outputs of `expected`: names, datatypes, shapes and values.

    Floating-point values are equal if |found - expected| <= atol + rtol * |expected|; NaN equals NaN. Other values
    must be the same. Outputs may be in any order.
    """
    there = {spec.name: (spec, data) for spec, data in zip(found.header.outputs, found.data, strict=True)}
    if len(there) != len(expected.header.outputs):
        return False
    for spec, data in zip(expected.header.outputs, expected.data, strict=True):
        other = there.get(spec.name)
        if other is None or other[0] != spec or not _is_equal(spec, data, other[1], rtol, atol):
            return False
    return True


def _is_equal(spec: TensorSpec, expected: Buffer, found: Buffer, rtol: float, atol: float) -> bool:
    if expected == found:
        return True
    if spec.datatype not in _FLOATS or len(expected) != len(found):
        return False
    wide = np.float64 if spec.datatype is DataType.FP64 else np.float32
    one, other = (to_array(spec, data).astype(wide, copy=False) for data in (expected, found))
    return bool(np.allclose(other, one, rtol=rtol, atol=atol, equal_nan=True))

"""Whether a response has the outputs that the data asks for."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from naiad.core.errors import InferError
from naiad.core.tensor import Array, Buffer, TensorSpec, to_array, to_buffer
from naiad.perf.inputs.conversion import is_float

Body: TypeAlias = Iterable[tuple[Sequence[TensorSpec], Sequence[Buffer]]]
"""Output specs and data of each response."""
_SHOWN_CHARACTERS = 60


def validate(expected: Mapping[str, Array], body: Body, tolerance: float = 0.0) -> str:
    """Return "" if the responses have all expected outputs, otherwise the first difference.

    An output of several responses is compared in the first one that has it. With a tolerance floating-point values
    may differ by that share of the expected value; without one all bytes are equal.
    """
    outputs: dict[str, tuple[TensorSpec, Buffer]] = {}
    for specs, data in body:
        for spec, content in zip(specs, data, strict=True):
            outputs.setdefault(spec.name, (spec, content))
    for name, wanted in expected.items():
        if name not in outputs:
            return f"output '{name}': missing in the response; it has {', '.join(map(repr, outputs)) or 'none'}"
        difference = _difference(wanted, *outputs[name], tolerance)
        if difference:
            return f"output '{name}'{difference}"
    return ""


def _difference(expected: Array, spec: TensorSpec, data: Buffer, tolerance: float) -> str:
    if spec.shape != expected.shape:
        return f": expected shape {list(expected.shape)}, got {list(spec.shape)}"
    if spec.datatype.numpy == expected.dtype and bytes(data) == bytes(to_buffer(expected)):
        return ""
    try:
        got = to_array(spec, data)
    except InferError as error:
        return f": {error.message}"
    if got.dtype != expected.dtype:
        return f": expected values of {expected.dtype}, got {spec.datatype.value}"
    different = np.flatnonzero(_differs(expected, got, tolerance if is_float(spec.datatype) else 0.0))
    if not different.size:
        return ""
    index = tuple(int(part) for part in np.unravel_index(different[0], expected.shape))
    return f"{list(index)}: expected {_shown(expected[index])}, got {_shown(got[index])}"


def _differs(expected: Array, got: Array, tolerance: float) -> Array:
    if tolerance:
        wide, found = expected.astype(np.float64), got.astype(np.float64)
        return np.asarray(~np.isclose(found, wide, rtol=tolerance, atol=0.0, equal_nan=True))
    if expected.dtype == np.object_:
        return np.asarray(expected != got, bool)
    size = expected.dtype.itemsize
    pairs = (np.ascontiguousarray(each).reshape(-1).view(np.uint8).reshape(-1, size) for each in (expected, got))
    return np.asarray(np.not_equal(*pairs).any(axis=1))


def _shown(value: object) -> str:
    return (repr(value) if isinstance(value, bytes) else str(value))[:_SHOWN_CHARACTERS]

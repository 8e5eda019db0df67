"""Classification: an output's largest values, with their indices and labels, instead of the tensor."""

import math
from collections.abc import Sequence

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Array, Buffer, Shape, TensorSpec, encode_bytes_elements, to_array

MAX_ELEMENTS = 1_000_000
"""Values of one entry of a batch that are looked through."""

_FLOATS = (DataType.FP32, DataType.FP64)
_INTEGERS = (
    DataType.UINT8,
    DataType.UINT16,
    DataType.UINT32,
    DataType.UINT64,
    DataType.INT8,
    DataType.INT16,
    DataType.INT32,
    DataType.INT64,
)


def class_shape(shape: Shape, count: int, *, is_batching: bool) -> Shape:
    """Return the shape of the `count` top classes of an output: with the batch dimension if the model batches."""
    rows, entry = (shape[:1], shape[1:]) if is_batching else ((), shape)
    return (*rows, min(count, math.prod(entry)))


def classify(spec: TensorSpec, data: Buffer, count: int, labels: Sequence[str], *, is_batching: bool) -> bytes:
    """Return the `count` top classes of every entry of a batch as raw data of BYTES, `value:index[:label]` each.

    Values descend; of equal ones the lower index comes first, and NaN comes last. Floats have six decimals as C's %f
    writes them. A class without a label, or with an empty one, has none. Raises InferError(INVALID_ARG) for datatypes
    that have no order or that Triton does not classify.
    """
    if spec.datatype not in _FLOATS and spec.datatype not in _INTEGERS:
        raise invalid_argument(
            f"class result not available for output due to unsupported type '{spec.datatype.value}'"
        )
    shape = class_shape(spec.shape, count, is_batching=is_batching)
    rows = math.prod(shape[:-1])
    length = math.prod(spec.shape[1:] if is_batching else spec.shape)
    if length > MAX_ELEMENTS:
        raise invalid_argument(
            f"class result not available for output '{spec.name}': it has {length} values, more than the "
            f"{MAX_ELEMENTS} that are looked through"
        )
    entries = to_array(spec, data).reshape(rows, length)
    form = "%f:%d" if spec.datatype in _FLOATS else "%d:%d"
    texts: list[bytes] = []
    for entry in entries:
        indices = top_indices(entry, shape[-1])
        for index, value in zip(indices.tolist(), entry[indices].tolist(), strict=True):
            text = form % (value, index)
            label = labels[index] if index < len(labels) else ""
            texts.append((f"{text}:{label}" if label else text).encode())
    return encode_bytes_elements(texts)


def top_indices(values: Array, count: int) -> Array:
    """Return the indices of the `count` largest values, descending; of equal ones the lowest first, NaN last."""
    length = len(values)
    if not count:
        return np.empty(0, np.intp)
    if values.dtype.kind == "f":
        missing = np.isnan(values)
        if missing.any():
            numbers = np.flatnonzero(~missing)
            order = numbers[top_indices(values[numbers], min(count, len(numbers)))]
            return np.concatenate([order, np.flatnonzero(missing)])[:count]
    if count < length:
        # Only what is not smaller than the count-th largest value needs to be sorted.
        threshold = np.partition(values, length - count)[length - count]
        candidates = np.flatnonzero(values >= threshold)
    else:
        candidates = np.arange(length)
    # Sorted backwards, so that a stable ascending order turned round has the lowest index of equal values first.
    turned = candidates[::-1]
    return turned[np.argsort(values[turned], kind="stable")[::-1]][:count]

"""Classification: an output's largest values, with their indices and labels, instead of the tensor."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Array, Buffer, Shape, TensorSpec, encode_bytes_elements, to_array

MAX_VALUES = 4_000_000
"""Limit of the values of all entries of a batch that are searched. Like `MAX_CLASSES` it bounds the time on the event
loop: 7 ns a value."""
MAX_CLASSES = 60_000
"""Limit of the classes of all entries of a batch, each of which is written as text: 400 ns."""
_SHORT_ENTRY = 64
"""Entries up to this size are sorted together, longer ones one by one: 15 us each besides their values."""
_MAX_LONG_ENTRIES = 1000

_FLOATS = (DataType.FP32, DataType.FP64)


def class_shape(shape: Shape, count: int, *, is_batching: bool) -> Shape:
    """Return the shape of the `count` top classes of an output: with the batch dimension if the model batches."""
    rows, entry = (shape[:1], shape[1:]) if is_batching else ((), shape)
    return (*rows, min(count, math.prod(entry)))


def classify(spec: TensorSpec, data: Buffer, count: int, labels: Sequence[str], *, is_batching: bool) -> bytes:
    """Return the `count` top classes of every entry of a batch as raw data of BYTES, `value:index[:label]` each.

    Values descend; of equal ones the lower index comes first, and NaN comes last. Floats have six decimals as C's %f
    writes them. A class without a label, or with an empty one, has none. Raises InferError(INVALID_ARG) for datatypes
    without an order or that Triton does not classify.
    """
    if spec.datatype not in _FLOATS and spec.datatype.numpy.kind not in "iu":
        raise invalid_argument(
            f"class result not available for output due to unsupported type '{spec.datatype.value}'"
        )
    shape = class_shape(spec.shape, count, is_batching=is_batching)
    rows = math.prod(shape[:-1])
    length = math.prod(spec.shape[1:] if is_batching else spec.shape)
    _check_work(spec.name, rows, length, shape[-1])
    entries = to_array(spec, data).reshape(rows, length)
    form = "%f:%d" if spec.datatype in _FLOATS else "%d:%d"
    texts: list[bytes] = []
    for indices, values in _top_of_all(entries, shape[-1]):
        for index, value in zip(indices.tolist(), values.tolist(), strict=True):
            text = form % (value, index)
            label = labels[index] if index < len(labels) else ""
            texts.append((f"{text}:{label}" if label else text).encode())
    return encode_bytes_elements(texts)


def _check_work(name: str, rows: int, length: int, count: int) -> None:
    """Raise InferError(INVALID_ARG) if the classes of an output would block the event loop for too long."""
    opening = f"class result not available for output '{name}': "
    if rows * length > MAX_VALUES or rows * count > MAX_CLASSES:
        raise invalid_argument(
            f"{opening}{rows * count} classes of {rows * length} values are more than the {MAX_CLASSES} of "
            f"{MAX_VALUES} that a response may have"
        )
    if length > _SHORT_ENTRY and rows > _MAX_LONG_ENTRIES:
        raise invalid_argument(
            f"{opening}a batch of {rows} is more than the {_MAX_LONG_ENTRIES} that a response may have for entries "
            f"of more than {_SHORT_ENTRY} values"
        )


def _top_of_all(entries: Array, count: int) -> Iterable[tuple[Array, Array]]:
    """Yield top indices and values, entry by entry; short entries together, in one call of numpy."""
    if entries.shape[1] <= _SHORT_ENTRY:
        indices = np.argsort(_descending(entries), axis=1, kind="stable")[:, :count]
        yield indices.ravel(), np.take_along_axis(entries, indices, 1).ravel()
        return
    for entry in entries:
        found = top_indices(entry, count)
        yield found, entry[found]


def top_indices(values: Array, count: int) -> Array:
    """Return the indices of the `count` largest values, descending; of equal ones the lowest first, NaN last."""
    keys = _descending(values)
    if not 0 < count < len(keys):
        return np.argsort(keys, kind="stable")[:count]
    # Only values not larger than the count-th key need sorting. NaN is the largest key.
    threshold = np.partition(keys, count - 1)[count - 1]
    candidates = np.flatnonzero(~(keys > threshold))
    return candidates[np.argsort(keys[candidates], kind="stable")][:count]


def _descending(values: Array) -> Array:
    """Return keys with an ascending order that is the descending order of the values; numpy sorts NaN to the end."""
    return -values if values.dtype.kind == "f" else ~values

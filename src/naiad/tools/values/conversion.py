"""Values of data files to arrays of a tensor's datatype and shape; what does not fit is an InputError."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.tensor import Array, Buffer, Shape, TensorSpec, decode_bytes_elements, to_array
from naiad.tools.values.tensor import InputError, ModelTensor

_SHOWN_CHARACTERS = 60


def array_of_values(tensor: ModelTensor, values: Sequence[Any], shape: Shape | None, where: str) -> Array:
    """Return the array of a flat list of JSON values in row-major order. Raises InputError."""
    shape = tensor.shape_of(len(values), shape, where)
    datatype = tensor.datatype
    types, words = _accepted(datatype)
    if tensor.null_is_nan and is_float(datatype):
        types = types | {type(None)}
    if not types.issuperset(map(type, values)):
        index = next(i for i, value in enumerate(values) if type(value) not in types)
        raise InputError(f"{where}: value {index} is {_shown(values[index])}; expected {words}")
    if datatype is DataType.BOOL and not {0, 1}.issuperset(values):
        index = next(i for i, value in enumerate(values) if value not in (0, 1))
        raise InputError(f"{where}: value {index} is {_shown(values[index])}; expected {words}")
    if datatype is DataType.BYTES:
        return strings([value.encode("utf-8", "surrogatepass") for value in values]).reshape(shape)
    try:
        wide = np.array(values, np.float64 if is_float(datatype) else datatype.numpy)
    except OverflowError:
        known = [value for value in values if value is not None]
        raise _out_of_range(datatype, min(known), max(known), where) from None
    return _narrowed(wide, datatype, where).reshape(shape)


def array_of_raw(tensor: ModelTensor, raw: Buffer, shape: Shape | None, where: str) -> Array:
    """Return the array of raw little-endian bytes; before each string are 4 bytes with its length.

    Raises InputError.
    """
    size = tensor.datatype.item_bytes
    if size and len(raw) % size:
        raise InputError(f"{where}: {len(raw)} bytes are no multiple of the {size} bytes of {tensor.datatype.value}")
    try:
        count = len(raw) // size if size else len(decode_bytes_elements(raw))
        return to_array(TensorSpec(tensor.name, tensor.datatype, tensor.shape_of(count, shape, where)), raw)
    except InferError as error:
        hint = "strings need a length of 4 bytes, little-endian, before each"
        raise InputError(f"{where}: {error.message}; {hint}") from None


def array_of_array(tensor: ModelTensor, array: Array, where: str) -> Array:
    """Return the numpy array of one sample in the tensor's datatype. Raises InputError."""
    tensor.check(array.shape, where)
    datatype = tensor.datatype
    kind = array.dtype.kind
    if kind == "V" and array.dtype.itemsize == 2 and datatype is DataType.BF16:
        return array.view(datatype.numpy)  # numpy's files have no name for bfloat16
    if datatype is DataType.BYTES and kind in "SUT":
        values = array.ravel().tolist()
        return strings([each.encode() if isinstance(each, str) else each for each in values]).reshape(array.shape)
    kinds = "biuf" if is_float(datatype) else "b" if datatype is DataType.BOOL else "iu"
    if datatype is DataType.BYTES or (kind not in kinds and array.dtype != DataType.BF16.numpy):
        raise InputError(f"{where}: expected values of {datatype.value}, got dtype {array.dtype}")
    if is_float(datatype):
        return _narrowed(array, datatype, where)
    converted = array.astype(datatype.numpy)
    if not (converted == array).all():
        raise _out_of_range(datatype, array.min(), array.max(), where)
    return converted


def strings(elements: Sequence[bytes]) -> Array:
    """Return strings as an array of one dimension."""
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def is_float(datatype: DataType) -> bool:
    """Return whether a datatype is a floating-point number."""
    return datatype in (DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64)


def _narrowed(wide: Array, datatype: DataType, where: str) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype(datatype.numpy)
    if is_float(datatype) and (np.isinf(narrow.astype(np.float64)) & ~np.isinf(wide.astype(np.float64))).any():
        raise _out_of_range(datatype, wide.min(), wide.max(), where)
    return narrow


def _accepted(datatype: DataType) -> tuple[set[type], str]:
    if datatype is DataType.BYTES:
        return {str}, "a string"
    if datatype is DataType.BOOL:
        return {bool, int}, "true, false, 1 or 0"
    if is_float(datatype):
        return {int, float}, f"a number for {datatype.value}"
    return {int}, f"an integer for {datatype.value}"


def _out_of_range(datatype: DataType, low: Any, high: Any, where: str) -> InputError:
    return InputError(
        f"{where}: a value is out of the range of {datatype.value}; got {_shown(low)} to {_shown(high)}"
    )


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, np.generic) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."

"""The datatypes of KServe v2 and their numpy and wire forms."""

import enum
from typing import TYPE_CHECKING, Any

import numpy as np


class DataType(enum.Enum):
    """A tensor datatype; the value is the protocol's name ("FP32", "BYTES")."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"
    BF16 = "BF16"

    # Enum members are compared by identity; hashing by identity keeps dictionary look-ups off
    # Enum's Python-level __hash__ on the request path.
    __hash__ = object.__hash__

    item_bytes: int
    """Bytes of one element; 0 for BYTES, whose elements vary."""
    numpy: "np.dtype[Any]"
    """The little-endian numpy dtype; `object` for BYTES, ml_dtypes' bfloat16 for BF16, which imports that package."""
    config_name: str
    """The name in `config.pbtxt`: TYPE_FP32, TYPE_STRING."""
    config_number: int
    """The number of that name in the ModelConfig message."""

    if not TYPE_CHECKING:  # the attributes above are all there are

        def __getattr__(self, name: str) -> Any:
            """Find what a member has no value of: only BF16 has none of `numpy`, until it is asked for."""
            if name != "numpy" or self is not DataType.BF16:
                raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
            import ml_dtypes  # 2 MiB that few models need

            self.numpy = np.dtype(ml_dtypes.bfloat16)
            return self.numpy


STRING_KINDS = "OSUT"
"""The kinds of numpy's dtypes that are BYTES: object, bytes and str of fixed width, and NumPy 2's StringDType."""

CONVERSIONS = {
    "M": "write it as text or as a number: array.astype(str), or array.astype('int64')",
    "m": "write it as a number: array.astype('int64')",
    "c": "send real and imaginary part: array.real, array.imag",
}
"""How to send arrays of a kind that the protocol lacks."""

MASKED = "has masked elements, which tensors do not have; fill them: array.filled(value)"
"""What is wrong with a masked array."""

_NUMPY: dict[DataType, Any] = {
    DataType.BOOL: np.bool_,
    DataType.UINT8: np.uint8,
    DataType.UINT16: np.uint16,
    DataType.UINT32: np.uint32,
    DataType.UINT64: np.uint64,
    DataType.INT8: np.int8,
    DataType.INT16: np.int16,
    DataType.INT32: np.int32,
    DataType.INT64: np.int64,
    DataType.FP16: np.float16,
    DataType.FP32: np.float32,
    DataType.FP64: np.float64,
    DataType.BYTES: np.object_,
}

for _number, _datatype in enumerate(DataType, start=1):
    if _datatype is not DataType.BF16:
        _datatype.numpy = np.dtype(_NUMPY[_datatype])
        _datatype.item_bytes = 0 if _datatype is DataType.BYTES else _datatype.numpy.itemsize
    _datatype.config_name = "TYPE_STRING" if _datatype is DataType.BYTES else f"TYPE_{_datatype.value}"
    _datatype.config_number = _number
DataType.BF16.item_bytes = 2

BY_NAME: dict[str, DataType] = {d.value: d for d in DataType}
"""Protocol name to datatype."""
BY_CONFIG_NAME: dict[str, DataType] = {d.config_name: d for d in DataType}
"""`config.pbtxt` name to datatype."""
BY_CONFIG_NUMBER: dict[int, DataType] = {d.config_number: d for d in DataType}
"""Number in the ModelConfig message to datatype."""
_BY_KIND: dict[str, DataType] = {d.numpy.str.lstrip("<=|"): d for d in DataType if d is not DataType.BF16}


def from_numpy(dtype: "np.dtype[Any]") -> DataType | None:
    """Return the datatype of a numpy dtype, or None if the protocol has none for it.

    Strings of every numpy kind are BYTES.
    """
    if _is_bf16(dtype):
        return DataType.BF16
    if dtype.kind in STRING_KINDS:
        return DataType.BYTES
    return _BY_KIND.get(dtype.str.lstrip("<>=|"))


def is_floating(dtype: "np.dtype[Any]") -> bool:
    """Return whether a numpy dtype has floating-point numbers: BF16 has a kind of its own."""
    return dtype.kind == "f" or _is_bf16(dtype)


def _is_bf16(dtype: "np.dtype[Any]") -> bool:
    return dtype.isbuiltin == 2 and dtype == DataType.BF16.numpy  # 2: a package has added the type to numpy


def conversion_hint(dtype: "np.dtype[Any]") -> str:
    """Return how to convert an array whose dtype has no datatype. `worker/api/tensor.py` says the same."""
    return CONVERSIONS.get(dtype.kind, f"use a dtype of {', '.join(datatype.value for datatype in DataType)}")

"""Typed tensor contents (`InferTensorContents`) to raw little-endian bytes."""

from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.errors import invalid_argument
from naiad.core.tensor import encode_bytes_elements

_FIELDS: tuple[tuple[str, DataType, tuple[DataType, ...]], ...] = (
    ("bool_contents", DataType.BOOL, ()),
    ("int_contents", DataType.INT32, (DataType.INT8, DataType.INT16)),
    ("int64_contents", DataType.INT64, ()),
    ("uint_contents", DataType.UINT32, (DataType.UINT8, DataType.UINT16)),
    ("uint64_contents", DataType.UINT64, ()),
    ("fp32_contents", DataType.FP32, ()),
    ("fp64_contents", DataType.FP64, ()),
    ("bytes_contents", DataType.BYTES, ()),
)
"""Each field with its own datatype and the narrower ones that travel in it too, in Triton's order of checks."""


def contents_to_raw(contents: Any, datatype: DataType, input_name: str, model_name: str) -> bytes:
    """Return an `InferTensorContents` message as raw data of `datatype`; nothing filled in gives no bytes.

    Of the narrow integers the low bytes are taken. Raises InferError(INVALID_ARG) when a field does not belong to
    the datatype, or more than one is filled in.
    """
    raw = b""
    for field, own, narrow in _FIELDS:
        values = getattr(contents, field)
        if not values:
            continue
        if raw:
            raise invalid_argument(
                f"unexpected explicit tensor data for input tensor '{input_name}' for model '{model_name}', "
                "binary data was already supplied."
            )
        if datatype is not own and datatype not in narrow:
            raise invalid_argument(
                f"unexpected explicit tensor data for input tensor '{input_name}' for model '{model_name}' "
                f"of type '{own.value}', expected datatype '{datatype.value}'"
            )
        if own is DataType.BYTES:
            raw = encode_bytes_elements(values)
        else:
            raw = np.fromiter(values, own.numpy, len(values)).astype(datatype.numpy, copy=False).tobytes()
    return raw

"""Datatypes as a worker knows them: KServe's names, Triton's numbers, numpy's dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

NUMPY: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
"""Protocol name to numpy type; BF16, which numpy lacks, is missing."""

NUMBERS: dict[str, int] = {name: number for number, name in enumerate([*NUMPY, "BF16"], start=1)}
"""Protocol name to Triton's number (TRITONSERVER_DataType, and the number in a ModelConfig)."""

STORED: dict[str, Any] = {name: np.dtype(kind) for name, kind in NUMPY.items()}
"""Protocol name to the dtype in which a worker holds the elements; BF16 as its bit patterns."""
STORED["BF16"] = np.dtype(np.uint16)

BY_DTYPE: dict[Any, str] = {dtype: name for name, dtype in STORED.items() if name != "BF16"}
"""dtype to protocol name; strings of fixed width and foreign byte orders need `normalize`."""


def normalize(array: Any) -> tuple[str, Any]:
    """Return the datatype of an array and the array in the dtype that stands for it; ("", array) when none does."""
    dtype = array.dtype
    if dtype.kind in "SU":
        return "BYTES", array
    if dtype.name == "bfloat16":  # ml_dtypes
        return "BF16", array.view(np.uint16)
    native = dtype.newbyteorder("=")
    name = BY_DTYPE.get(native, "")
    return name, array.astype(native) if name else array

"""Outputs as the model declares them: sinks and answers have their columns from the declaration.

A server passes on what a model returns, also with another shape or datatype than the configuration says, as Triton
does. Written by the declared layout such values would be other values: the first element of three, or bytes that
belong to another row.
"""

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.errors import internal
from naiad.core.tensor import Array
from naiad.tools.values.tensor import ModelTensor, fits


def as_declared(tensor: ModelTensor, rows: Array) -> Array:
    """Return an output, with its rows along the first axis, in the declared datatype and shape.

    Axes of size 1 may be missing or too many, and a datatype may be another one that holds the same values. Raises
    InferError(INTERNAL) for what would lose or change values.
    """
    return _shaped(tensor, _typed(tensor, rows))


def _shaped(tensor: ModelTensor, rows: Array) -> Array:
    found = tuple(rows.shape[1:])
    if fits(found, tensor.dims):
        return rows
    dims = tuple(each for each in tensor.dims if each != 1)
    sizes = tuple(each for each in found if each != 1)
    if not fits(sizes, dims) and not (sizes == () and dims == (-1,)):
        raise internal(
            f"output '{tensor.name}' has shape {list(found)} in a row, and the model declares {list(tensor.dims)}; "
            "correct the model or its configuration"
        )
    left = list(sizes) or [1]
    return rows.reshape(len(rows), *[1 if dim == 1 else left.pop(0) for dim in tensor.dims])


def _typed(tensor: ModelTensor, rows: Array) -> Array:
    declared = tensor.datatype.numpy
    if rows.dtype == declared:
        return rows
    if tensor.datatype is not DataType.BYTES and rows.dtype != object:
        with np.errstate(over="ignore", invalid="ignore"):
            converted = rows.astype(declared)
            back = converted.astype(rows.dtype)
        # A comparison makes both sides floats where one is: only the way back shows what they have lost.
        if (((converted == rows) & (back == rows)) | ((converted != converted) & (rows != rows))).all():
            return converted
    raise internal(
        f"output '{tensor.name}' has values of dtype {rows.dtype}, and the model declares {tensor.datatype.value}; "
        "correct the model or its configuration"
    )

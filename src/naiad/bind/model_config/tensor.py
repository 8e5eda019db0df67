"""Description of an input or output."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from naiad.bind.exceptions import PyTritonBadParameterError
from naiad.core.datatype import DataType, from_numpy


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model: `Tensor(name="data", dtype=np.float32, shape=(-1,))`."""

    shape: tuple[int, ...]
    """Without the batch dimension; -1 for any size."""
    dtype: Any
    """A numpy type or dtype; `bytes`, `object` or `np.bytes_` for text."""
    name: str | None = None
    """By default INPUT_1, INPUT_2 and so on, or OUTPUT_1."""
    optional: bool | None = False
    """Inputs only: requests may leave it out."""

    def __post_init__(self) -> None:
        """Keep the numpy type of a dtype."""
        if isinstance(self.dtype, np.dtype):
            object.__setattr__(self, "dtype", self.dtype.type)


def datatype_of(dtype: Any, where: str) -> DataType:
    """Return the protocol's datatype of a numpy type; `where` names the tensor in errors.

    Raises PyTritonBadParameterError for types that the protocol does not have, and for text that is not encoded.
    """
    if dtype in (bytes, object, np.bytes_, np.object_):
        return DataType.BYTES
    try:
        datatype = None if np.dtype(dtype).kind == "U" else from_numpy(np.dtype(dtype))
    except TypeError:
        datatype = None
    if datatype is None:
        raise PyTritonBadParameterError(
            f"{where} has dtype {dtype!r}, expected a numpy type such as np.float32, np.int64, np.bool_ or "
            f"ml_dtypes.bfloat16, or bytes for text"
        )
    return datatype


def numpy_type_of(datatype: DataType) -> Any:
    """Return the numpy type that clients and functions see: `np.bytes_` for text."""
    if datatype is DataType.BYTES:
        return np.bytes_
    return ml_dtypes.bfloat16 if datatype is DataType.BF16 else datatype.numpy.type

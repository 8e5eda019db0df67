"""What a model file of TensorFlow becomes: a function of named tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.core.datatype import DataType

DATATYPES: Mapping[str, DataType] = {
    "string": DataType.BYTES,
    **{datatype.numpy.name: datatype for datatype in DataType if datatype is not DataType.BYTES},
}
"""Name of a tensorflow.DType to datatype."""


@dataclass(frozen=True, slots=True)
class Program:
    """A function that several threads may call, and its tensors."""

    function: Callable[..., Mapping[str, Any]]
    """Takes tensors by name, and returns tensors by name."""
    inputs: Mapping[str, Any]
    """Name to anything with `shape` and `dtype`, as TensorFlow has them."""
    outputs: Mapping[str, Any]
    owner: object
    """Holds the variables of the function."""

    def signature(self) -> ModelSignature:
        """Return the tensors as the configuration is held against them."""
        return ModelSignature("TensorFlow", inputs=_tensors(self.inputs), outputs=_tensors(self.outputs))


def _tensors(specs: Mapping[str, Any]) -> dict[str, TensorSignature]:
    return {
        name: TensorSignature(name, DATATYPES.get(spec.dtype.name), _dims(spec.shape), spec.dtype.name)
        for name, spec in specs.items()
    }


def _dims(shape: Any) -> tuple[int | None, ...] | None:
    return None if shape.rank is None else tuple(shape.as_list())

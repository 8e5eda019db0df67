"""Instances of TensorFlow models: calls of one function, which all share."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np

from naiad.backend.api import ModelContext
from naiad.backend.framework.scalars import Scalars
from naiad.backend.tensor_instance import TensorInstance
from naiad.backend.tensorflow.library import tensorflow
from naiad.backend.tensorflow.program import Program
from naiad.core.datatype import DataType
from naiad.core.errors import internal, invalid_argument
from naiad.core.tensor import Array

_NOT_IN_BUFFERS = ("string", "bfloat16")
"""Datatypes whose tensors have no buffer protocol that numpy understands."""


class TensorFlowInstance(TensorInstance):
    """Calls a function."""

    runs_on_any_thread: ClassVar[bool] = True

    def __init__(self, context: ModelContext, program: Program, device: str, scalars: Scalars) -> None:
        """`device` is where the function runs, empty where there is no choice."""
        super().__init__(context)
        self._function: Any = program.function
        self._device = device
        self._scalars = scalars

    def close(self) -> None:
        """Release the function, which other instances may still use."""
        super().close()
        self._function = None

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Call the function; see `TensorInstance.run`."""
        self._scalars.to_model(inputs)
        try:
            with tensorflow.device(self._device) if self._device else nullcontext():
                # The copy is needed: TensorFlow's kernels rely on memory at multiples of 64 bytes.
                outputs = self._function(**{name: tensorflow.constant(array) for name, array in inputs.items()})
                arrays = [_to_array(outputs[name]) for name in output_names]
        except tensorflow.errors.InvalidArgumentError as error:
            raise invalid_argument(self._message(error)) from error
        except tensorflow.errors.OpError as error:
            raise internal(self._message(error)) from error
        return [self._scalars.to_client(name, array) for name, array in zip(output_names, arrays, strict=True)]

    def _message(self, error: Any) -> str:
        return f"TensorFlow cannot execute model '{self._model_name}': {str(error.message).strip()}"


def _to_array(tensor: Any) -> Array:
    """Return a tensor as an array: a view, since tensors do not change, or a copy of strings and BF16."""
    if tensor.dtype.name in _NOT_IN_BUFFERS:
        array: Array = np.asarray(tensor.numpy(), object if tensor.dtype.name == "string" else DataType.BF16.numpy)
        return array
    return np.asarray(memoryview(tensor))

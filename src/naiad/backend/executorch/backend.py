"""The ExecuTorch backend: a program for each instance."""

import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.executorch.program import Method, ProgramFile, limit_threads
from naiad.backend.framework import Scalars, check_signature
from naiad.backend.signature import completed
from naiad.backend.tensor_instance import TensorInstance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Array

_BF16 = DataType.BF16.numpy
_setting_up = threading.Lock()


class ExecuTorchBackend(Backend):
    """Programs of ExecuTorch."""

    name: ClassVar[str] = "executorch"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, inputs and outputs from the program. Raises InferError."""
        return completed(context, lambda: ProgramFile(context).signature)

    def load(self, context: ModelContext) -> Model:
        """Read the file and hold the configuration against it. Raises InferError."""
        return ExecuTorchModel(context)


class ExecuTorchModel(Model):
    """One loaded version."""

    def __init__(self, context: ModelContext) -> None:
        with _setting_up:
            limit_threads(context.usable_cores)
        self._context = context
        self._file = file = ProgramFile(context)
        batch_size = context.config.max_batch_size
        if batch_size > max(file.max_rows, 1):
            raise file.error(
                f"takes {file.max_rows or 'no'} rows at most, but the configuration has max_batch_size: "
                f"{batch_size}; reduce it, or export the program with a larger torch.export.Dim as first "
                "dimension of all inputs"
            )
        self._scalars = check_signature(context, file.signature)

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance with a program of its own. Raises InferError."""
        return ExecuTorchInstance(self._context, self._file, self._file.open(), self._scalars)


class ExecuTorchInstance(TensorInstance):
    """Runs batches with a method of its own."""

    runs_on_any_thread: ClassVar[bool] = True

    def __init__(self, context: ModelContext, file: ProgramFile, method: Method, scalars: Scalars) -> None:
        super().__init__(context)
        self.executable = method
        self._inputs = list(file.signature.inputs)
        self._outputs = {name: index for index, name in enumerate(file.signature.outputs)}
        self._shapes = file.shapes()
        self._scalars = scalars

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Call the method; see `TensorInstance.run`."""
        self._scalars.to_model(inputs)
        try:
            results = self.executable.call([_to_tensor(inputs[name]) for name in self._inputs])
        except RuntimeError as error:
            found = ", ".join(f"{name} {list(inputs[name].shape)}" for name in self._inputs)
            raise invalid_argument(
                f"ExecuTorch cannot execute model '{self._model_name}' on inputs of these shapes: {found}; the "
                f"largest are {self._shapes}: {error}"
            ) from error
        return [self._scalars.to_client(name, _to_array(results[self._outputs[name]])) for name in output_names]


def _to_tensor(array: Array) -> Any:
    if not array.flags.writeable:
        # PyTorch warns about memory that is read-only. A program copies its inputs.
        array = array.copy()
    if array.dtype == _BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_array(tensor: Any) -> Array:
    if tensor.dtype is torch.bfloat16:
        view: Array = tensor.view(torch.int16).numpy().view(_BF16)
        return view
    array: Array = tensor.numpy()
    return array

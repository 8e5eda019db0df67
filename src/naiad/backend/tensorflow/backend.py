"""The TensorFlow backend: SavedModels, Keras files and frozen graphs, one function for all instances of a device."""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.batch_trial import confirm_batching
from naiad.backend.framework import ModelFile, Parameters, Scalars, check_signature, find_model_file, first_gpu
from naiad.backend.signature import ModelSignature, completed, is_complete
from naiad.backend.tensor_instance import TensorInstance
from naiad.backend.tensorflow.library import set_up, tensorflow
from naiad.backend.tensorflow.program import KERAS_SUFFIXES, Program, load_graph_def, load_keras, load_saved_model
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, internal, invalid_argument
from naiad.core.tensor import Array

_FILENAMES = ("model.savedmodel", "model.keras", "model.h5", "model.graphdef")
_CPU = "/CPU:0"
_NOT_IN_BUFFERS = ("string", "bfloat16")
"""Datatypes whose tensors have no buffer protocol that numpy understands."""


class TensorFlowBackend(Backend):
    """Models that TensorFlow executes."""

    name: ClassVar[str] = "tensorflow"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, inputs and outputs from the model's signature. Raises InferError."""

        def read() -> ModelSignature:
            set_up(context)
            program = open_program(context, _CPU)
            if context.config.max_batch_size:
                return program.signature()
            return confirm_batching(context.name, program.signature(), program.shapes)

        return completed(context, read)

    def default_instance_count(self, context: ModelContext) -> int:
        """Return 2, as Triton, where there are cores for it, otherwise 1."""
        return 2 if context.usable_cores >= 4 else 1

    def gpu_unsupported_reason(self) -> str:
        """Return what the installed TensorFlow lacks."""
        if tensorflow.config.list_physical_devices("GPU"):
            return ""
        return "the installed TensorFlow finds no GPU; install the package tensorflow[and-cuda]"

    def load(self, context: ModelContext) -> Model:
        """Load the function and hold the configuration against it. Raises InferError."""
        set_up(context)
        return TensorFlowModel(context)


class TensorFlowModel(Model):
    """One loaded version: a function for each device that its instances are on."""

    def __init__(self, context: ModelContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        on_cpu = any(group.kind != group.KIND_GPU for group in context.config.instance_group)
        device = _CPU if on_cpu or not context.config.instance_group else f"/GPU:{first_gpu(context.config)}"
        program = open_program(context, device)
        self._programs = {device: program}
        self._scalars = check_signature(context, program.signature())

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance on the function of its device, loaded now if it is another one. Raises InferError."""
        device = f"/GPU:{spec.device_id}" if spec.kind == "KIND_GPU" else _CPU
        with self._lock:
            if device not in self._programs:
                self._programs[device] = open_program(self._context, device)
        has_choice = bool(tensorflow.config.list_physical_devices("GPU"))
        return TensorFlowInstance(self._context, self._programs[device], device if has_choice else "", self._scalars)

    def close(self) -> None:
        """Release the functions with their variables."""
        self._programs.clear()


def open_program(context: ModelContext, device: str) -> Program:
    """Load the model file, with its variables on `device`. Raises InferError."""
    file = ModelFile(context, find_model_file(context, _FILENAMES))
    try:
        with tensorflow.device(device):
            return _open(context, file)
    except InferError as error:
        raise InferError(error.code, f"{file.opening} {error.message}") from error
    except Exception as error:  # TensorFlow and Keras raise all kinds of exceptions
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines)[:1000] or type(error).__name__
        raise file.error(f"cannot be loaded: {reason}; {_advice(reason)}", internal) from error


def _advice(reason: str) -> str:
    if "KerasSaveable" in reason or "Could not locate" in reason:
        return (
            "a layer or function of its own is not known here: save the model with model.export(), as a SavedModel, "
            "which has the program of all its layers"
        )
    return (
        "is it complete, and has it the format of its name? A SavedModel is a directory with saved_model.pb and "
        "variables"
    )


def _open(context: ModelContext, file: ModelFile) -> Program:
    path = file.path
    parameters = Parameters(context.config, context.backend_config)
    if path.suffix in KERAS_SUFFIXES:
        return load_keras(path)
    if path.is_dir():
        if not (path / "saved_model.pb").is_file():
            raise invalid_argument(f"{path} has no saved_model.pb; copy the directory of a SavedModel there")
        return load_saved_model(path, parameters.text("TF_GRAPH_TAG"), parameters.text("TF_SIGNATURE_DEF"))
    config = execution_config(context.config)
    if not is_complete(config):
        raise invalid_argument(
            f"{path} is a graph without a signature; write 'input' and 'output' in config.pbtxt, or save the model "
            "as a SavedModel"
        )
    init_ops = parameters.text("TF_INIT_OPS_FILE")
    return load_graph_def(
        path,
        [tensor.name for tensor in config.input],
        [tensor.name for tensor in config.output],
        context.version_dir / init_ops if init_ops else None,
    )


class TensorFlowInstance(TensorInstance):
    """Calls a function."""

    runs_on_any_thread: ClassVar[bool] = True

    def __init__(self, context: ModelContext, program: Program, device: str, scalars: Scalars) -> None:
        """`device` is where the function runs, empty where there is no choice."""
        super().__init__(context)
        self.executable = program.function
        self._device = device
        self._scalars = scalars

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Call the function; see `TensorInstance.run`."""
        self._scalars.to_model(inputs)
        try:
            with tensorflow.device(self._device) if self._device else nullcontext():
                # The copy is needed: TensorFlow's kernels rely on memory at multiples of 64 bytes.
                outputs = self.executable(**{name: tensorflow.constant(array) for name, array in inputs.items()})
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

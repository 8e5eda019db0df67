"""The TensorFlow backend: SavedModels, Keras files and frozen graphs, one function for all instances of a device."""

import threading
from pathlib import Path
from typing import ClassVar

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework.model_files import find_model_file
from naiad.backend.framework.parameters import Parameters
from naiad.backend.framework.scalars import Scalars
from naiad.backend.signature import SignatureCheck, complete, default_max_batch_size, is_complete
from naiad.backend.tensorflow.graph_def import load_graph_def
from naiad.backend.tensorflow.instance import TensorFlowInstance
from naiad.backend.tensorflow.keras_file import SUFFIXES, load_keras
from naiad.backend.tensorflow.library import set_up, tensorflow
from naiad.backend.tensorflow.program import Program
from naiad.backend.tensorflow.saved_model import load_saved_model
from naiad.config.execution import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, internal, invalid_argument

_FILENAMES = ("model.savedmodel", "model.keras", "model.h5", "model.graphdef")
_CPU = "/CPU:0"


class TensorFlowBackend(Backend):
    """Models that TensorFlow executes."""

    name: ClassVar[str] = "tensorflow"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, inputs and outputs from the model's signature. Raises InferError."""
        if is_complete(context.config):
            return context.config
        batch_size = default_max_batch_size(context.backend_config)
        set_up(context)
        return complete(context.config, open_program(context, _CPU).signature(), batch_size)

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
        config = execution_config(context.config)
        on_cpu = any(group.kind != group.KIND_GPU for group in context.config.instance_group)
        device = _CPU if on_cpu or not context.config.instance_group else f"/GPU:{_first_gpu(context.config)}"
        program = open_program(context, device)
        self._programs = {device: program}
        signature = program.signature()
        SignatureCheck(config, signature).check()
        self._scalars = Scalars(config, signature)

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
    path = find_model_file(context, _FILENAMES)
    opening = f"model '{context.name}' version {context.version}:"
    try:
        with tensorflow.device(device):
            return _open(context, path)
    except InferError as error:
        raise InferError(error.code, f"{opening} {error.message}") from error
    except Exception as error:  # TensorFlow and Keras raise all kinds of exceptions
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines)[:1000] or type(error).__name__
        raise internal(
            f"{opening} {path} cannot be loaded: {reason}; is it complete, and has it the format of its name? A "
            "SavedModel is a directory with saved_model.pb and variables"
        ) from error


def _open(context: ModelContext, path: Path) -> Program:
    parameters = Parameters(context.config, context.backend_config)
    if path.suffix in SUFFIXES:
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


def _first_gpu(config: ModelConfig) -> int:
    return next((device for group in config.instance_group for device in group.gpus), 0)

"""The Hugging Face backend: one model for all instances of a version on a device."""

import logging
import threading
from typing import Any, ClassVar

import torch

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework.parameters import Parameters
from naiad.backend.framework.threads import threads_per_instance
from naiad.backend.huggingface.directory import HuggingFaceDirectory, Task
from naiad.backend.huggingface.instance import TEXT, HuggingFaceInstance
from naiad.backend.huggingface.tasks import outputs_of
from naiad.backend.signature import ModelSignature, SignatureCheck, TensorSignature, completed
from naiad.config.execution import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType

_log = logging.getLogger(__name__)

MAX_BATCH_SIZE = 32
"""`max_batch_size` of a model without one."""


class HuggingFaceBackend(Backend):
    """Models of the transformers library with their tokenizers."""

    name: ClassVar[str] = "huggingface"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, input and outputs from the task. Raises InferError."""
        return completed(context, lambda: HuggingFaceModel(context).signature, MAX_BATCH_SIZE)

    def gpu_unsupported_reason(self) -> str:
        """Return what the installed PyTorch, or the machine, lacks."""
        if torch.cuda.is_available():
            return ""
        return f"the installed torch {torch.__version__} finds no GPU: install a build for CUDA, and the driver"

    def load(self, context: ModelContext) -> Model:
        """Read the directory and hold the configuration against it. Raises InferError."""
        model = HuggingFaceModel(context)
        SignatureCheck(execution_config(context.config), model.signature).check()
        return model


class HuggingFaceModel(Model):
    """One loaded version; the weights are loaded with the first instance of a device."""

    def __init__(self, context: ModelContext) -> None:
        """Read the directory without its weights. Raises InferError."""
        self._context = context
        self._parameters = Parameters(context.config, context.backend_config)
        self._directory = HuggingFaceDirectory(context, self._parameters)
        self._outputs = outputs_of(self._directory, self._parameters)
        self._dtype = self._parameters.choice("dtype", ("float32", "float16", "bfloat16"), "float32")
        self._thread_count = threads_per_instance(context, self._parameters, "num_threads")
        self._loading = threading.Lock()
        self._models: dict[str, Any] = {}
        """By device."""
        text = TensorSignature(TEXT, DataType.BYTES, (None, 1))
        self.signature = ModelSignature("Hugging Face", {TEXT: text}, self._outputs.signatures)
        if self._directory.task is Task.TEXT_CLASSIFICATION:
            self.labels = {"scores": self._directory.labels()}

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance with a tokenizer of its own. Raises InferError."""
        tokenizer = self._directory.tokenizer(self._parameters)
        device = f"cuda:{spec.device_id}" if spec.kind == "KIND_GPU" else "cpu"
        with self._loading:
            model = self._models.get(device)
            if model is None:
                model = self._models[device] = self._directory.load(device, self._dtype)
                _log.info(
                    "model '%s' version %d: %s, task %s, on %s",
                    self._context.name, self._context.version, type(model).__name__, self._directory.task, device,
                )  # fmt: skip
        return HuggingFaceInstance(self._context, model, tokenizer, self._outputs, self._thread_count)

    def close(self) -> None:
        """Release the weights."""
        self._models.clear()

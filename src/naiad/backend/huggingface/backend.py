"""The Hugging Face backend: one model for all instances of a version on a device."""

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import Parameters, threads_per_instance
from naiad.backend.huggingface.directory import HuggingFaceDirectory, SharedWeights
from naiad.backend.huggingface.generation import SIGNATURE, GenerationModel
from naiad.backend.huggingface.tasks import TaskOutputs, outputs_of
from naiad.backend.signature import SignatureCheck
from naiad.backend.tensor_instance import TensorInstance
from naiad.backend.texts.generation.answer_instance import check_generation
from naiad.backend.texts.generation.text_generation import completed_generation
from naiad.backend.texts.text_directory import Task
from naiad.backend.texts.text_tensors import completed_texts, encoded, text_signature, texts_of
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import internal
from naiad.core.tensor import Array


class HuggingFaceBackend(Backend):
    """Models of the transformers library with their tokenizers."""

    name: ClassVar[str] = "huggingface"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, input and outputs from the task. Raises InferError."""
        directory, parameters = _open(context)
        if directory.task is Task.TEXT_GENERATION:
            return completed_generation(context, SIGNATURE)
        return completed_texts(context, lambda: HuggingFaceModel(context, directory, parameters).signature)

    def gpu_unsupported_reason(self) -> str:
        """Return what the installed PyTorch, or the machine, lacks."""
        if torch.cuda.is_available():
            return ""
        return f"the installed torch {torch.__version__} finds no GPU: install a build for CUDA, and the driver"

    def load(self, context: ModelContext) -> Model:
        """Read the directory and hold the configuration against it. Raises InferError."""
        directory, parameters = _open(context)
        if directory.task is Task.TEXT_GENERATION:
            check_generation(context.config, self.name, SIGNATURE)
            return GenerationModel(context, directory, parameters)
        model = HuggingFaceModel(context, directory, parameters)
        SignatureCheck(execution_config(context.config), model.signature).check()
        return model


def _open(context: ModelContext) -> tuple[HuggingFaceDirectory, Parameters]:
    parameters = Parameters(context.config, context.backend_config)
    return HuggingFaceDirectory(context, parameters), parameters


class HuggingFaceModel(Model):
    """One loaded version of an encoder; the weights are loaded with the first instance of a device."""

    def __init__(self, context: ModelContext, directory: HuggingFaceDirectory, parameters: Parameters) -> None:
        """Read the directory without its weights. Raises InferError."""
        self._context = context
        self._parameters = parameters
        self._directory = directory
        self._outputs = outputs_of(directory, parameters)
        self._weights = SharedWeights(context, directory, parameters)
        self._thread_count = threads_per_instance(context, parameters, "num_threads")
        is_classifier = directory.task is Task.TEXT_CLASSIFICATION
        self.signature = text_signature("Hugging Face", self._outputs.signatures, takes_pairs=is_classifier)
        if is_classifier:
            self.labels = {"scores": directory.labels()}

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance with a tokenizer of its own. Raises InferError."""
        tokenizer = self._directory.tokenizer(self._parameters)
        model = self._weights.on_device_of(spec)
        return HuggingFaceInstance(self._context, model, tokenizer, self._outputs, self._thread_count)

    def close(self) -> None:
        """Release the weights."""
        self._weights.close()


class HuggingFaceInstance(TensorInstance):
    """Runs batches of texts, padded to the longest; weights are shared with the other instances of its device."""

    def __init__(
        self, context: ModelContext, model: Any, tokenizer: Any, outputs: TaskOutputs, thread_count: int
    ) -> None:
        super().__init__(context)
        self.executable = model
        self._tokenizer = tokenizer
        self._outputs = outputs
        self._thread_count = thread_count
        self._has_types = "token_type_ids" in inspect.signature(model.forward).parameters

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the model; see `TensorInstance.run`."""
        texts = texts_of(inputs, self._model_name)
        encodings = encoded(self._tokenizer, texts, self._model_name)
        # PyTorch has the number for each thread that calls it.
        torch.set_num_threads(self._thread_count)
        device = self.executable.device
        tokens = {
            "input_ids": torch.tensor([encoding.ids for encoding in encodings], device=device),
            "attention_mask": torch.tensor([encoding.attention_mask for encoding in encodings], device=device),
        }
        if self._has_types:
            tokens["token_type_ids"] = torch.tensor([encoding.type_ids for encoding in encodings], device=device)
        try:
            with torch.inference_mode():
                result = self.executable(**tokens)
                found = self._outputs.compute(result, texts, encodings, tokens["attention_mask"])
        except Exception as error:  # PyTorch raises classes of several libraries
            shape = list(tokens["input_ids"].shape)
            raise internal(
                f"model '{self._model_name}' failed on tokens of shape {shape}: {str(error)[:500]}"
            ) from error
        return [found[name] for name in output_names]

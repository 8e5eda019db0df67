"""The backend of onnxruntime-genai: an instance generates for one request at a time, in a worker process.

The library computes with the interpreter's lock held, seconds for a long prompt: in the process of the server the
event loop would stand still. `config.backends` has this backend's instances in processes always.
"""

import logging
from typing import ClassVar

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import Parameters, threads_per_instance
from naiad.backend.onnx_genai.genai_directory import GenaiDirectory
from naiad.backend.onnx_genai.genai_instance import GenaiInstance
from naiad.backend.onnx_genai.genai_library import GenaiWeights, try_weights
from naiad.backend.signature import ModelSignature
from naiad.backend.texts.generation.answer_instance import check_generation
from naiad.backend.texts.generation.text_generation import (
    DECODER_OUTPUTS,
    ResponseTensors,
    completed_generation,
    decoder_signature,
)
from naiad.config.model_config_pb2 import ModelConfig

_log = logging.getLogger(__name__)

_PROMPT_TOKENS = 512
_MAX_PROMPT_TOKENS = 1 << 20


def _signature(directory: GenaiDirectory) -> ModelSignature:
    return decoder_signature("ONNX GenAI", has_text=directory.tokenizer is not None)


class OnnxGenaiBackend(Backend):
    """Directories with a `genai_config.json`."""

    name: ClassVar[str] = "onnx_genai"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in the tensors and the transaction policy. Raises InferError for a directory that cannot be read."""
        return completed_generation(context, _signature(GenaiDirectory(context)))

    def load(self, context: ModelContext) -> Model:
        """Check the configuration, load the weights and try them. Raises InferError."""
        directory = GenaiDirectory(context)
        check_generation(context.config, self.name, _signature(directory))
        return OnnxGenaiModel(context, directory)


class OnnxGenaiModel(Model):
    """One loaded version."""

    def __init__(self, context: ModelContext, directory: GenaiDirectory) -> None:
        """Load the weights. Raises InferError."""
        parameters = Parameters(context.config, context.backend_config)
        self._name = context.name
        self._prompt_tokens = parameters.count("prompt_tokens", _PROMPT_TOKENS, maximum=_MAX_PROMPT_TOKENS)
        if not self._prompt_tokens:
            raise parameters.error("prompt_tokens", f"a number from 1 to {_MAX_PROMPT_TOKENS}")
        self._facts = directory.model_facts(parameters)
        weights = GenaiWeights(directory, threads_per_instance(context, parameters, "num_threads"))
        try_weights(weights, directory, self._facts.vocabulary)
        self._new_generator = weights.generator
        self._tensors = ResponseTensors(context.name, context.version, DECODER_OUTPUTS)
        _log.info("model '%s' version %d: a window of %d tokens", context.name, context.version, self._facts.window)

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance."""
        return GenaiInstance(self._name, self._facts, self._tensors, self._new_generator, self._prompt_tokens)

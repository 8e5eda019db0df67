"""The llama.cpp backend: one server of the library for a version, an instance for each of its slots."""

import logging
from typing import ClassVar

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.llamacpp.generation import Emit, Generation
from naiad.backend.llamacpp.llama_embedding import MAX_BATCH_SIZE, LlamaEmbeddingInstance, embedding_signature
from naiad.backend.llamacpp.llama_request import read_llama_request
from naiad.backend.llamacpp.llama_server import GgufFile, LlamaServer
from naiad.backend.llamacpp.llama_tensors import OUTPUTS, SIGNATURE
from naiad.backend.signature import SignatureCheck, completed
from naiad.backend.texts.generation.answer_instance import GeneratingInstance
from naiad.backend.texts.generation.text_generation import ResponseTensors, completed_generation
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import invalid_argument
from naiad.core.request import InferRequest

_log = logging.getLogger(__name__)

DEFAULT_SLOTS = 4
"""Instances of a model without an instance group: the requests that are generated at a time."""


class LlamaCppBackend(Backend):
    """GGUF files that llama.cpp executes."""

    name: ClassVar[str] = "llamacpp"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in the tensors and the transaction policy. Raises InferError for a file of another format."""
        file = GgufFile(context)
        if file.makes_vectors:
            return completed(context, lambda: embedding_signature(file.header.embedding_length), MAX_BATCH_SIZE)
        return completed_generation(context, SIGNATURE)

    def default_instance_count(self, context: ModelContext) -> int:
        """Return the number of slots."""
        return DEFAULT_SLOTS

    def load(self, context: ModelContext) -> Model:
        """Check the configuration and load the weights. Raises InferError."""
        config, file = context.config, GgufFile(context)
        if file.makes_vectors:
            SignatureCheck(config, embedding_signature(file.header.embedding_length)).check()
            return LlamaModel(context, file)
        if not config.model_transaction_policy.decoupled or config.max_batch_size:
            raise invalid_argument(
                f"model '{config.name}': the llamacpp backend needs model_transaction_policy {{ decoupled: true }} "
                f"and max_batch_size: 0, not {config.max_batch_size}; it batches by itself, over the instances"
            )
        SignatureCheck(config, SIGNATURE).check()
        return LlamaModel(context, file)


class LlamaModel(Model):
    """One loaded version."""

    def __init__(self, context: ModelContext, file: GgufFile) -> None:
        """Load the weights. Raises InferError."""
        self._context = context
        self._makes_vectors = file.makes_vectors
        self.server = LlamaServer(context, file)
        self.tensors = ResponseTensors(context.name, context.version, OUTPUTS)
        text = f"a window of {self.server.window} tokens for each instance"
        _log.info("model '%s' version %d: %s", context.name, context.version, text)

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance, which uses a slot while it executes."""
        return LlamaEmbeddingInstance(self._context, self.server) if self._makes_vectors else LlamaInstance(self)

    def close(self) -> None:
        """Release the weights."""
        self.server.close()


class LlamaInstance(GeneratingInstance):
    """Generates for one request at a time; llama.cpp computes the next tokens of all instances together."""

    def __init__(self, model: LlamaModel) -> None:
        super().__init__("llamacpp", model.tensors.empty)
        self._model = model

    def _generate(self, request: InferRequest, emit: Emit) -> None:
        model = self._model
        asked = read_llama_request(request, has_template=model.server.has_template, marks=model.server.marks)
        if model.server.default_max_tokens:
            asked.body.setdefault("max_tokens", model.server.default_max_tokens)
        generation = Generation(request, asked, model.tensors, emit, lambda: self._is_interrupted)
        model.server.generate(asked.body, generation.take, is_chat=asked.is_chat)
        generation.finish()

    def interrupt(self) -> None:
        """End the generation at its next token."""
        self._is_interrupted = True

"""Vectors of texts from GGUF files: one text of a batch after the other, several instances at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from naiad.backend.api import ModelContext
from naiad.backend.llamacpp.generation import error_of
from naiad.backend.llamacpp.llama_server import LlamaServer
from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.backend.tensor_instance import TensorInstance
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, internal, invalid_argument
from naiad.core.tensor import Array

TEXT = "text_input"
MAX_BATCH_SIZE = 32
"""`max_batch_size` of a model without one."""


def embedding_signature(size: int) -> ModelSignature:
    """Return the signature of a model with vectors of `size` numbers."""
    outputs = {
        "embedding": TensorSignature("embedding", DataType.FP32, (None, size)),
        "num_input_tokens": TensorSignature("num_input_tokens", DataType.INT32, (None, 1)),
    }
    return ModelSignature("GGUF", {TEXT: TensorSignature(TEXT, DataType.BYTES, (None, 1))}, outputs)


class LlamaEmbeddingInstance(TensorInstance):
    """Uses a slot of the server for one text after the other."""

    def __init__(self, context: ModelContext, server: LlamaServer) -> None:
        super().__init__(context)
        self.executable = server

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Make the vectors; see `TensorInstance.run`."""
        vectors, counts = [], []
        for text in inputs[TEXT].ravel().tolist():
            vector, count = self._embed(text)
            vectors.append(vector)
            counts.append([count])
        found = {"embedding": np.array(vectors, np.float32), "num_input_tokens": np.array(counts, np.int32)}
        return [found[name] for name in output_names]

    def _embed(self, text: bytes) -> tuple[Sequence[float], int]:
        try:
            content = text.decode()
        except UnicodeDecodeError as error:
            raise invalid_argument(f"input '{TEXT}' is not UTF-8: {error}; send text in UTF-8") from error
        if not content:
            raise invalid_argument(f"input '{TEXT}' has no tokens; send a longer text")
        server: LlamaServer = self.executable
        answer: Any = server.embed(content)
        if "error" in answer:
            if "too large" in str(answer["error"]):  # llama.cpp calls it a failure of its own
                raise invalid_argument(
                    f"input '{TEXT}' has more tokens than the window of {server.window}; send a shorter text, or set "
                    "the parameter 'context_tokens'"
                )
            raise error_of(answer["error"])
        try:
            return answer["data"][0]["embedding"], int(answer["usage"]["prompt_tokens"])
        except (LookupError, TypeError) as error:
            raise _unfit(self._model_name) from error


def _unfit(model_name: str) -> InferError:
    return internal(f"llama.cpp has returned no vector for model '{model_name}'")

"""The tensors of models that take texts: one text or a pair in, the number of tokens out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from naiad.backend.api import ModelContext
from naiad.backend.signature import ModelSignature, TensorSignature, complete, default_max_batch_size, is_complete
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Array

TEXT = "text"
"""Name of the input."""
TEXT_PAIR = "text_pair"
"""Name of the optional input with a second text, which cross-encoders compare with the first."""
TOKEN_COUNT = "num_input_tokens"
"""Name of the output with the number of tokens that the model has read."""
MAX_BATCH_SIZE = 32
"""`max_batch_size` of a model without one."""


def text_signature(framework: str, outputs: Mapping[str, TensorSignature], *, takes_pairs: bool) -> ModelSignature:
    """Return the signature of a model of texts."""
    text = TensorSignature(TEXT, DataType.BYTES, (None, 1))
    pair = {TEXT_PAIR: TensorSignature(TEXT_PAIR, DataType.BYTES, (None, 1))} if takes_pairs else {}
    return ModelSignature(framework, {TEXT: text}, outputs, pair)


def token_count_signature() -> TensorSignature:
    """Return the signature of the output with the number of tokens."""
    return TensorSignature(TOKEN_COUNT, DataType.INT32, (None, 1))


def completed_texts(context: ModelContext, read: Callable[[], ModelSignature]) -> ModelConfig:
    """Return the configuration of a model with what its signature adds, the optional input too. Raises InferError."""
    if is_complete(context.config):
        return context.config
    signature = read()
    batch_size = default_max_batch_size(context.backend_config, MAX_BATCH_SIZE)
    if context.config.input:
        return complete(context.config, signature, batch_size)
    all_inputs = {**signature.inputs, **signature.optional_inputs}
    config = complete(context.config, replace(signature, inputs=all_inputs), batch_size)
    for tensor in config.input:
        tensor.optional = tensor.name in signature.optional_inputs
    return config


def texts_of(inputs: Mapping[str, Array], model_name: str) -> Sequence[Any]:
    """Return the texts of a batch, pairs where the requests have two. Raises InferError(INVALID_ARG)."""
    first = _decoded(inputs, TEXT, model_name)
    return list(zip(first, _decoded(inputs, TEXT_PAIR, model_name), strict=True)) if TEXT_PAIR in inputs else first


def _decoded(inputs: Mapping[str, Array], name: str, model_name: str) -> list[str]:
    try:
        return [text.decode() for text in inputs[name].ravel().tolist()]
    except UnicodeDecodeError as error:
        raise invalid_argument(
            f"input '{name}' of model '{model_name}' is not UTF-8: {error}; send text in UTF-8"
        ) from error


def encoded(tokenizer: Any, texts: Sequence[Any], model_name: str) -> Sequence[Any]:
    """Return the tokens of a batch, padded to its longest text. Raises InferError(INVALID_ARG) if there are none."""
    encodings: Sequence[Any] = tokenizer.encode_batch(texts)
    if not encodings[0].ids:
        raise invalid_argument(f"input '{TEXT}' of model '{model_name}' has no tokens; send a longer text")
    return encodings


def token_counts(encodings: Sequence[Any]) -> Array:
    """Return the number of tokens of each text, INT32 [texts, 1]; padding does not count."""
    counts: Array = np.array([[sum(encoding.attention_mask)] for encoding in encodings], np.int32)
    return counts

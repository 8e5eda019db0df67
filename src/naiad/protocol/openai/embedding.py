"""Bodies of `/v1/embeddings` ⇄ tensors of texts and vectors."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from naiad.config.openai_mapping import OpenAiMapping
from naiad.core.errors import excerpt, internal
from naiad.core.request import RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer, TensorSpec
from naiad.protocol.json.tensor import decode_data
from naiad.protocol.openai.generation_tensors import count_of, output_of
from naiad.protocol.openai.members import BodyMembers
from naiad.protocol.openai.openai_error import OpenAiError

MAX_TEXTS = 2048
MAX_DIMENSIONS = 1 << 16
MAX_NUMBERS = 1 << 23
"""Limit of the numbers in a response: 32 MiB of vectors."""
_NUMBERS_AT_ONCE = 16384
"""Numbers that are encoded at once, in a millisecond or two: the encoder holds the interpreter's lock meanwhile."""
_MEMBERS = ("model", "input", "encoding_format", "dimensions", "user")

Vectors = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """What a client asks to be embedded."""

    texts: Sequence[str]
    is_base64: bool
    dimensions: int
    """0: all that the model gives."""

    def columns(self, mapping: OpenAiMapping) -> Mapping[str, Sequence[str]]:
        """Return the texts of each input."""
        return {mapping.input: self.texts}

    def encode(self, parts: Sequence[Vectors], model: str, prompt_tokens: int | None) -> bytes:
        """Return the body of a response. Raises OpenAiError for more dimensions than the vectors have."""
        return encode_embeddings(parts, self, model, prompt_tokens)


def read_embedding(body: BodyMembers, mapping: OpenAiMapping, model: str) -> EmbeddingRequest:
    """Return the request of a body. Raises OpenAiError."""
    if mapping.task != "embedding":
        does = "generates text" if mapping.generates else "compares texts"
        raise OpenAiError(f"model '{excerpt(model)}' {does} and returns no embeddings", param="model")
    body.check_names(_MEMBERS)
    found = body.get("input")
    texts = found if isinstance(found, list) else [body.text("input")]
    if not 0 < len(texts) <= MAX_TEXTS or not all(isinstance(each, str) and each for each in texts):
        raise body.wrong("input", f"a text, or 1 to {MAX_TEXTS} texts, none empty; numbers of tokens are not taken")
    form = body.get("encoding_format")
    if form not in (None, "float", "base64"):
        raise body.wrong("encoding_format", "float or base64")
    return EmbeddingRequest(texts, form == "base64", body.whole("dimensions", 1, MAX_DIMENSIONS) or 0)


def batches_of(texts: Sequence[str], declared: TensorSpec, max_batch_size: int) -> Sequence[Sequence[str]]:
    """Return the texts of each request to the model: as many as its input takes at once."""
    size = max_batch_size or (MAX_TEXTS if declared.shape[:1] == (-1,) else 1)
    return [texts[start : start + size] for start in range(0, len(texts), size)]


def embedding_tensor(declared: TensorSpec, texts: Sequence[str]) -> tuple[TensorSpec, Buffer]:
    """Return the tensor of the texts of one request."""
    shape = (len(texts), *[1 if size == -1 else size for size in declared.shape[1:]]) if len(declared.shape) else ()
    spec = TensorSpec(declared.name, declared.datatype, shape)
    return spec, decode_data(spec, list(texts))


def embedding_header(model: str, version: str, specs: Sequence[TensorSpec]) -> RequestHeader:
    """Return the header of one request to a model."""
    return RequestHeader(model_name=model, model_version=version, inputs=specs)


def vectors_of(response: InferResponse, mapping: OpenAiMapping, count: int) -> Vectors:
    """Return the vectors of a response, one row for each text. Raises InferError if there are none."""
    where = f"output '{mapping.output}' of model '{response.header.model_name}'"
    found = output_of(response, mapping.output)
    if found is None:
        raise internal(f"the response has no {where}")
    spec, data = found
    shape = [size for position, size in enumerate(spec.shape) if position in (0, len(spec.shape) - 1) or size != 1]
    if shape[:1] != [count] and count == 1:
        shape = [1, *shape]
    if len(shape) != 2 or shape[0] != count or not shape[1]:
        raise internal(f"{where} has the shape {list(spec.shape)}; expected one vector for each of {count} texts")
    vectors = np.frombuffer(data, spec.datatype.numpy).astype(np.float32).reshape(shape)
    if not np.isfinite(vectors).all():
        raise internal(f"{where} has numbers that are not finite")
    return vectors


def tokens_of(response: InferResponse, mapping: OpenAiMapping) -> int | None:
    """Return the number of tokens in the texts of a response; None if the model does not say it."""
    return count_of(response, mapping.prompt_tokens)


def encode_embeddings(
    parts: Sequence[Vectors], asked: EmbeddingRequest, model: str, prompt_tokens: int | None
) -> bytes:
    """Return the body of a response. Raises OpenAiError for more dimensions than the vectors have."""
    vectors = np.concatenate(parts)
    if asked.dimensions:
        vectors = _shortened(vectors, asked.dimensions)
    step = max(1, _NUMBERS_AT_ONCE // vectors.shape[1])
    groups = [
        _encode_rows(vectors[start : start + step], start, is_base64=asked.is_base64)
        for start in range(0, len(vectors), step)
    ]
    usage: Mapping[str, int] | None = None
    if prompt_tokens is not None:
        usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    end = orjson.dumps({"model": model, "usage": usage}).removeprefix(b"{")
    return b"".join((b'{"object":"list","data":[', b",".join(groups), b"],", end))


def _encode_rows(vectors: Vectors, start: int, *, is_base64: bool) -> bytes:
    """Return the elements of `data` for some rows, of which `start` is the first, without brackets around them."""
    rows: Sequence[Any] = list(vectors)
    if is_base64:
        rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
    data = [{"object": "embedding", "index": start + index, "embedding": row} for index, row in enumerate(rows)]
    return orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def _shortened(vectors: Vectors, dimensions: int) -> Vectors:
    """Return the first dimensions of each vector, again with the length 1, as OpenAI does."""
    if dimensions > vectors.shape[1]:
        raise OpenAiError(
            f"'dimensions' is {dimensions}; the model has {vectors.shape[1]}",
            param="dimensions",
            code="invalid_value",
        )
    if dimensions == vectors.shape[1]:
        return vectors
    short = np.ascontiguousarray(vectors[:, :dimensions])
    lengths = np.linalg.norm(short, axis=1, keepdims=True)
    return (short / np.where(lengths > 0, lengths, 1)).astype(np.float32)

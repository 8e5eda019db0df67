import base64
import json
from types import SimpleNamespace

import numpy as np
import pytest

from naiad.config.openai_mapping import OpenAiMapping
from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.protocol.openai import embedding
from naiad.protocol.openai.embedding import (
    EmbeddingRequest,
    batches_of,
    embedding_tensor,
    encode_embeddings,
    vectors_of,
)

MAPPING = OpenAiMapping("embedding", "IN", "OUT")


def response(array):
    spec = TensorSpec("OUT", DataType.FP32, array.shape)
    return InferResponse(ResponseHeader("m", "1", (spec,)), (array.astype(np.float32).tobytes(),))


@pytest.mark.parametrize(
    ("shape", "max_batch_size", "sizes"), [((-1, 1), 4, [4, 4, 1]), ((-1,), 0, [9]), ((1,), 0, [1] * 9)]
)
def test_texts_go_in_batches_of_the_model(shape, max_batch_size, sizes):
    declared = TensorSpec("IN", DataType.BYTES, shape)
    batches = batches_of(["a"] * 9, declared, max_batch_size)
    assert [len(batch) for batch in batches] == sizes
    assert embedding_tensor(declared, batches[0])[0].shape == (sizes[0], *[1] * (len(shape) - 1))


@pytest.mark.parametrize(("shape", "count"), [((2, 3), 2), ((2, 1, 3), 2), ((3,), 1), ((1, 3), 1)])
def test_vectors_are_rows(shape, count):
    assert vectors_of(response(np.ones(shape)), MAPPING, count).shape == (count, 3)


@pytest.mark.parametrize(("shape", "count"), [((3, 3), 2), ((2, 5, 3), 2), ((2, 0), 2), ((2,), 2)])
def test_other_shapes_are_errors(shape, count):
    with pytest.raises(InferError, match="one vector for each of"):
        vectors_of(response(np.ones(shape)), MAPPING, count)


def test_numbers_that_are_not_finite_are_errors():
    with pytest.raises(InferError, match="not finite"):
        vectors_of(response(np.array([[np.nan]])), MAPPING, 1)


@pytest.mark.parametrize("is_base64", [False, True])
def test_vectors_of_all_batches_are_encoded(is_base64):
    parts = [np.array([[0.1, 2]], np.float32), np.array([[3, 4]], np.float32)]
    body = json.loads(encode_embeddings(parts, EmbeddingRequest(["a", "b"], is_base64, 0), "m", None))
    rows = [each["embedding"] for each in body["data"]]
    if is_base64:
        rows = [np.frombuffer(base64.b64decode(row), "<f4").tolist() for row in rows]
    assert np.array_equal(np.array(rows, np.float32), np.concatenate(parts))
    assert body["usage"] is None


@pytest.mark.parametrize("size", [3, 7000, 20_000])
def test_many_rows_are_encoded_in_groups(monkeypatch, size):
    encoded = []
    dumps = embedding.orjson.dumps
    counting = SimpleNamespace(
        dumps=lambda value, option=None: encoded.append(len(value)) or dumps(value, option=option),
        OPT_SERIALIZE_NUMPY=embedding.orjson.OPT_SERIALIZE_NUMPY,
    )
    monkeypatch.setattr(embedding, "orjson", counting)
    rows = np.arange(6 * size, dtype=np.float32).reshape(6, size)
    body = json.loads(encode_embeddings([rows[:4], rows[4:]], EmbeddingRequest(["a"] * 6, False, 0), 'm"', 1))
    assert np.array_equal([each["embedding"] for each in body["data"]], rows)
    assert [each["index"] for each in body["data"]] == list(range(6))
    assert (body["object"], body["model"]) == ("list", 'm"')
    assert encoded == [*{3: [6], 7000: [2, 2, 2], 20_000: [1] * 6}[size], 2]


def test_vector_of_zeros_can_be_shortened():
    parts = [np.array([[0, 0, 5]], np.float32)]
    body = json.loads(encode_embeddings(parts, EmbeddingRequest(["a"], False, 2), "m", 3))
    assert body["data"][0]["embedding"] == [0, 0]
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}

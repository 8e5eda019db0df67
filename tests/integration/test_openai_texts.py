"""Embeddings and reranking of ONNX encoders with tokenizers, asked by the official client of OpenAI."""

import base64
from collections.abc import Iterator

import httpx
import numpy as np
import openai
import pytest

from support.model_repository import write_model
from support.server_process import ServerProcess, serving
from support.text_models import MAX_TOKENS, WORDS, write_cross_encoder, write_encoder, write_word_counts

TEXT_BACKEND = 'backend: "onnx_text"\n'
COSINE = 'parameters { key: "openai" value { string_value: "embedding,output=embedding,rerank=cosine" } }\n'
DOCUMENTS = ["dogs bark", "cats purr", "rain falls", "cats cats"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("texts")
    for name, config in (("words", TEXT_BACKEND), ("first", TEXT_BACKEND), ("near", TEXT_BACKEND + COSINE)):
        write_model(repository, name, config, {})
        write_encoder(repository / name / "1", pooling="cls_token" if name == "first" else "mean_tokens")
    write_model(repository, "judge", TEXT_BACKEND, {})
    write_cross_encoder(repository / "judge" / "1")
    write_word_counts(repository)
    with serving(tmp_path_factory.mktemp("server") / "log", f"--model-repository={repository}") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    url = f"http://{server.http_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as opened:
        yield opened


@pytest.fixture(scope="module")
def raw(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{server.http_url}", timeout=120) as opened:
        yield opened


def vector(*words: str) -> np.ndarray:
    counts = np.array([words.count(word) for word in WORDS], np.float32)
    return counts / max(np.linalg.norm(counts), 1e-12)


# --- embeddings -----------------------------------------------------------------------------------------------------


def test_models_are_listed_without_a_parameter(client):
    assert [each.id for each in client.models.list()] == sorted(
        ["counts", "ensemble_counted", "ensemble_masked", "ensemble_silent", "first", "judge", "near", "words"]
    )


def test_vectors_are_pooled_and_normalised(client):
    found = client.embeddings.create(model="words", input=["cats purr", "dogs", "cats cats dogs", "nothing known"])
    wanted = [vector("cats", "purr"), vector("dogs"), vector("cats", "cats", "dogs"), vector()]
    for each, expected in zip(found.data, wanted, strict=True):
        np.testing.assert_allclose(each.embedding, expected, atol=1e-6)
    # [CLS] and [SEP] of each text count as tokens.
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (8 + 8, 16)


def test_pooling_of_the_directory_is_used(client):
    found = client.embeddings.create(model="first", input="cats purr")
    np.testing.assert_allclose(found.data[0].embedding, vector(), atol=1e-6)  # [CLS] has no dimension


def test_long_text_is_cut_at_the_most_tokens(client):
    found = client.embeddings.create(model="words", input="cats " * 4 + "dogs " * 40)
    np.testing.assert_allclose(found.data[0].embedding, vector(*["cats"] * 4, *["dogs"] * 2), atol=1e-6)
    assert found.usage.prompt_tokens == MAX_TOKENS


def test_more_texts_than_a_batch_keep_their_order(client):
    texts = [WORDS[number % len(WORDS)] for number in range(100)]
    found = client.embeddings.create(model="words", input=texts)
    assert [int(np.argmax(each.embedding)) for each in found.data] == [number % len(WORDS) for number in range(100)]
    assert found.usage.prompt_tokens == 300


def test_dimensions_and_base64(client, raw):
    whole = client.embeddings.create(model="words", input="cats purr dogs")
    short = client.embeddings.create(model="words", input="cats purr dogs", dimensions=2)
    np.testing.assert_allclose(short.data[0].embedding, [0.5**0.5, 0.5**0.5], atol=1e-6)
    body = {"model": "words", "input": "cats purr dogs", "encoding_format": "base64"}
    text = raw.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(text), "<f4"), np.float32(whole.data[0].embedding))
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="words", input="cats", dimensions=len(WORDS) + 1)
    assert caught.value.param == "dimensions"


@pytest.mark.parametrize("model", ["counts", "ensemble_counted", "ensemble_masked"])
def test_usage_of_any_backend_is_right(client, model):
    # More than a batch: 1 + 2 + ... + 9 words, and two more tokens for each text.
    found = client.embeddings.create(model=model, input=[" ".join(["cats"] * number) for number in range(1, 10)])
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (45 + 18, 63)


def test_usage_is_null_where_no_tokens_are_counted(raw):
    body = raw.post("/v1/embeddings", json={"model": "ensemble_silent", "input": "cats"}).json()
    assert body["usage"] is None
    assert rerank(raw, "ensemble_silent").json()["usage"] is None


# --- reranking ------------------------------------------------------------------------------------------------------


def rerank(raw: httpx.Client, model: str, **members: object) -> httpx.Response:
    return raw.post("/v1/rerank", json={"model": model, "query": "cats purr", "documents": DOCUMENTS, **members})


def test_cross_encoder_orders_documents(raw):
    found = rerank(raw, "judge", return_documents=True).json()
    assert [each["index"] for each in found["results"]] == [1, 3, 0, 2]
    assert [each["document"]["text"] for each in found["results"][:2]] == ["cats purr", "cats cats"]
    scores = [each["relevance_score"] for each in found["results"]]
    np.testing.assert_allclose(scores, 1 / (1 + np.exp([-1.0, -1.0, 1.0, 1.0])), atol=1e-6)
    assert found["usage"]["total_tokens"] == 4 * 7
    assert "document" not in rerank(raw, "judge", top_n=1).json()["results"][0]


@pytest.mark.parametrize("model", ["counts", "ensemble_counted"])
def test_usage_of_reranking_counts_query_and_documents(raw, model):
    # "cats purr" once, and four documents of two words, each with two more tokens.
    assert rerank(raw, model).json()["usage"] == {"prompt_tokens": 5 * 4, "total_tokens": 20}


def test_vectors_are_compared_where_the_owner_allows_it(raw):
    found = rerank(raw, "near", top_n=2).json()
    assert [each["index"] for each in found["results"]] == [1, 3]
    np.testing.assert_allclose([each["relevance_score"] for each in found["results"]], [1, 0.5**0.5], atol=1e-6)


@pytest.mark.parametrize(
    ("model", "members", "param"),
    [
        ("words", {}, "model"),
        ("judge", {"documents": []}, "documents"),
        ("judge", {"documents": [1]}, "documents"),
        ("judge", {"documents": [{"text": ""}]}, "documents"),
        ("judge", {"query": ""}, "query"),
        ("judge", {"top_n": 0}, "top_n"),
        ("judge", {"rank_fields": ["a"]}, "rank_fields"),
        ("judge", {"query": "q" * 5000, "documents": ["d"] * 1000}, "documents"),
    ],
)
def test_wrong_members_are_named(raw, model, members, param):
    response = rerank(raw, model, **members)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_model_of_pairs_returns_no_embeddings(client):
    with pytest.raises(openai.BadRequestError, match="compares texts"):
        client.embeddings.create(model="judge", input="cats")


# --- bare directories -----------------------------------------------------------------------------------------------


def test_directory_of_the_hub_is_served(tmp_path):
    write_encoder(tmp_path / "hub", "onnx/model.onnx")
    with (
        serving(tmp_path / "log", str(tmp_path / "hub")) as running,
        openai.OpenAI(base_url=f"http://{running.http_url}/v1", api_key="none", timeout=120) as client,
    ):
        found = client.embeddings.create(model="hub", input="sun shines")
    np.testing.assert_allclose(found.data[0].embedding, vector("sun", "shines"), atol=1e-6)

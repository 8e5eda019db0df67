"""The official client of OpenAI against a server: models, completions, chats and embeddings."""

import json
import math
import re
import socket
from collections.abc import Iterator

import httpx
import openai
import pytest

from naiad.cli.key import new_key
from support.openai_models import write_openai_models
from support.server_process import START_S, ServerProcess, serving
from support.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("openai")
    write_openai_models(repository)
    log = tmp_path_factory.mktemp("server") / "log"
    # Its workers start at once: on a busy machine one of them may take more than the 30 s that are usual.
    flags = (f"--model-repository={repository}", f"--backend-config=python,stub-timeout-seconds={START_S}")
    with serving(log, *flags) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    url = f"http://{server.http_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as opened:
        yield opened


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{server.http_url}", timeout=120, verify=False) as opened:
        yield opened


# --- models ---------------------------------------------------------------------------------------------------------


def test_models_with_a_task_are_listed(client):
    assert [each.id for each in client.models.list()] == ["echo", "talk", "vectors", "words"]
    assert client.models.retrieve("words").id == "words"
    for name in ("other", "nothing"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve(name)
        assert caught.value.code == "model_not_found"


# --- completions ----------------------------------------------------------------------------------------------------


def test_completion_has_text_reason_and_usage(client):
    found = client.completions.create(model="words", prompt="a cup of tea")
    (choice,) = found.choices
    assert (choice.text, choice.finish_reason, found.model) == ("a cup of tea", "stop", "words")
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (4, 4, 8)
    assert found.id.startswith("cmpl-")


def test_completion_cut_by_max_tokens_says_length(client):
    found = client.completions.create(model="words", prompt="a cup of tea", max_tokens=2)
    assert (found.choices[0].text, found.choices[0].finish_reason) == ("a cup", "length")
    assert found.usage.completion_tokens == 2


def test_prompts_and_choices_have_their_order(client):
    found = client.completions.create(model="words", prompt=["a b", "c"], n=2)
    assert [(each.index, each.text) for each in found.choices] == [(0, "a b"), (1, "a b"), (2, "c"), (3, "c")]
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (3, 6)


def test_echo_begins_with_the_prompt(client):
    assert client.completions.create(model="words", prompt="a b", echo=True).choices[0].text == "a ba b"


def test_stream_has_pieces_reason_and_usage(client):
    stream = client.completions.create(
        model="words", prompt="a cup of tea", stream=True, max_tokens=3, stream_options={"include_usage": True}
    )
    *chunks, end, usage = list(stream)
    assert [chunk.choices[0].text for chunk in chunks] == ["a", " cup", " of"]
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks)
    assert end.choices[0].finish_reason == "length"
    assert (usage.choices, usage.usage.total_tokens) == ([], 7)


def test_stream_of_several_choices_has_their_indices(client):
    texts = ["", "", "", ""]
    for chunk in client.completions.create(model="words", prompt=["a b c", "d e"], n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["a b c", "a b c", "d e", "d e"]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_over_borders_of_pieces(client, stream):
    found = client.completions.create(model="words", prompt="a cup of tea wait", stop=["p of t"], stream=stream)
    chunks = list(found) if stream else [found]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "a cu"
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_characters_in_several_pieces_are_whole(client, stream):
    found = client.completions.create(model="words", prompt="bytes", stream=stream)
    chunks = list(found) if stream else [found]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "a € 😀"
    assert "�" not in "".join(chunk.choices[0].text for chunk in chunks)


def test_sampling_reaches_the_model(client):
    found = client.completions.create(
        model="words", prompt="sampling", temperature=0.5, seed=3, n=2, stop="\x01", extra_body={"top_k": 5}
    )
    texts = [json.loads(each.text) for each in found.choices]
    assert texts[0] == {"seed": 3, "stop": ["\x01"], "temperature": 0.5, "top_k": 5}
    assert texts[1] == {**texts[0], "seed": 4}


@pytest.mark.parametrize("name", ["words@1", "words@2"])
def test_version_in_the_name(client, name):
    found = client.completions.create(model=name, prompt="a")
    assert (found.choices[0].text, found.model) == ("a", name)


def test_version_that_does_not_exist(client):
    with pytest.raises(openai.NotFoundError, match="words"):
        client.completions.create(model="words@7", prompt="a")


def test_failure_of_the_model_is_the_status(client):
    with pytest.raises(openai.InternalServerError, match="out of words"):
        client.completions.create(model="words", prompt="a fail")


def cancelled_count(server):
    """Return how many requests have been cancelled while they were executed."""
    text = httpx.get(f"http://{server.metrics_url}/metrics", timeout=120).text
    rows = re.findall(r"^naiad_inference_cancelled_total\{.*execution.*\} (\d+)", text, re.MULTILINE)
    return sum(map(int, rows))


def test_text_that_does_not_fit_cancels_the_model(client, server):
    """The model would wait for a minute after it."""
    before = cancelled_count(server)
    with pytest.raises(openai.InternalServerError, match="more than 4194304 characters"):
        client.completions.create(model="words", prompt="long wait")
    wait_until(lambda: cancelled_count(server) > before, "the model was not cancelled")


def test_failure_in_a_stream_is_an_error(client):
    stream = client.completions.create(model="words", prompt="a fail", stream=True)
    assert next(stream).choices[0].text == "a"
    with pytest.raises(openai.APIError, match="out of words"):
        next(stream)


def test_client_that_leaves_stops_the_model(server, client):
    stream = client.completions.create(model="words", prompt="a wait", stream=True)
    identity = next(stream).id
    stream.close()
    server.wait_log(f"{identity}.*CANCELLED.*the client disconnected")


# --- chats ----------------------------------------------------------------------------------------------------------

MESSAGES = [{"role": "system", "content": "be short"}, {"role": "user", "content": "one two three"}]


def test_chat_applies_the_template(client):
    found = client.chat.completions.create(model="talk", messages=MESSAGES)
    message = found.choices[0].message
    assert message.role == "assistant"
    words = "<|im_start|>system be short<|im_end|> <|im_start|>user one two three<|im_end|> <|im_start|>assistant"
    assert message.content == words
    assert found.usage.completion_tokens == 8
    assert found.id.startswith("chatcmpl-")


def test_streamed_chat_begins_with_the_role(client):
    stream = client.chat.completions.create(model="talk", messages=MESSAGES, stream=True, max_completion_tokens=2)
    first, *rest = list(stream)
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert [chunk.choices[0].delta.content for chunk in rest] == ["<|im_start|>system", " be", None]
    assert rest[-1].choices[0].finish_reason == "length"


def test_messages_as_json_and_no_counts(client):
    found = client.chat.completions.create(model="echo", messages=MESSAGES, max_tokens=2)
    assert found.choices[0].message.content == "three two"
    assert found.usage is None


def test_ordinary_model_streams_one_piece(client):
    chunks = list(client.chat.completions.create(model="echo", messages=MESSAGES, stream=True))
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "three two one", None]


def test_chat_without_a_template_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(model="words", messages=MESSAGES)


# --- embeddings -----------------------------------------------------------------------------------------------------


def test_embeddings_of_many_texts(client):
    texts = ["word " * (number + 1) for number in range(9)]
    found = client.embeddings.create(model="vectors", input=texts)
    assert [each.index for each in found.data] == list(range(9))
    assert [each.embedding for each in found.data] == [[5 * n, n, 3, 4] for n in range(1, 10)]
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (45, 45)


@pytest.mark.parametrize("form", ["float", "base64"])
def test_one_text_in_both_encodings(client, form):
    found = client.embeddings.create(model="vectors", input="abc", encoding_format=form)
    if form == "float":
        assert found.data[0].embedding == [3, 1, 3, 4]
    else:
        assert found.data[0].embedding == "AABAQAAAgD8AAEBAAACAQA=="


def test_dimensions_shorten_vectors(client):
    found = client.embeddings.create(model="vectors", input="abc", dimensions=2)
    assert found.data[0].embedding == pytest.approx([3 / math.sqrt(10), 1 / math.sqrt(10)])
    with pytest.raises(openai.BadRequestError, match="the model has 4"):
        client.embeddings.create(model="vectors", input="abc", dimensions=5)


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {"prompt": "a"}, "model"),
        ("completions", {"model": "words"}, "prompt"),
        ("completions", {"model": "words", "prompt": [1, 2]}, "prompt"),
        ("completions", {"model": "words", "prompt": "a", "n": 10_000}, "n"),
        ("completions", {"model": "words", "prompt": ["a"] * 129}, "prompt"),
        ("completions", {"model": "words", "prompt": "a", "temperature": "hot"}, "temperature"),
        ("completions", {"model": "words", "prompt": "a", "stop": ["a"] * 5}, "stop"),
        ("completions", {"model": "words", "prompt": "a", "unknown": 1}, "unknown"),
        ("completions", {"model": "words", "prompt": "a", "logprobs": 3}, "logprobs"),
        ("completions", {"model": "words", "prompt": "a", "max_tokens": 0}, "max_tokens"),
        ("completions", {"model": "vectors", "prompt": "a"}, "model"),
        ("chat/completions", {"model": "talk", "messages": []}, "messages"),
        ("chat/completions", {"model": "talk", "messages": [{"role": "tool"}]}, "messages[0].role"),
        (
            "chat/completions",
            {"model": "talk", "messages": MESSAGES, "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ("embeddings", {"model": "words", "input": "a"}, "model"),
        ("embeddings", {"model": "vectors", "input": ["a"] * 2049}, "input"),
        ("embeddings", {"model": "vectors", "input": "a", "encoding_format": "hex"}, "encoding_format"),
    ],
)
def test_mistake_names_the_member(raw, path, body, param):
    answer = raw.post(f"/v1/{path}", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b'["a"]', 400),
        ("POST", "/v1/completions", b'{"model": "words", "prompt": "\\ud800"}', 400),
        ("POST", "/v1/completions", b'{"model": "words", "prompt": "' + b"a" * (10 << 20) + b'"}', 400),
        ("POST", "/v1/completions", b'{"a":' * 5000, 400),
        ("GET", "/v1/completions", b"", 405),
        ("GET", "/v1/nothing", b"", 404),
        ("POST", "/v1/models/words/load", b"", 404),
    ],
)
def test_every_error_has_the_shape(raw, method, path, content, status):
    answer = raw.request(method, path, content=content)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert raw.post("/v1/completions", json={"model": "words", "prompt": "a"}).status_code == 200


def test_other_paths_keep_their_errors(raw):
    assert isinstance(raw.get("/v2/nothing").json()["error"], str)


def test_keys_restrict_the_api(tmp_path):
    repository = tmp_path / "models"
    write_openai_models(repository)
    line, key = new_key("ci", "inference")
    (tmp_path / "keys").write_text(f"{line}\nprobe health -\n")
    flags = (f"--model-repository={repository}", "--load-model=echo", "--model-control-mode=explicit")
    with serving(tmp_path / "log", *flags, f"--api-key-file={tmp_path / 'keys'}") as running:
        url = f"http://{running.http_url}/v1"
        with openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=120) as client:
            assert client.chat.completions.create(model="echo", messages=MESSAGES).choices
            with pytest.raises(openai.PermissionDeniedError, match="not for 'metadata'"):
                client.models.list()
        with openai.OpenAI(base_url=url, api_key="guess", max_retries=0, timeout=120) as guessing:
            with pytest.raises(openai.AuthenticationError) as caught:
                guessing.chat.completions.create(model="echo", messages=MESSAGES)
            assert caught.value.code == "invalid_api_key"


# --- the list of bad input, by the official client ------------------------------------------------------------------

QUESTION = {"query": "a", "documents": ["b"]}


@pytest.mark.parametrize(
    ("call", "expected", "param", "words"),
    [
        (lambda c: c.completions.create(model="gone", prompt="a"), 404, "model", "'gone'"),
        (lambda c: c.chat.completions.create(model="gone", messages=MESSAGES), 404, "model", "'gone'"),
        (lambda c: c.embeddings.create(model="gone", input="a"), 404, "model", "'gone'"),
        (lambda c: c.post("/rerank", body={"model": "gone", **QUESTION}, cast_to=object), 404, "model", "'gone'"),
        (
            lambda c: c.chat.completions.create(model="vectors", messages=MESSAGES),
            400,
            "model",
            "not for chats",
        ),
        (lambda c: c.embeddings.create(model="talk", input="a"), 400, "model", "no embeddings"),
        (lambda c: c.post("/rerank", body={"model": "talk", **QUESTION}, cast_to=object), 400, "model", "'talk'"),
        (lambda c: c.completions.create(model="words", prompt={"text": "a"}), 400, "prompt", "expected"),
        (lambda c: c.chat.completions.create(model="talk", messages="a"), 400, "messages", "expected"),
        (
            lambda c: c.chat.completions.create(model="talk", messages=[{"role": "user"}]),
            400,
            "messages[0].content",
            "",
        ),
        (lambda c: c.embeddings.create(model="vectors", input=[1.5]), 400, "input", "expected"),
        (lambda c: c.completions.create(model="words", prompt="a", n=10_000), 400, "n", "10000"),
        (lambda c: c.chat.completions.create(model="talk", messages=MESSAGES, n=10_000), 400, "n", "10000"),
        (lambda c: c.completions.create(model="words", prompt="a" * (10 << 20)), 400, None, "at most"),
        (lambda c: c.embeddings.create(model="vectors", input="a" * (10 << 20)), 400, None, "at most"),
        (lambda c: c.completions.create(model="words", prompt="a", stop=["a" * 257]), 400, "stop", "256"),
        (
            lambda c: c.completions.create(model="words", prompt="a", extra_body={"echo": "no"}),
            400,
            "echo",
            "expected",
        ),
        (lambda c: c.completions.create(model="words", prompt="a", stream_options={}), 400, "stream_options", ""),
    ],
)
def test_bad_call_is_one_clear_error(client, server, call, expected, param, words):
    with pytest.raises(openai.APIStatusError) as caught:
        call(client)
    error = caught.value
    assert (error.status_code, error.param, error.type) == (expected, param, "invalid_request_error")
    assert words in error.message
    assert (error.code == "model_not_found") == (expected == 404)
    assert waiting_count(server) == 0


def waiting_count(server):
    """Return the requests that wait or are executed, and the bytes of their bodies."""
    text = httpx.get(f"http://{server.metrics_url}/metrics", timeout=120).text
    rows = re.findall(r"^(?:nv_inference_pending_request_count\{.*|naiad_request_bytes_in_flight) (\d+)", text, re.M)
    assert rows
    return sum(map(int, rows))


def test_client_that_reads_slowly_gets_all(server):
    """Its model pauses meanwhile, other clients are served, and then the whole text arrives."""
    prompt = " ".join("x" * 100_000 for _ in range(40))
    body = json.dumps({"model": "words", "prompt": prompt, "stream": True}).encode()
    url = f"http://{server.http_url}"
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        slow.settimeout(120)
        slow.connect((httpx.URL(url).host, httpx.URL(url).port))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        slow.sendall(head.encode() + body)
        received = bytearray(slow.recv(100))
        other = httpx.post(f"{url}/v1/completions", json={"model": "talk", "prompt": "a"}, timeout=120)
        assert other.json()["choices"][0]["text"] == "a"
        while not received.endswith(b"\r\n0\r\n\r\n"):
            piece = slow.recv(1 << 16)
            assert piece
            received += piece
    assert received.count(b'"text":') == 41
    assert b"data: [DONE]" in received
    wait_until(lambda: waiting_count(server) == 0, "the request of the slow client is still there")

"""A decoupled Python model in the shape of a language model: its words over generate, events and lines."""

import json
from collections.abc import Iterator

import httpx
import httpx_sse
import pytest

from support.language_models import write_word_by_word
from support.process_resources import ProcessResources
from support.server_process import ServerProcess, serving
from support.slow_client import slow_post

GENERATE = "/v2/models/word_by_word/generate"
STREAM = "/v2/models/word_by_word/generate_stream"
INFER = "/v2/models/word_by_word/infer"
PROMPT = "tea of cup a"


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with `word_by_word`."""
    repository = tmp_path_factory.mktemp("language")
    write_word_by_word(repository)
    with serving(tmp_path_factory.mktemp("server") / "log", f"--model-repository={repository}") as running:
        yield running


@pytest.fixture
def client(talker: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{talker.http_url}", timeout=60, verify=False) as opened:
        yield opened


def events(client, body):
    """Return the status, and the events as a real SSE client reads them."""
    with httpx_sse.connect_sse(client, "POST", STREAM, json=body) as source:
        return source.response.status_code, [event.json() for event in source.iter_sse()]


def infer_body(prompt, **parameters):
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [prompt]}
    return {"inputs": [tensor], "parameters": parameters}


def test_words_are_streamed(client):
    status, found = events(client, {"text_input": PROMPT, "id": "w"})
    assert status == 200
    assert [event["text_output"] for event in found] == ["a", "cup", "of", "tea"]
    assert {event["id"] for event in found} == {"w"}


def test_breakdown_in_the_middle_is_an_event(client):
    body = {"text_input": PROMPT, "parameters": {"fail_after": 2}}
    status, found = events(client, body)
    assert status == 200
    assert [event.get("text_output", event.get("error")) for event in found] == ["a", "cup", "out of words"]


def test_breakdown_at_the_beginning_is_the_status(client):
    body = {"text_input": PROMPT, "parameters": {"fail_after": 0}}
    status, found = events(client, body)
    assert (status, found) == (500, [{"error": "out of words"}])
    answer = client.post(GENERATE, json=body)
    assert (answer.status_code, answer.json()) == (500, {"error": "out of words"})


@pytest.mark.parametrize(("max_tokens", "status"), [(1, 200), (0, 400), (2, 400)])
def test_generate_takes_exactly_one_response(client, max_tokens, status):
    answer = client.post(GENERATE, json={"text_input": PROMPT, "max_tokens": max_tokens})
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["text_output"] == "a"
    else:
        assert answer.json()["error"].startswith("generate expects model to produce exactly 1 response")


@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/event-stream"])
def test_words_over_infer(client, accept):
    answer = client.post(INFER, json=infer_body(PROMPT), headers={"Accept": accept})
    assert answer.headers["content-type"].startswith(accept)
    found = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
    assert [tree["outputs"][0]["data"] for tree in found] == [["a"], ["cup"], ["of"], ["tea"]]


def test_breakdown_in_middle_of_lines_is_line(client):
    headers = {"Accept": "application/x-ndjson"}
    answer = client.post(INFER, json=infer_body(PROMPT, fail_after=1), headers=headers)
    assert answer.status_code == 200
    first, second = (json.loads(line) for line in answer.text.splitlines())
    assert (first["outputs"][0]["data"], second) == (["a"], {"error": "out of words"})


def test_client_that_leaves_stops_the_model(talker, client):
    """The words come a minute apart, but for the first: it left before the second was made, and the model went on."""
    body = {"text_input": PROMPT, "id": "leaves", "parameters": {"delay_s": 60}}
    with httpx_sse.connect_sse(client, "POST", STREAM, json=body) as source:
        assert next(source.iter_sse()).json()["text_output"] == "a"
    talker.wait_log("request id: leaves.*CANCELLED.*the client disconnected")
    # The only instance is free again.
    assert client.post(GENERATE, json={"text_input": "again"}).json()["text_output"] == "again"


def test_slow_reader_pauses_model_and_gets_everything(talker, client):
    count = 60_000
    prompt = " ".join(f"word-{number}-of-many" for number in reversed(range(count)))
    body = {"text_input": prompt, "parameters": {"max_tokens": count}}
    resources = ProcessResources(talker.process.pid)
    before = resources.resident_bytes()
    with slow_post(talker, STREAM, body) as answer:
        # The model waits for this reader, which waits for another request: they must not wait for each other.
        assert client.get("/v2/models/word_by_word/stats").status_code == 200
        found = [json.loads(line[6:]).get("text_output", line) for line in answer if line != b"\n"]
    assert found == [f"word-{number}-of-many" for number in range(count)]
    assert resources.resident_bytes() - before < 64 << 20

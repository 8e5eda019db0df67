"""generate, generate_stream and streamed infer with httpx, curl and bare sockets against a real server."""

import json
import shutil
import subprocess
from collections.abc import Iterator

import httpx
import httpx_sse
import pytest

from support.language_models import write_whole
from support.model_repository import write_model
from support.process_resources import ProcessResources
from support.server_process import ServerProcess, serving
from support.slow_client import slow_post

INFER = "/v2/models/repeat/infer"
DELAY_MS = 500


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with `whole` and `repeat`."""
    repository = tmp_path_factory.mktemp("language")
    write_whole(repository)
    write_model(repository, "repeat", 'backend: "repeat"\n')
    with serving(
        tmp_path_factory.mktemp("server") / "log", f"--model-repository={repository}", "--exit-on-error=false"
    ) as running:
        yield running


@pytest.fixture
def client(talker: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{talker.http_url}", timeout=60, verify=False) as opened:
        yield opened


def repeat(values, delays_ms=None, **more):
    return {"IN": values, "DELAY": delays_ms or [0] * len(values), "WAIT": 0, **more}


def repeat_infer(values, delays_ms=None, **more):
    tensors = (("IN", "INT32", values), ("DELAY", "UINT32", delays_ms or [0] * len(values)), ("WAIT", "UINT32", [0]))
    inputs = [{"name": name, "datatype": kind, "shape": [len(data)], "data": data} for name, kind, data in tensors]
    return {"inputs": inputs, **more}


def events(client, path, body):
    """Return the status, and the events as a real SSE client reads them."""
    with httpx_sse.connect_sse(client, "POST", path, json=body) as source:
        return source.response.status_code, [event.json() for event in source.iter_sse()]


# --- text ---------------------------------------------------------------------------------------------------------

PROMPT = "tea of cup a"


@pytest.mark.parametrize("path", ["/v2/models/whole/generate", "/v2/models/whole/versions/1/generate"])
def test_text_in_text_out(client, path):
    answer = client.post(path, json={"text_input": PROMPT, "id": "42", "parameters": {"max_tokens": 3}})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"id": "42", "model_name": "whole", "model_version": "1", "text_output": "a cup of"}


def test_prompts_may_come_as_a_batch(client):
    answer = client.post("/v2/models/whole/generate", json={"text_input": ["a b", "c"], "max_tokens": 1})
    assert answer.json()["text_output"] == ["b", "c"]


def test_failure_of_the_model_is_the_status(client):
    answer = client.post("/v2/models/whole/generate", json={"text_input": ""})
    assert (answer.status_code, answer.json()) == (500, {"error": "a prompt is empty"})


def test_large_prompts_among_small_ones(client):
    """What is large goes to the model on another thread than what is small."""
    for count in (2, 300_000, 2, 300_000):
        body = {"text_input": "word " * count, "max_tokens": 3}
        assert client.post("/v2/models/whole/generate", json=body).json()["text_output"].startswith("word word")


def test_ordinary_model_streams_its_only_response(client):
    status, found = events(client, "/v2/models/whole/generate_stream", {"text_input": PROMPT})
    assert status == 200
    assert [event["text_output"] for event in found] == ["a cup of tea"]


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_failure_before_inference_is_plain_json(client, verb):
    answer = client.post(f"/v2/models/whole/{verb}", json={"prompt": PROMPT})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert "expected 1 inputs but got 0 inputs for model 'whole'" in answer.json()["error"]


# --- curl ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_shows_events(talker):
    url = f"http://{talker.http_url}/v2/models/repeat/generate_stream"
    arguments = ["curl", "-sN", "--max-time", "30", url, "-d", json.dumps(repeat([5, 6], id="c"))]
    shown = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    assert shown == "".join(
        f'data: {{"IDX":{index},"OUT":{value},"id":"c","model_name":"repeat","model_version":"1"}}\n\n'
        for index, value in enumerate([5, 6])
    )


# --- infer, streamed ----------------------------------------------------------------------------------------------


def test_decoupled_model_answers_infer_in_lines(client):
    headers = {"Accept": "application/x-ndjson"}
    with client.stream("POST", INFER, json=repeat_infer([7, 8], id="n"), headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/x-ndjson"
        found = [json.loads(line) for line in answer.iter_lines()]
    assert [tree["outputs"][0] for tree in found] == [
        {"name": "OUT", "datatype": "INT32", "shape": [1], "data": [value]} for value in (7, 8)
    ]
    assert {tree["id"] for tree in found} == {"n"}


def test_decoupled_model_answers_infer_in_events(client):
    headers = {"Accept": "text/event-stream"}
    with httpx_sse.connect_sse(client, "POST", INFER, json=repeat_infer([7, 8]), headers=headers) as source:
        assert [event.json()["outputs"][0]["data"] for event in source.iter_sse()] == [[7], [8]]


def test_decoupled_model_still_refuses_plain_infer(client):
    answer = client.post(INFER, json=repeat_infer([7]))
    assert answer.status_code == 501
    assert answer.json()["error"] == "HTTP end point doesn't support models with decoupled transaction policy"


def test_ordinary_model_answers_infer_in_one_line(client):
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [PROMPT]}
    headers = {"Accept": "application/x-ndjson"}
    answer = client.post("/v2/models/whole/infer", json={"inputs": [tensor]}, headers=headers)
    (line,) = answer.text.splitlines()
    assert json.loads(line)["outputs"][0]["data"] == ["a cup of tea"]


def test_refused_request_is_answered_before_any_line(client):
    body = repeat_infer([7, 8], [0])
    answer = client.post(INFER, json=body, headers={"Accept": "application/x-ndjson"})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert "expected IN and DELAY shape to match" in answer.json()["error"]


# --- clients that leave, and clients that do not read -------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "accept"),
    [
        ("/v2/models/repeat/generate_stream", repeat([1, 2], [0, DELAY_MS], id="gone-events"), "*/*"),
        (INFER, repeat_infer([1, 2], [0, DELAY_MS], id="gone-lines"), "application/x-ndjson"),
    ],
)
def test_client_that_leaves_in_middle_cancels_its_request(talker, client, path, body, accept):
    with client.stream("POST", path, json=body, headers={"Accept": accept}) as answer:
        assert next(line for line in answer.iter_lines() if line)
    # The model sees it when its next response is due.
    talker.wait_log(f"request id: {body['id']}.*CANCELLED.*the client disconnected")


def test_slow_reader_gets_everything_and_costs_little_memory(talker):
    count = 150_000
    resources = ProcessResources(talker.process.pid)
    before = resources.resident_bytes()
    with slow_post(talker, "/v2/models/repeat/generate_stream", repeat(list(range(count)))) as answer:
        # While this client does not read on, others are served, and what is made for it stays bounded.
        for number in range(3):
            assert talker.post("/v2/models/repeat/generate", repeat([number])).json["OUT"] == number
        found = [json.loads(line[6:])["IDX"] for line in answer if line != b"\n"]
    assert found == list(range(count))
    # The answer is 10 MB; of it the server holds about 1 MB and the kernel its socket buffers.
    assert resources.resident_bytes() - before < 64 << 20

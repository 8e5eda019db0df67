"""vLLM models in Triton's layout, with a double of vLLM in their worker processes, asked by the client of OpenAI."""

import json
import os
import signal
import threading
from pathlib import Path

import httpx
import openai
import pytest

from support.model_repository import write_model
from support.server_process import SOURCE, serving
from support.vllm_models import DOUBLE, LAYOUT, write_vllm
from support.waiting import wait_until

CHAT = 'parameters { key: "openai" value { string_value: "chat,template=plain" } }\n'


class Scene:
    """A server with `words`, in Triton's layout, and `bare`, which is only a `model.json`."""

    def __init__(self, server, calls):
        self.server = server
        self._calls = calls

    def calls(self):
        """Return the calls of vLLM that its double has noted."""
        return self._calls.read_text().split() if self._calls.exists() else []


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "words", LAYOUT + CHAT, {})
    write_vllm(repository / "words" / "1")
    write_vllm(repository / "bare" / "1")
    write_vllm(repository / "processes" / "1", model="processes")
    calls = tmp_path_factory.mktemp("calls") / "calls"
    environment = {"PYTHONPATH": f"{SOURCE}{os.pathsep}{DOUBLE}", "VLLM_DOUBLE_CALLS": str(calls)}
    log = tmp_path_factory.mktemp("log") / "log"
    with serving(log, f"--model-repository={repository}", environment=environment) as running:
        yield Scene(running, calls)


@pytest.fixture(scope="module")
def client(scene):
    url = f"http://{scene.server.http_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as opened:
        yield opened


def test_completion_has_text_reason_and_usage(client):
    assert [each.id for each in client.models.list()] == ["bare", "processes", "words"]
    for model in ("bare", "words"):
        found = client.completions.create(model=model, prompt="one two three", max_tokens=2)
        assert (found.choices[0].text, found.choices[0].finish_reason) == ("three two", "length")
        assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (3, 2)


def test_stream_has_pieces_and_usage(client):
    stream = client.completions.create(
        model="bare", prompt="one two three", stream=True, logprobs=2, stream_options={"include_usage": True}
    )
    *pieces, end, usage = list(stream)
    assert [each.choices[0].text for each in pieces] == ["three", " two", " one"]
    assert list(pieces[0].choices[0].logprobs.top_logprobs[0]) == ["three", "o0"]
    assert end.choices[0].finish_reason == "stop"
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (3, 3)


def test_chat_has_the_template_of_the_parameter(client):
    messages = [{"role": "user", "content": "one two"}]
    found = client.chat.completions.create(model="words", messages=messages, stop=["one"])
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("Assistant: two ", "stop")


def test_errors_of_vllm_are_errors_of_the_request(client):
    with pytest.raises(openai.BadRequestError, match="longer than the maximum model length"):
        client.completions.create(model="bare", prompt="a " * 100)
    with pytest.raises(openai.InternalServerError, match="illegal memory access"):
        client.completions.create(model="bare", prompt="a fail")
    assert client.completions.create(model="bare", prompt="a").choices[0].text == "a"


def test_disconnect_aborts_the_generation(scene):
    before = scene.calls().count("abort")
    body = {"model": "bare", "prompt": "wait a", "stream": True}
    with httpx.stream("POST", f"http://{scene.server.http_url}/v1/completions", json=body, timeout=120) as stream:
        next(stream.iter_lines())
    wait_until(lambda: scene.calls().count("abort") > before, "vLLM has aborted nothing")


def test_dead_engine_is_replaced(scene, client):
    """Its requests get errors; the worker exits, and another one generates."""
    begun, errors = threading.Event(), []

    def wait_for_the_end():
        body = {"model": "words", "prompt": "wait a", "stream": True}
        url = f"http://{scene.server.http_url}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=120) as stream:
            for line in stream.iter_lines():
                begun.set()
                if line.startswith('data: {"error"'):
                    errors.append(json.loads(line.removeprefix("data: "))["error"]["message"])

    thread = threading.Thread(target=wait_for_the_end)
    thread.start()
    assert begun.wait(60)
    with pytest.raises(openai.InternalServerError, match="the engine of model 'words' has died"):
        client.completions.create(model="words", prompt="die")
    thread.join()
    assert len(errors) == 1

    def is_back():
        try:
            return client.completions.create(model="words", prompt="a b").choices[0].text == "b a"
        except openai.InternalServerError:
            return False

    wait_until(is_back, "no other engine has started")
    assert "has died; the worker exits" in scene.server.log_text()


def test_killed_server_leaves_no_process(scene):
    """It is the last test: an engine in processes of its own ends with the server, which cannot end it."""
    (started,) = [call for call in scene.calls() if call.startswith("process=")]
    engine = int(started.partition("=")[2])
    group = os.getpgid(engine)
    os.kill(engine, 0)
    scene.server.signal(signal.SIGKILL)
    scene.server.wait_exit()
    wait_until(lambda: not members_of(group), "processes of the engine are left")


def members_of(group):
    """Return the processes of a group that have not ended."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            state, _, its_group = (directory / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        found += [directory.name] if int(its_group) == group and state not in "XZ" else []
    return found

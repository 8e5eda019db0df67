"""A tiny directory of onnxruntime-genai, bare and in a repository, asked by the client of OpenAI."""

import json
import re
import threading

import httpx
import openai
import pytest
import tritonclient.http as triton
from bench.decoder_models import DecoderShape
from tokenizers import Tokenizer

from naiad.backend.onnx_genai.backend import OnnxGenaiBackend
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.backend_parts import load_model, make_context
from support.decoder_models import WholePrompt
from support.genai_models import genai_config, write_genai
from support.model_repository import write_model
from support.server_process import serving
from support.waiting import wait_until

SHAPE = DecoderShape(positions=4096)
CONFIG = 'backend: "onnx_genai"\nparameters { key: "prompt_tokens" value { string_value: "3" } }\n'
CHAT = [{"role": "user", "content": "Hi"}]
RENDERED = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


class Scene:
    """A server with `parts` in its repository and the bare directory `tiny`."""

    def __init__(self, server, path):
        self.server = server
        self._whole = WholePrompt(path, SHAPE)
        self.tokenizer = Tokenizer.from_file(str(path.parent / "tokenizer.json"))

    def text(self, prompt, count):
        """Return what the same graph generates without onnxruntime-genai and without its cache."""
        return self.tokenizer.decode(self._whole.greedy(self.tokenizer.encode(prompt).ids, count))


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    bare = tmp_path_factory.mktemp("bare") / "tiny"
    path = write_genai(bare, SHAPE)
    write_model(repository, "parts", CONFIG, {})
    write_genai(repository / "parts" / "1", SHAPE)
    flags = (f"--model-repository={repository}", str(bare))
    with serving(tmp_path_factory.mktemp("log") / "log", *flags) as running:
        yield Scene(running, path)


@pytest.fixture(scope="module")
def client(scene):
    url = f"http://{scene.server.http_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=300) as opened:
        yield opened


def test_bare_directory_streams_chats(client, scene):
    stream = client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=24, stream=True, stream_options={"include_usage": True}
    )
    *pieces, end, usage = list(stream)
    assert len(pieces) > 4
    assert "".join(each.choices[0].delta.content or "" for each in pieces) == scene.text(RENDERED, 24)
    assert end.choices[0].finish_reason == "length"
    assert usage.usage.prompt_tokens == len(scene.tokenizer.encode(RENDERED).ids)
    assert usage.usage.completion_tokens == 24


def test_prompt_in_parts_gives_the_same_text(client, scene):
    for model in ("tiny", "parts"):
        found = client.completions.create(model=model, prompt="hello, world", max_tokens=12)
        assert found.choices[0].text == scene.text("hello, world", 12)


def test_text_has_as_many_tokens_as_asked(client):
    found = client.completions.create(
        model="parts", prompt="hello", max_tokens=200, temperature=2, seed=1, extra_body={"min_tokens": 200}
    )
    assert (found.choices[0].finish_reason, found.usage.completion_tokens) == ("length", 200)


def test_context_is_the_one_of_the_file(client):
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size of 4096"):
        client.completions.create(model="tiny", prompt="x" * 4096)


def test_disconnect_frees_the_slot(scene, client):
    """The only slot generates thousands of tokens; when its client leaves, another one has its text."""
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 4000, "min_tokens": 4000, "stream": True}
    with httpx.stream("POST", f"http://{scene.server.http_url}/v1/completions", json=body, timeout=300) as stream:
        next(stream.iter_lines())
    assert client.completions.create(model="tiny", prompt="hello", max_tokens=1).usage.completion_tokens == 1
    wait_until(lambda: cancelled_count(scene.server) == 1, "the request of a client that has left goes on")


def cancelled_count(server):
    text = httpx.get(f"http://{server.metrics_url}/metrics", timeout=120).text
    return sum(map(int, re.findall(r"^naiad_inference_cancelled_total\{.*execution.*\} (\d+)", text, re.MULTILINE)))


def test_server_answers_while_a_long_prompt_is_read(scene, client):
    """The library holds the lock of its interpreter; that of the server is another one."""
    begun = threading.Thread(
        target=lambda: client.completions.create(model="tiny", prompt="x" * 3000, max_tokens=1), daemon=True
    )
    begun.start()
    with triton.InferenceServerClient(scene.server.http_url) as other:
        while begun.is_alive():
            assert other.is_server_live()
    begun.join()
    status = httpx.get(f"http://{scene.server.http_url}/v2/models/tiny/ready", timeout=60).status_code
    assert status == 200


def test_directory_that_cannot_be_loaded_is_named(tmp_path):
    write_genai(tmp_path / "1")
    wrong = genai_config()
    wrong["model"]["decoder"]["filename"] = "missing.onnx"
    (tmp_path / "1" / "genai_config.json").write_text(json.dumps(wrong))
    config = ModelConfig(name="m", backend="onnx_genai")
    with pytest.raises(InferError, match=r"cannot be loaded by onnxruntime-genai .*missing\.onnx"):
        load_model(OnnxGenaiBackend(), make_context(config, tmp_path))

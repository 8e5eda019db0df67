"""A tiny causal model of transformers, as a bare directory and in a repository, asked by the client of OpenAI."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
import torch
from tokenizers import Tokenizer

from naiad.backend.huggingface.backend import HuggingFaceBackend
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.backend_parts import load_model, make_context
from support.decoder_clients import DecoderClient, run_all
from support.hugging_face_models import write_llama
from support.model_repository import write_model
from support.server_process import serving
from support.waiting import wait_until

CONFIG = 'backend: "huggingface"\ninstance_group { count: 2 kind: KIND_CPU }\n'
EOS = 257
CHAT = [{"role": "user", "content": "Hi"}]
RENDERED = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


class Scene:
    """A server with `slots` in its repository and the bare directory `tiny`, and what they should generate."""

    def __init__(self, server, model, directory):
        self.server = server
        self.model = model
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    def text(self, prompt, count):
        """Return the greedy text of transformers without an end before `count` tokens."""
        ids = torch.tensor([self.tokenizer.encode(prompt).ids])
        found = self.model.generate(
            ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=EOS, pad_token_id=0
        )
        return self.tokenizer.decode(found[0, ids.shape[1] :].tolist())


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "slots", CONFIG, {})
    bare = tmp_path_factory.mktemp("bare") / "tiny"
    model = write_llama(bare)
    write_llama(repository / "slots" / "1")
    flags = (f"--model-repository={repository}", str(bare))
    with serving(tmp_path_factory.mktemp("log") / "log", *flags) as running:
        yield Scene(running, model, bare)


@pytest.fixture(scope="module")
def client(scene):
    url = f"http://{scene.server.http_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=300) as opened:
        yield opened


def complete(client, *, min_tokens=0, **members):
    given = {"model": "slots", "prompt": "hello", "max_tokens": 24, **members}
    return client.completions.create(**given, extra_body={"min_tokens": min_tokens})


def test_bare_directory_chats(client, scene):
    assert [each.id for each in client.models.list()] == ["slots", "tiny"]
    found = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=8, extra_body={"min_tokens": 8})
    assert found.choices[0].message.content == scene.text(RENDERED, 8)
    assert found.choices[0].finish_reason == "length"
    assert found.usage.prompt_tokens == len(scene.tokenizer.encode(RENDERED).ids)
    assert found.usage.completion_tokens == 8


def test_stream_has_the_text_in_pieces(client, scene):
    stream = complete(client, min_tokens=24, stream=True, stream_options={"include_usage": True})
    *pieces, end, usage = list(stream)
    assert len(pieces) > 4
    assert "".join(each.choices[0].text for each in pieces) == scene.text("hello", 24)
    assert end.choices[0].finish_reason == "length"
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (5, 24)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_ends_the_text_before_it(client, scene, stream):
    whole = scene.text("hello", 60)
    stop = next(whole[place : place + 2] for place in range(9, 50) if "\ufffd" not in whole[place : place + 2])
    found = complete(client, max_tokens=60, min_tokens=60, stop=[stop], stream=stream)
    pieces = list(found) if stream else [found]
    assert "".join(each.choices[0].text for each in pieces) == whole[: whole.index(stop)]
    assert pieces[-1].choices[0].finish_reason == "stop"


def test_seed_decides_the_text(client):
    texts = [complete(client, temperature=1.5, min_tokens=24, seed=seed).choices[0].text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_more_requests_than_slots(client, scene):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: complete(client, min_tokens=24), range(4)))
    assert {each.choices[0].text for each in found} == {scene.text("hello", 24)}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"prompt": "x" * 4096}, "the prompt has 4096 tokens: this exceeds the available context size of 4096"),
        ({"max_tokens": 4092}, "max_tokens is 4092: this exceeds .*; at most 4091 can follow it"),
        ({"temperature": 100.5}, "temperature"),
        ({"logprobs": 2}, "logprobs"),
    ],
)
def test_bad_requests_are_refused(client, members, message):
    with pytest.raises(openai.BadRequestError, match=message):
        complete(client, **members)


def test_disconnect_frees_the_slots(scene, client):
    """Both slots generate thousands of tokens; when their clients leave, a third one has its text."""
    before = cancelled_count(scene.server)
    begun = threading.Barrier(3, timeout=300)

    def begin_and_leave():
        body = {"model": "slots", "prompt": "hello", "max_tokens": 4000, "min_tokens": 4000, "stream": True}
        with httpx.stream("POST", f"http://{scene.server.http_url}/v1/completions", json=body, timeout=300) as stream:
            next(stream.iter_lines())
            begun.wait()

    leaving = [threading.Thread(target=begin_and_leave) for _ in range(2)]
    for each in leaving:
        each.start()
    begun.wait()
    for each in leaving:
        each.join()
    assert complete(client, max_tokens=1, min_tokens=1).usage.completion_tokens == 1
    wait_until(lambda: cancelled_count(scene.server) == before + 2, "the requests of clients that have left go on")


def cancelled_count(server):
    text = httpx.get(f"http://{server.metrics_url}/metrics", timeout=120).text
    return sum(map(int, re.findall(r"^naiad_inference_cancelled_total\{.*execution.*\} (\d+)", text, re.MULTILINE)))


# --- without a server -----------------------------------------------------------------------------------------------


def load(path, *, slots=3, **parameters):
    config = ModelConfig(name="m", backend="huggingface")
    config.instance_group.add(count=slots, kind="KIND_CPU")
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    return load_model(HuggingFaceBackend(), make_context(config, path))[0]


def test_tokens_are_equal_to_transformers(tmp_path):
    """Several at a time, on shared weights. What the files say of sampling is not applied by transformers again."""
    model = write_llama(tmp_path / "1")
    path = tmp_path / "1" / "generation_config.json"
    path.write_text(json.dumps({"do_sample": True, "temperature": 9.0, "eos_token_id": EOS}))
    served = load(tmp_path)
    clients = [DecoderClient(range(5, 5 + length), max_tokens=20, temperature=0) for length in (3, 17, 9)]
    run_all(served, clients)
    for each in clients:
        prompt = torch.tensor([each.prompt])
        found = model.generate(prompt, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert each.tokens == found[0, len(each.prompt) :].tolist()
    served.close()


def test_cancelled_and_slow_clients(tmp_path):
    write_llama(tmp_path / "1")
    served = load(tmp_path)
    left, slow, quick = (DecoderClient([number], max_tokens=40) for number in (1, 2, 3))

    def cancel():
        left.request.cancelled = True

    def pause():
        seen.append(len(slow.tokens))
        slow.request.is_paused = True

    def resume():
        seen.append(len(slow.tokens))
        slow.request.is_paused = False

    seen = []
    left.after[10], slow.after[5], quick.after[40] = cancel, pause, resume
    run_all(served, [left, slow, quick])
    assert 10 <= len(left.tokens) < 20
    assert left.error is None
    assert seen[0] == seen[1] < 40
    assert (len(slow.tokens), len(quick.tokens)) == (40, 40)
    served.close()


def test_failure_of_the_library_is_named(tmp_path, monkeypatch):
    write_llama(tmp_path / "1")
    served = load(tmp_path)
    client = DecoderClient([1])
    monkeypatch.setattr(torch, "ones_like", lambda tensor: 1 / 0)
    run_all(served, [client])
    assert client.error.message == "model 'm' failed on its tokens: ZeroDivisionError: division by zero"
    served.close()


@pytest.mark.parametrize(
    ("change", "parameters", "message"),
    [
        ({"vocab_size": 0}, {}, "write 'vocab_size' in config.json"),
        (
            {"eos_token_id": 260},
            {},
            "config.json with 260; expected numbers of tokens from 0 to 259",
        ),
        ({}, {"context_tokens": "9"}, "'context_tokens' is '9', expected a number from 16 to 4096"),
        ({}, {"dtype": "int8"}, "'dtype' is 'int8'"),
        ({}, {"eos_ids": "300"}, "'eos_ids' is '300', expected numbers of tokens from 0 to 259"),
    ],
)
def test_wrong_directories_and_parameters_are_named(tmp_path, change, parameters, message):
    write_llama(tmp_path / "1")
    (tmp_path / "1" / "generation_config.json").unlink()
    path = tmp_path / "1" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InferError, match=message):
        load(tmp_path, **parameters)


def test_batches_of_the_server_are_refused(tmp_path):
    write_llama(tmp_path / "1")
    config = ModelConfig(name="m", backend="huggingface", max_batch_size=4)
    config.model_transaction_policy.decoupled = True
    with pytest.raises(InferError, match="max_batch_size: 0, not 4"):
        HuggingFaceBackend().load(make_context(config, tmp_path))

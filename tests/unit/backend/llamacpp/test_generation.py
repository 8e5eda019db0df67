"""Requests of a GGUF model as bodies for llama.cpp, and its chunks as responses. The library is not needed."""

import json
import re
import struct
import threading

import numpy as np
import pytest

from naiad.backend.llamacpp.generation import Generation
from naiad.backend.llamacpp.llama_request import read_llama_request
from naiad.backend.llamacpp.llama_tensors import OUTPUTS
from naiad.backend.texts.generation.text_generation import ResponseTensors
from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader, ignore_response
from naiad.core.tensor import TensorSpec
from naiad.core.texts.mark_search import MarkSearch

MARKS = MarkSearch(["<|end|>", "<tool_call>"])
USAGE = {"prompt_tokens": 5, "completion_tokens": 2}


def request_of(*, outputs=(), **inputs):
    specs, data = [], []
    for name, value in inputs.items():
        is_flag = isinstance(value, bool)
        specs.append(TensorSpec(name, DataType.BOOL if is_flag else DataType.BYTES, (1,)))
        text = value if isinstance(value, bytes) else str(value).encode()
        data.append(bytes([value]) if is_flag else struct.pack("<I", len(text)) + text)
    header = RequestHeader(model_name="m", inputs=specs, outputs=[RequestedOutput(name) for name in outputs])
    return InferRequest(header, data, ignore_response)


def asked(**inputs):
    return read_llama_request(request_of(**inputs), has_template=True)


@pytest.mark.parametrize(
    ("message", "mark"),
    [
        ({"role": "user", "content": "a <|end|> b"}, "<|end|>"),
        ({"role": "user", "content": [{"type": "text", "text": "<tool_call>"}]}, "<tool_call>"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "<|end|>"}}]}, "<|end|>"),
    ],
)
def test_marks_in_messages_are_refused_where_wanted(message, mark):
    request = request_of(messages=json.dumps([{"role": "user", "content": "a < b"}, message]))
    assert read_llama_request(request, has_template=True).is_chat
    with pytest.raises(InferError, match=r"'messages\[1\]' has '" + re.escape(mark)):
        read_llama_request(request, has_template=True, marks=MARKS)
    prompt = request_of(text_input=mark)
    assert read_llama_request(prompt, has_template=True, marks=MARKS).body["prompt"] == mark


def generated(chunks, *, cancel_after=None, outputs=(), **inputs):
    """Return the responses to chunks of llama.cpp: values by output name, or the error."""
    request = request_of(outputs=outputs, **inputs)
    found = []

    def emit(of, response):
        assert of is request
        names = [spec.name for spec in response.header.outputs]
        found.append((dict(zip(names, map(value_of, names, response.data), strict=True)), response.final))

    wanted = read_llama_request(request, has_template=True)
    generation = Generation(request, wanted, ResponseTensors("m", 1, OUTPUTS), emit, lambda: False)
    for number, chunk in enumerate(chunks):
        request.cancelled = cancel_after is not None and number >= cancel_after
        if generation.take(chunk):
            break
    generation.finish()
    return found


def value_of(name, data):
    return int(np.frombuffer(data, "<u4")[0]) if name.startswith("num_") else bytes(data[4:]).decode()


def piece(text, reason=None, **members):
    return {"choices": [{"text": text, "finish_reason": reason, **members}]}


def delta(**members):
    return {"choices": [{"delta": members, "finish_reason": None}]}


LAST = {"choices": [{"text": "", "finish_reason": "length"}], "usage": USAGE}


def test_prompt_and_sampling_become_a_body():
    sampling = {"max_tokens": 5, "temperature": 0, "repetition_penalty": 1.5, "seed": -1, "top_k": -1, "logprobs": 0}
    found = asked(text_input="hé", sampling_parameters=json.dumps(sampling), stream=True)
    assert (found.is_chat, found.streams, found.logprobs) == (False, True, 0)
    wanted = {"prompt": "hé", "max_tokens": 5, "temperature": 0, "repeat_penalty": 1.5, "top_k": 0, "n_probs": 1}
    assert wanted.items() <= found.body.items()
    assert 0 <= found.body["seed"] < 0xFFFFFFFF


def test_chat_has_tools_and_format():
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}}
    found = asked(
        messages='[{"role": "user", "content": "a"}]', tools=json.dumps([tool]), tool_choice='"auto"',
        response_format=json.dumps(form), sampling_parameters='{"logprobs": 3}',
    )  # fmt: skip
    assert found.body["messages"] == [{"role": "user", "content": "a"}]
    assert (found.body["tools"], found.body["tool_choice"]) == ([tool], "auto")
    assert found.body["json_schema"] == {"type": "integer"}
    assert (found.body["logprobs"], found.body["top_logprobs"]) == (True, 3)


TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]


def test_choice_of_a_function_leaves_no_other_tool():
    choice = {"type": "function", "function": {"name": "g"}}
    found = asked(messages="[1]", tools=json.dumps(TOOLS), tool_choice=json.dumps(choice))
    assert (found.body["tools"], found.body["tool_choice"]) == ([TOOLS[1]], "required")
    found = asked(messages="[1]", tools=json.dumps(TOOLS), tool_choice="none")
    assert (found.body["tools"], found.body["tool_choice"]) == (TOOLS, "none")


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ('{"type": "function", "function": {"name": "h"}}', "'tool_choice' names the function 'h'; .*: f, g"),
        ('{"function": 1}', "'tool_choice' names no function"),
        ("any", "'tool_choice' is 'any'; expected none, auto, required"),
    ],
)
def test_choices_without_a_tool_are_refused(choice, words):
    with pytest.raises(InferError, match=words):
        asked(messages="[1]", tools=json.dumps(TOOLS), tool_choice=choice)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "either 'text_input' or 'messages'"),
        ({"text_input": "a", "messages": "[]"}, "either 'text_input' or 'messages'"),
        ({"text_input": b"\xff"}, "'text_input' is not UTF-8"),
        ({"messages": "{"}, "'messages' is no JSON"),
        ({"messages": "[" + "{}," * 70_000 + "{}]"}, "'messages' has 70002 arrays, objects and members"),
        ({"messages": "{}"}, "expected a JSON list"),
        ({"messages": '["\\ud800"]'}, "'messages' is no JSON"),
        ({"text_input": "a", "sampling_parameters": "[" * 60_000}, "is no JSON"),
        ({"text_input": "a", "sampling_parameters": '{"n": 2}'}, "'n': 2; expected no such parameter"),
        ({"text_input": "a", "sampling_parameters": '{"max_tokens": 0}'}, "a whole number from 1"),
        ({"text_input": "a", "sampling_parameters": '{"temperature": "hot"}'}, "a number from 0"),
        ({"text_input": "a", "sampling_parameters": '{"stop": [""]}'}, "texts of 1 to"),
        ({"text_input": "a", "response_format": '{"type": "xml"}'}, "type 'xml'"),
        ({"text_input": "a", "sampling_parameters": '{"stop": [1]}'}, "'stop': a JSON list; expected"),
        ({"text_input": "a", "response_format": '{"type": [1]}'}, "the type a JSON list; expected"),
        ({"text_input": "a", "response_format": '{"type": "json_schema"}'}, "the member 'json_schema'"),
        ({"messages": "[1]", "tools": '[{"type": "function"}]'}, r"tools\[0\]"),
    ],
)
def test_requests_that_are_refused(inputs, words):
    with pytest.raises(InferError, match=words):
        asked(**inputs)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        *[("text_input", 4 << 20), ("messages", 4 << 20), ("sampling_parameters", 64 << 10)],
        *[("response_format", 256 << 10), ("tools", 256 << 10), ("tool_choice", 64 << 10)],
    ],
)
def test_long_texts_are_refused_before_they_are_read(name, limit):
    words = f"input '{name}' has {limit + 1} bytes; at most {limit} are taken"
    with pytest.raises(InferError, match=words):
        asked(**{name: b"\xff" * (limit + 1)})


def test_chat_needs_a_template():
    with pytest.raises(InferError, match="no chat template"):
        read_llama_request(request_of(messages="[1]"), has_template=False)


def test_stream_has_a_response_for_each_piece():
    found = generated(
        [{"prompt_progress": {}, **piece("")}, piece("a"), piece("b"), LAST], text_input="p", stream=True
    )
    assert [(each["text_output"], final) for each, final in found] == [("a", False), ("b", False), ("", True)]
    assert [each["num_output_tokens"] for each, _ in found] == [0, 0, 2]
    assert [each["finish_reason"] for each, _ in found] == ["", "", "length"]
    assert found[-1][0]["num_input_tokens"] == 5


def test_whole_text_is_one_response():
    token = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "a"}, {"token": "b"}]}
    found = generated(
        [piece("a", logprobs={"content": [token]}), piece("b"), LAST],
        text_input="p", sampling_parameters='{"logprobs": 1}',
    )  # fmt: skip
    ((values, final),) = found
    assert (values["text_output"], final, values["num_output_tokens"]) == ("ab", True, 2)
    assert json.loads(values["logprobs"]) == [{**token, "top_logprobs": [{"token": "a"}]}]


def test_probabilities_without_text_keep_their_order():
    def of(token):
        return {"content": [{"token": token, "logprob": 0, "top_logprobs": []}]}

    chunks = [piece("", logprobs=of("\N{REPLACEMENT CHARACTER}")), piece("é", logprobs=of("é")), LAST]
    found = generated(chunks, text_input="p", stream=True, sampling_parameters='{"logprobs": 0}')
    tokens = [each["token"] for values, _ in found for each in json.loads(values["logprobs"])]
    assert tokens == ["\N{REPLACEMENT CHARACTER}", "é"]
    assert [values["text_output"] for values, _ in found] == ["", "é", ""]


def test_tool_calls_are_put_together():
    chunks = [
        delta(role="assistant", content=None),
        delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a":'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": "1}"}}]),
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": USAGE},
    ]
    ((values, _),) = generated(chunks, messages="[1]", outputs=["tool_calls", "finish_reason"])
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert json.loads(values["tool_calls"]) == [call]
    assert values.keys() == {"tool_calls", "finish_reason"}
    pieces = generated(chunks, messages="[1]", stream=True)
    assert [bool(each["tool_calls"]) for each, _ in pieces] == [True, True, True, False]


def test_cancelled_request_ends_without_outputs():
    assert generated([piece("a"), piece("b"), LAST], text_input="p", cancel_after=1) == [({}, True)]


def test_slow_client_holds_its_generation():
    request = request_of(text_input="p", stream=True)
    wanted = read_llama_request(request, has_template=True)
    pieces = []
    generation = Generation(
        request, wanted, ResponseTensors("m", 1, OUTPUTS), lambda *pair: pieces.append(pair), lambda: False
    )
    request.is_paused = True
    taken = threading.Thread(target=generation.take, args=(piece("a"),))
    taken.start()
    taken.join(0.1)
    assert taken.is_alive()
    request.is_paused = False
    taken.join(60)
    assert not taken.is_alive()
    assert len(pieces) == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({"code": 400, "message": "exceeds the context"}, "exceeds the context"),
        ({"code": 500, "message": "x"}, "x"),
        ("odd", "odd"),
    ],
)
def test_error_of_the_library_is_raised(error, words):
    with pytest.raises(InferError, match=words):
        generated([{"error": error}], text_input="p")


def test_end_without_a_reason_is_an_error():
    with pytest.raises(InferError, match="without a reason"):
        generated([piece("a")], text_input="p")

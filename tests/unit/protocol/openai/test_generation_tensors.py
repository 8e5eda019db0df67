import json
import struct

import pytest

from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.openai_mapping import OpenAiMapping
from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.protocol.generate import inputs_of
from naiad.protocol.openai.completion_reply import ReplyForm, usage_of
from naiad.protocol.openai.generation_tensors import MAX_EXTRA_BYTES, Choice, generation_tensors, token_limit

MAPPING = OpenAiMapping("completion", "text_input", "text_output")
TENSORRT_LLM = """
max_batch_size: 8
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] },
  { name: "seed" data_type: TYPE_UINT64 dims: [ 1 ] optional: true },
  { name: "stop_words" data_type: TYPE_STRING dims: [ -1 ] optional: true }
]
"""
VLLM = """
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
"""
OPTIONAL = frozenset({"seed", "stop_words"})


def tensors(text, mapping=MAPPING, **sampling):
    inputs = inputs_of(parse_pbtxt(text).config)
    specs, data, parameters = generation_tensors(mapping, inputs, OPTIONAL, "hi", sampling, stream=True)
    return {spec.name: (spec.shape, bytes(raw)) for spec, raw in zip(specs, data, strict=True)}, parameters


def packed(*texts):
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def response(text=b"", counts=None, *, final=False):
    outputs, data = [TensorSpec("text_output", DataType.BYTES, (1,))], [packed(text)]
    for name, number in (counts or {}).items():
        outputs.append(TensorSpec(name, DataType.UINT32, (1,)))
        data.append(struct.pack("<I", number))
    return InferResponse(ResponseHeader("m", "1", outputs), data, final=final)


def test_members_go_to_the_inputs_of_tensorrt_llm():
    found, parameters = tensors(TENSORRT_LLM, max_tokens=5, stop=["a", "bc"], seed=7, top_p=0.5)
    assert found["text_input"] == ((1, 1), packed(b"hi"))
    assert found["max_tokens"] == ((1, 1), struct.pack("<i", 5))
    assert found["temperature"] == ((1, 1), struct.pack("<f", 1))
    assert found["seed"] == ((1, 1), struct.pack("<Q", 7))
    assert found["stop_words"] == ((1, 2), packed(b"a", b"bc"))
    assert parameters == {"top_p": 0.5}


def test_required_limit_has_a_default_that_counts():
    assert tensors(TENSORRT_LLM)[0]["max_tokens"] == ((1, 1), struct.pack("<i", 256))
    inputs = inputs_of(parse_pbtxt(TENSORRT_LLM).config)
    assert token_limit(MAPPING, inputs, OPTIONAL, {}) == 256
    assert token_limit(MAPPING, inputs, OPTIONAL, {"max_tokens": 3}) == 3


@pytest.mark.parametrize(("sampling", "flag"), [({}, b"\0"), ({"logprobs": 0}, b"\1")])
def test_log_probabilities_are_asked_of_vllm(sampling, flag):
    text = VLLM.replace("return_num_output_tokens", "return_logprobs")
    assert tensors(text, **sampling)[0]["return_logprobs"] == ((1,), flag)


def test_members_go_to_the_json_of_vllm():
    found, parameters = tensors(VLLM, max_tokens=5, stop=["a"])
    assert json.loads(found["sampling_parameters"][1][4:]) == {"max_tokens": 5, "stop": ["a"]}
    assert (found["stream"], found["return_num_output_tokens"]) == (((1,), b"\1"), ((1,), b"\1"))
    assert parameters == {}


def test_other_members_are_parameters_of_the_request():
    text = 'input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]'
    _, parameters = tensors(text, OpenAiMapping("completion", "text_input", "t", max_tokens=4), stop=["a"])
    assert parameters == {"stop": '["a"]', "max_tokens": 4}


def test_value_that_the_input_cannot_hold():
    with pytest.raises(InferError, match="'seed'"):
        tensors(TENSORRT_LLM, seed=-1)


def test_fraction_is_no_integer():
    text = TENSORRT_LLM.replace('"temperature" data_type: TYPE_FP32', '"temperature" data_type: TYPE_INT32')
    assert tensors(text, temperature=1.0)[0]["temperature"] == ((1, 1), struct.pack("<i", 1))
    with pytest.raises(InferError, match=r"'temperature': .*integer"):
        tensors(text, temperature=0.7)


@pytest.mark.parametrize(("pieces", "limit", "reason"), [(3, 3, "length"), (2, 3, "stop"), (3, 0, "stop")])
def test_reason_without_counts_follows_from_pieces(pieces, limit, reason):
    choice = Choice(0, MAPPING, (), limit)
    for _ in range(pieces):
        choice.take(response(b"a"))
    assert choice.finish_reason == reason
    assert usage_of([choice], 1) is None


def test_counts_of_the_model_are_the_usage():
    mapping = OpenAiMapping(
        "completion", "text_input", "text_output", prompt_tokens="asked", completion_tokens="made"
    )
    choices = [Choice(index, mapping, (), 4) for index in range(4)]
    for choice in choices:
        choice.take(response(b"ab", {"asked": 5, "made": 2}))
        choice.take(response(b"cd", {"asked": 5, "made": 2}))
    assert usage_of(choices, 2) == {"prompt_tokens": 10, "completion_tokens": 16, "total_tokens": 26}
    assert choices[0].finish_reason == "length"


def test_reason_of_the_model_counts_unless_stopped():
    mapping = OpenAiMapping("completion", "text_input", "text_output", finish_reason="why")
    header = ResponseHeader("m", "1", [TensorSpec(name, DataType.BYTES, (1,)) for name in ("text_output", "why")])
    for stops, reason in (((), "length"), (("b",), "stop")):
        choice = Choice(0, mapping, stops, 0)
        choice.take(InferResponse(header, [packed(b"ab"), packed(b"length")]))
        assert choice.finish_reason == reason


def test_response_without_the_output_is_an_error():
    with pytest.raises(InferError, match="has no output 'text_output'"):
        Choice(0, MAPPING, (), 0).take(InferResponse(ResponseHeader("m", "1", ()), ()))


@pytest.mark.parametrize("is_chat", [False, True])
def test_whole_reply_and_chunks_have_their_form(is_chat):
    form = ReplyForm(is_chat, "id", 5, "m")
    choice = Choice(0, MAPPING, (), 0)
    whole = json.loads(form.body(["hi"], [choice], 1))
    chunk = json.loads(form.chunk(choice, "hi"))
    name = "chat.completion" if is_chat else "text_completion"
    assert whole["object"] == name
    assert chunk["object"] == (name + ".chunk" if is_chat else name)
    (found,) = whole["choices"]
    assert (found["message"]["content"] if is_chat else found["text"]) == "hi"
    assert json.loads(form.last(choice))["choices"][0]["finish_reason"] == "stop"
    assert form.chunk(choice, "") is None


TOKENS = [
    {"token": "ab", "logprob": -1, "top_logprobs": [{"token": "ab", "logprob": -1}, {"token": "x", "logprob": -2}]},
    {"token": "c", "logprob": 0, "top_logprobs": []},
]
CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def choice_with_extras(text_offset=0):
    mapping = OpenAiMapping("chat", "text_input", "text_output", offers=frozenset({"logprobs", "tools"}))
    names = ("text_output", "logprobs", "tool_calls")
    header = ResponseHeader("m", "1", [TensorSpec(name, DataType.BYTES, (1,)) for name in names])
    choice = Choice(0, mapping, (), 0, text_offset=text_offset)
    for token in TOKENS:
        texts = [token["token"], json.dumps([token]), ""]
        choice.take(InferResponse(header, [packed(text.encode()) for text in texts], final=False))
    choice.take(InferResponse(header, [packed(b""), packed(b""), packed(json.dumps(CALLS).encode())]))
    return choice


def test_log_probabilities_have_the_form_of_their_endpoint():
    whole = json.loads(ReplyForm(False, "id", 5, "m").body(["abc"], [choice_with_extras()], 1))["choices"][0]
    assert whole["logprobs"] == {
        "tokens": ["ab", "c"],
        "token_logprobs": [-1, 0],
        "top_logprobs": [{"ab": -1, "x": -2}, {}],
        "text_offset": [0, 2],
    }
    chat = json.loads(ReplyForm(True, "id", 5, "m").body(["abc"], [choice_with_extras()], 1))["choices"][0]
    assert chat["logprobs"]["content"] == TOKENS
    assert (chat["message"]["tool_calls"], chat["message"]["content"]) == (CALLS, "abc")


def test_offsets_begin_behind_a_prompt_that_is_repeated():
    form = ReplyForm(False, "id", 5, "m")
    whole = json.loads(form.body(["p abc"], [choice_with_extras(text_offset=2)], 1))["choices"][0]
    assert whole["logprobs"]["text_offset"] == [2, 4]


def test_chunk_of_tool_calls_needs_no_text():
    choice, form = choice_with_extras(), ReplyForm(True, "id", 5, "m")
    delta = json.loads(form.chunk(choice, ""))["choices"][0]["delta"]
    assert delta == {"tool_calls": CALLS}
    assert form.chunk(choice, "") is None


def test_log_probabilities_of_vllm_are_converted():
    mapping = OpenAiMapping("chat", "text_input", "text_output", offers=frozenset({"logprobs"}))
    names = ("text_output", "logprobs")
    header = ResponseHeader("m", "1", [TensorSpec(name, DataType.BYTES, (1,)) for name in names])
    choice = Choice(0, mapping, (), 0, logprob_count=1)
    token = {"5": {"logprob": -2.0, "decoded_token": "b"}, "6": {"logprob": -1.0, "decoded_token": "a"}}
    choice.take(InferResponse(header, [packed(b"b"), packed(json.dumps([token]).encode())], final=False))
    choice.take(InferResponse(header, [packed(b""), packed(b"null")]))
    (found,) = choice.logprobs
    assert (found["token"], [each["token"] for each in found["top_logprobs"]]) == ("b", ["a"])


def test_extras_that_are_no_list_are_an_error():
    mapping = OpenAiMapping("chat", "text_input", "text_output", offers=frozenset({"logprobs"}))
    header = ResponseHeader(
        "m", "1", [TensorSpec(name, DataType.BYTES, (1,)) for name in ("text_output", "logprobs")]
    )
    with pytest.raises(InferError, match="'logprobs' of model 'm' is no JSON list"):
        Choice(0, mapping, (), 0).take(InferResponse(header, [packed(b"a"), packed(b"{}")]))


def test_too_many_log_probabilities_are_refused_unread():
    mapping = OpenAiMapping("chat", "text_input", "text_output", offers=frozenset({"logprobs"}))
    header = ResponseHeader(
        "m", "1", [TensorSpec(name, DataType.BYTES, (1,)) for name in ("text_output", "logprobs")]
    )
    with pytest.raises(InferError, match=r"more than 2097152 bytes; ask for them with 'stream': true"):
        Choice(0, mapping, (), 0).take(InferResponse(header, (packed(b"a"), packed(b"{" * (MAX_EXTRA_BYTES + 1)))))

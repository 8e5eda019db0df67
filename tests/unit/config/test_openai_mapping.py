import pytest

from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.openai_mapping import OpenAiMapping, read_openai_mapping, read_tokenizer_file
from naiad.config.validate.model import validate
from naiad.core.errors import InferError

TEXTS = """
name: "m" backend: "python"
input [ { name: "A" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "B" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
VLLM = """
name: "m" backend: "python"
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ -1 ] }
]
"""
TENSORRT_LLM = """
name: "m" backend: "python"
max_batch_size: 8
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "stop_words" data_type: TYPE_STRING dims: [ -1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
"""


def mapping(text, parameter=None):
    return read_openai_mapping(config(text, parameter))


def config(text, parameter):
    if parameter is not None:
        text += f'parameters {{ key: "openai" value {{ string_value: "{parameter}" }} }}'
    return parse_pbtxt(text).config


def test_forms_of_language_models_need_no_parameter():
    assert mapping(VLLM) == OpenAiMapping(
        "completion", "text_input", "text_output", completion_tokens="num_output_tokens"
    )
    assert mapping(TENSORRT_LLM) == OpenAiMapping("completion", "text_input", "text_output")
    assert mapping(TEXTS) is None


def test_only_tensors_need_no_name():
    assert mapping(TEXTS, "chat, template=plain, max_tokens=9") == OpenAiMapping("chat", "A", "B", "plain", 9)


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ("", "expected a task"),
        ("ranking", "expected a task"),
        ("rerank", "has no documents=NAME"),
        ("completion,rerank=cosine", "only for the task embedding"),
        ("completion,documents=A", "only for the task rerank"),
        ("completion,tokenizer=t.json", "only for the tasks embedding and rerank"),
        ("embedding,tokenizer=t.json,prompt_tokens=B", "prompt_tokens and tokenizer"),
        ("embedding,tokenizer=/etc/t.json", "in the directory of the model"),
        ("embedding,tokenizer=../t.json", "in the directory of the model"),
        ("chat", "needs template=NAME"),
        ("completion,template=plain", "needs template=NAME"),
        ("chat,template=jinja", "applies its own template"),
        ("completion,input=C", "expected an input of TYPE_STRING: 'A'"),
        ("completion,output=C", "has the outputs 'B'"),
        ("completion,input=A,input=A", "twice"),
        ("completion,max_tokens=0", "whole number"),
        ("embedding", "expected floating-point numbers"),
    ],
)
def test_parameter_that_does_not_fit(parameter, message):
    found = config(TEXTS, parameter)
    assert any(message in problem.message for problem in validate(found, model_name="m"))
    with pytest.raises(InferError, match=message):
        read_openai_mapping(found)


def test_required_input_that_no_member_fills():
    text = TEXTS + 'input [ { name: "C" data_type: TYPE_FP32 dims: [ 1 ] } ]'
    with pytest.raises(InferError, match="required inputs 'C'"):
        mapping(text, "completion,input=A")


PAIRS = """
name: "m" backend: "onnx_text" max_batch_size: 8
input [
  { name: "text" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "text_pair" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [
  { name: "scores" data_type: TYPE_FP32 dims: [ %d ] },
  { name: "num_input_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
]
"""


def test_encoders_with_one_score_rerank_by_themselves():
    found = mapping(PAIRS % 1)
    assert found == OpenAiMapping("rerank", "text", "scores", prompt_tokens="num_input_tokens", documents="text_pair")
    assert found.reranks
    assert not found.generates
    assert mapping(PAIRS % 3) is None


@pytest.mark.parametrize("backend", ["llamacpp", "onnx_decoder"])
def test_backends_with_own_templates_chat(backend):
    inputs = "".join(
        f'input [ {{ name: "{name}" data_type: TYPE_STRING dims: [ 1 ] optional: true }} ]'
        for name in ("text_input", "messages", "sampling_parameters")
    )
    output = 'output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]'
    text = f'name: "m" backend: "{backend}" {inputs} {output}'
    found = mapping(text)
    assert (found.task, found.template, found.messages) == ("chat", "json", "messages")
    assert mapping(text.replace("text_input", "other")) is None


EMBEDDING = """
name: "m" backend: "python"
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "vector" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "num_input_tokens" data_type: TYPE_FP32 dims: [ 1 ] },
  { name: "mask" data_type: TYPE_BOOL dims: [ -1 ] }
]
"""


def test_tokens_are_counted_by_outputs_of_whole_numbers():
    found = mapping(EMBEDDING, "embedding,output=vector")
    assert found.prompt_tokens == ""  # an output of the usual name, with another type
    assert mapping(EMBEDDING, "embedding,output=vector,prompt_tokens=mask").prompt_tokens == "mask"
    with pytest.raises(InferError, match="'num_input_tokens', which has TYPE_FP32"):
        mapping(EMBEDDING, "embedding,output=vector,prompt_tokens=num_input_tokens")


def test_tokenizer_counts_in_place_of_an_output():
    text = EMBEDDING.replace('num_input_tokens" data_type: TYPE_FP32', 'num_input_tokens" data_type: TYPE_INT32')
    assert mapping(text, "embedding,output=vector").prompt_tokens == "num_input_tokens"
    found = mapping(text, "embedding,output=vector,tokenizer=parts/t.json")
    assert (found.tokenizer, found.prompt_tokens) == ("parts/t.json", "")
    assert read_tokenizer_file(config(text, "embedding,tokenizer=parts/t.json")) == "parts/t.json"
    assert read_tokenizer_file(config(text, None)) == ""

import json

import pytest

from naiad.config.openai_mapping import OpenAiMapping
from naiad.protocol.openai.chat_options import read_chat_options
from naiad.protocol.openai.completion_request import read_chat, read_completion
from naiad.protocol.openai.members import BodyMembers
from naiad.protocol.openai.openai_error import OpenAiError

ALL = OpenAiMapping(
    "chat", "p", "o", "json", messages="m", offers=frozenset({"logprobs", "response_format", "tools"})
)
NONE = OpenAiMapping("chat", "p", "o", "chatml")
TOOL = {"type": "function", "function": {"name": "f"}}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def options(mapping=ALL, **members):
    return read_chat_options(BodyMembers(members), mapping)


def test_options_are_texts_for_inputs():
    found = options(response_format=FORM, tools=[TOOL], tool_choice="auto", logprobs=True, top_logprobs=4)
    assert json.loads(found["response_format"]) == FORM
    assert json.loads(found["tools"]) == [TOOL]
    assert (found["tool_choice"], found["logprobs"]) == ('"auto"', 4)
    assert options(response_format={"type": "text"}, tools=[], logprobs=False, tool_choice="none") == {}


@pytest.mark.parametrize(
    ("mapping", "members", "param"),
    [
        (NONE, {"response_format": FORM}, "response_format"),
        (NONE, {"tools": [TOOL]}, "tools"),
        (NONE, {"logprobs": True}, "logprobs"),
        (ALL, {"response_format": {"type": "xml"}}, "response_format.type"),
        (ALL, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (ALL, {"response_format": {"type": "json_object", "schema": "x" * 300_000}}, "response_format"),
        (ALL, {"tools": [5]}, "tools[0]"),
        (ALL, {"tools": [TOOL] * 129}, "tools"),
        (ALL, {"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
        (ALL, {"tool_choice": "required"}, "tool_choice"),
        (ALL, {"top_logprobs": 3}, "top_logprobs"),
        (ALL, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (ALL, {"function_call": {"name": "f"}}, "function_call"),
    ],
)
def test_members_that_are_refused(mapping, members, param):
    with pytest.raises(OpenAiError) as caught:
        options(mapping, **members)
    assert caught.value.param == param


def test_messages_of_tools_reach_models_with_tools():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "b", "tool_call_id": "1"},
    ]
    found = read_chat(BodyMembers({"messages": messages}), ALL, "m")
    assert json.loads(found.prompts[0])[1:] == [{**messages[1], "content": ""}, messages[2]]
    with pytest.raises(OpenAiError, match="no tools"):
        read_chat(BodyMembers({"messages": messages}), NONE, "m")


def test_model_with_both_inputs_completes_prompts():
    found = read_completion(BodyMembers({"prompt": "a", "logprobs": 2}), ALL, "m")
    assert (found.prompts, found.sampling) == (["a"], {"logprobs": 2})
    only_chats = OpenAiMapping("chat", "p", "o", "json")
    with pytest.raises(OpenAiError, match="is for chats"):
        read_completion(BodyMembers({"prompt": "a"}), only_chats, "m")
    with pytest.raises(OpenAiError, match="no log probabilities"):
        read_completion(BodyMembers({"prompt": "a", "logprobs": 2}), NONE, "m")


@pytest.mark.parametrize("name", ["tools", "response_format"])
def test_deeply_nested_options_are_refused(name):
    deep = []
    for _ in range(300):
        deep = [deep]
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": deep}}}
    with pytest.raises(OpenAiError, match=f"'{name}' is .*; expected JSON of at most 250 levels"):
        options(**{name: [tool] if name == "tools" else form})


def test_deeply_nested_calls_of_earlier_messages_are_refused():
    deep = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(OpenAiError, match="JSON of at most 250 levels") as caught:
        read_chat(BodyMembers({"messages": [{"role": "assistant", "tool_calls": deep}]}), ALL, "m")
    assert caught.value.param == "messages"


def test_limit_of_one_call_is_refused():
    assert "tools" in options(tools=[TOOL], parallel_tool_calls=True)
    assert options(parallel_tool_calls=False) == {}
    with pytest.raises(OpenAiError, match="'parallel_tool_calls' is false; expected true"):
        options(tools=[TOOL], parallel_tool_calls=False)
    with pytest.raises(OpenAiError, match="'parallel_tool_calls' is 1; expected true or false"):
        options(tools=[TOOL], parallel_tool_calls=1)

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.config.openai_mapping import OpenAiMapping
from naiad.core.errors import InferError
from naiad.protocol.openai.completion_request import MAX_CHOICES, MAX_PROMPT_CHARACTERS, read_chat, read_completion
from naiad.protocol.openai.members import BodyMembers, model_reference, read_body
from naiad.protocol.openai.openai_error import OpenAiError

CHAT = OpenAiMapping("chat", "IN", "OUT", "chatml")
USER = [{"role": "user", "content": "hi"}]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    ["prompt", "messages", "n", "stop", "stream", "stream_options", "seed", "max_tokens", "tools"]
)


def completion(**members):
    return read_completion(BodyMembers({"model": "m", "prompt": "a", **members}), CHAT, "m")


def chat(**members):
    return read_chat(BodyMembers({"model": "m", "messages": USER, **members}), CHAT, "m")


@given(members=st.dictionaries(NAMES, VALUES, max_size=4))
def test_any_values_are_taken_or_refused(members):
    params = []
    for read in (completion, chat):
        try:
            asked = read(**members)
        except OpenAiError as error:
            params.append(error.param)
        else:
            assert 0 < len(asked.prompts) * asked.choice_count <= MAX_CHOICES
            assert all(isinstance(prompt, str) for prompt in asked.prompts)
    assert all(params)


@given(body=st.binary(max_size=30) | VALUES.map(lambda value: repr(value).encode()))
def test_any_body_is_an_object_or_refused(body):
    try:
        members = read_body(body)
    except InferError:
        return
    assert isinstance(orjson.loads(body), dict)
    assert members.get("absent") is None


def test_newer_name_of_the_limit_counts():
    asked = chat(max_tokens=7, max_completion_tokens=3, temperature=1, stop="x")
    assert asked.sampling == {"max_tokens": 3, "temperature": 1.0, "stop": ["x"]}
    assert asked.prompts == ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"]


def test_neutral_values_of_what_is_not_offered_pass():
    asked = chat(
        tools=[], logprobs=False, logit_bias={}, tool_choice="none", response_format={"type": "text"}, user="u"
    )
    assert asked.choice_count == 1


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"n": 64, "prompt": ["a", "b", "c"]}, "n"),
        ({"n": True}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "prompt": "a" * (MAX_PROMPT_CHARACTERS // 2 + 1)}, "n"),
        ({"prompt": ["a" * (MAX_PROMPT_CHARACTERS // 2), "a" * (MAX_PROMPT_CHARACTERS // 2 + 1)]}, "prompt"),
        ({"stop": "s" * 257}, "stop"),
        ({"temperature": 2.1}, "temperature"),
        ({"suffix": "a"}, "suffix"),
        ({"messages": USER}, "messages"),
    ],
)
def test_mistake_has_its_member(members, param):
    with pytest.raises(OpenAiError) as caught:
        completion(**members)
    assert caught.value.param == param


def test_choices_at_the_bound_of_characters_pass():
    assert completion(n=2, prompt="a" * (MAX_PROMPT_CHARACTERS // 2)).choice_count == 2


def test_prompts_for_a_model_of_messages_are_refused():
    with pytest.raises(OpenAiError, match="for chats"):
        read_completion(BodyMembers({"prompt": "a"}), OpenAiMapping("chat", "IN", "OUT", "json"), "m")


@pytest.mark.parametrize(
    ("name", "is_known", "found"),
    [("m", False, ("m", "")), ("m@2", False, ("m", "2")), ("m@2", True, ("m@2", "")), ("m@002", False, ("m", "2"))],
)
def test_version_in_a_name(name, is_known, found):
    assert model_reference(name, is_known) == found

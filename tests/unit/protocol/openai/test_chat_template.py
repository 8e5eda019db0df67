import json

import pytest

from naiad.config.openai_mapping import TEMPLATES
from naiad.core.texts.chat_format import ChatMessage
from naiad.protocol.openai.chat_template import read_messages, render_chat
from naiad.protocol.openai.members import BodyMembers
from naiad.protocol.openai.openai_error import OpenAiError

CHAT = [
    ChatMessage("system", "Be short."),
    ChatMessage("user", "Hi"),
    ChatMessage("assistant", "Yes?"),
    ChatMessage("user", "Go"),
]
PROMPTS = {
    "chatml": "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?"
    "<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n",
    "gemma": "<bos><start_of_turn>user\nBe short.\n\nHi<end_of_turn>\n<start_of_turn>model\nYes?<end_of_turn>\n"
    "<start_of_turn>user\nGo<end_of_turn>\n<start_of_turn>model\n",
    "llama3": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe short.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nGo<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "<s>[INST] Be short.\n\nHi [/INST] Yes?</s>[INST] Go [/INST]",
    "plain": "System: Be short.\nUser: Hi\nAssistant: Yes?\nUser: Go\nAssistant:",
}


@pytest.mark.parametrize("template", sorted(PROMPTS))
def test_prompt_of_a_chat(template):
    assert render_chat(template, CHAT) == PROMPTS[template]


def test_every_template_of_the_configuration_exists():
    assert {*PROMPTS, "json"} == set(TEMPLATES)
    assert json.loads(render_chat("json", CHAT))[0] == {"role": "system", "content": "Be short."}


@pytest.mark.parametrize("template", ["gemma", "mistral"])
def test_system_message_at_the_end_is_kept(template):
    assert "only this" in render_chat(template, [ChatMessage("system", "only this")])


def test_parts_are_joined_and_developer_is_system():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read_messages(BodyMembers({"messages": [{"role": "developer", "content": parts}]})) == [
        ChatMessage("system", "ab")
    ]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[0]"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content"),
        ({"role": "assistant", "content": "a", "tool_calls": [1]}, "messages[0].tool_calls"),
    ],
)
def test_mistake_has_its_place(message, param):
    with pytest.raises(OpenAiError) as caught:
        read_messages(BodyMembers({"messages": [message]}))
    assert caught.value.param == param


def test_list_among_messages_is_named_by_its_kind():
    with pytest.raises(OpenAiError, match=r"'messages\[0\]' is a list; expected an object"):
        read_messages(BodyMembers({"messages": [[1, 2]]}))

"""Chats as prompts: the formats that chat models are trained with.

There is no Jinja here, because a template of a model file could run without end.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple


class ChatMessage(NamedTuple):
    """One message of a chat."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str
    extra: Mapping[str, Any] = MappingProxyType({})
    """Members of tool calls, which only `json` passes on."""


def format_chat(name: str, messages: Sequence[ChatMessage]) -> str:
    """Return the prompt of a chat in one of `CHAT_FORMATS`, up to where the answer of the assistant begins."""
    return CHAT_FORMATS[name](messages)


def _chatml(messages: Sequence[ChatMessage]) -> str:
    turns = [f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content, _ in messages]
    return "".join(turns) + "<|im_start|>assistant\n"


def _llama3(messages: Sequence[ChatMessage]) -> str:
    turns = [
        f"<|start_header_id|>{role}<|end_header_id|>\n\n{content.strip()}<|eot_id|>" for role, content, _ in messages
    ]
    return "<|begin_of_text|>" + "".join(turns) + "<|start_header_id|>assistant<|end_header_id|>\n\n"


def _with_system_in_user(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Return the messages with each system message before the text of the next user, for formats without one."""
    found: list[ChatMessage] = []
    waiting: list[str] = []
    for message in messages:
        if message.role == "system":
            waiting.append(message.content)
        elif message.role == "user" and waiting:
            found.append(ChatMessage("user", "\n\n".join([*waiting, message.content])))
            waiting = []
        else:
            found.append(message)
    return [*found, ChatMessage("user", "\n\n".join(waiting))] if waiting else found


def _mistral(messages: Sequence[ChatMessage]) -> str:
    turns = [
        f"[INST] {content} [/INST]" if role == "user" else f" {content}</s>"
        for role, content, _ in _with_system_in_user(messages)
    ]
    return "<s>" + "".join(turns)


def _gemma(messages: Sequence[ChatMessage]) -> str:
    turns = [
        f"<start_of_turn>{'model' if role == 'assistant' else role}\n{content.strip()}<end_of_turn>\n"
        for role, content, _ in _with_system_in_user(messages)
    ]
    return "<bos>" + "".join(turns) + "<start_of_turn>model\n"


def _plain(messages: Sequence[ChatMessage]) -> str:
    return "".join(f"{role.capitalize()}: {content}\n" for role, content, _ in messages) + "Assistant:"


CHAT_FORMATS: Mapping[str, Callable[[Sequence[ChatMessage]], str]] = {
    "chatml": _chatml,
    "gemma": _gemma,
    "llama3": _llama3,
    "mistral": _mistral,
    "plain": _plain,
}
_MARKS: Mapping[str, str] = {
    "<|im_start|>": "chatml",
    "<start_of_turn>": "gemma",
    "<|start_header_id|>": "llama3",
    "[INST]": "mistral",
}
"""What only the Jinja templates of a format contain."""


def recognized_format(template: str) -> str:
    """Return the format of a Jinja template by the marks in its text; empty for an unknown one."""
    return next((name for mark, name in _MARKS.items() if mark in template), "")

"""Chats as prompts: the formats that chat models are trained with.

There is no Jinja here, because a template of a model file could run without end.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple


class ChatMessage(NamedTuple):
    """One message of a chat."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str
    extra: Mapping[str, Any] = MappingProxyType({})
    """Members of tool calls, which only `json` passes on."""


class ChatPart(NamedTuple):
    """A part of a prompt."""

    text: str
    is_content: bool = False
    """Whether it is text of a message, and not of the format."""


def format_chat(name: str, messages: Sequence[ChatMessage]) -> str:
    """Return the prompt of a chat in one of `CHAT_FORMATS`, up to where the answer of the assistant begins."""
    return "".join(part.text for part in CHAT_FORMATS[name](messages))


def chat_parts(name: str, messages: Sequence[ChatMessage]) -> Sequence[ChatPart]:
    """Return the parts of the same prompt, so that its marks differ from equal text of messages."""
    return list(CHAT_FORMATS[name](messages))


def _chatml(messages: Sequence[ChatMessage]) -> Iterator[ChatPart]:
    for role, content, _ in messages:
        yield from _turn(f"<|im_start|>{role}\n", content, "<|im_end|>\n")
    yield ChatPart("<|im_start|>assistant\n")


def _llama3(messages: Sequence[ChatMessage]) -> Iterator[ChatPart]:
    yield ChatPart("<|begin_of_text|>")
    for role, content, _ in messages:
        yield from _turn(f"<|start_header_id|>{role}<|end_header_id|>\n\n", content.strip(), "<|eot_id|>")
    yield ChatPart("<|start_header_id|>assistant<|end_header_id|>\n\n")


def _turn(before: str, content: str, after: str) -> Iterator[ChatPart]:
    yield ChatPart(before)
    yield ChatPart(content, is_content=True)
    yield ChatPart(after)


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


def _mistral(messages: Sequence[ChatMessage]) -> Iterator[ChatPart]:
    yield ChatPart("<s>")
    for role, content, _ in _with_system_in_user(messages):
        yield from _turn("[INST] ", content, " [/INST]") if role == "user" else _turn(" ", content, "</s>")


def _gemma(messages: Sequence[ChatMessage]) -> Iterator[ChatPart]:
    yield ChatPart("<bos>")
    for role, content, _ in _with_system_in_user(messages):
        name = "model" if role == "assistant" else role
        yield from _turn(f"<start_of_turn>{name}\n", content.strip(), "<end_of_turn>\n")
    yield ChatPart("<start_of_turn>model\n")


def _plain(messages: Sequence[ChatMessage]) -> Iterator[ChatPart]:
    for role, content, _ in messages:
        yield from _turn(f"{role.capitalize()}: ", content, "\n")
    yield ChatPart("Assistant:")


CHAT_FORMATS: Mapping[str, Callable[[Sequence[ChatMessage]], Iterator[ChatPart]]] = {
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


_MARK_CHARACTERS = frozenset("<>[]{}|#@")
"""Characters by which added tokens are no words, no spaces and no pictures, but marks of a format."""


def is_mark(token: str, *, is_special: bool) -> bool:
    """Return whether an added token may be a mark of a format: a special one, or one that is written like a mark.

    Models have marks such as `<tool_call>` and `<think>` that their files do not call special. Words that were added
    to a vocabulary, and runs of spaces, are nothing that a user could forge a turn with.
    """
    return bool(token) and (is_special or not _MARK_CHARACTERS.isdisjoint(token))


def recognized_format(template: str) -> str:
    """Return the format of a Jinja template by the marks in its text; empty for an unknown one."""
    return next((name for mark, name in _MARKS.items() if mark in template), "")

"""Chats as prompts: the formats that chat models are trained with.

There is no Jinja here, because a template of a model file could run without end. A model with another template takes
`json` and renders it in its own process.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from naiad.protocol.openai.members import BodyMembers, shown
from naiad.protocol.openai.openai_error import OpenAiError

MAX_MESSAGES = 4096
_ROLES = ("system", "developer", "user", "assistant")
_TOOL_ROLES = (*_ROLES, "tool")
_MEMBERS = (
    *("role", "content", "name", "refusal", "audio", "annotations", "tool_calls", "function_call"),
    "tool_call_id",
)


class ChatMessage(NamedTuple):
    """One message of a chat."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str
    extra: Mapping[str, Any] = MappingProxyType({})
    """Members of tool calls, which only `json` passes on."""


def read_messages(body: BodyMembers, *, takes_tools: bool = False) -> Sequence[ChatMessage]:
    """Return the messages of a chat; calls of tools only if the model takes tools. Raises OpenAiError."""
    found = body.get("messages")
    if not isinstance(found, list) or not 0 < len(found) <= MAX_MESSAGES:
        raise body.wrong("messages", f"a list of 1 to {MAX_MESSAGES} messages")
    return [_read_message(each, f"messages[{position}]", takes_tools) for position, each in enumerate(found)]


def _read_message(found: Any, where: str, takes_tools: bool) -> ChatMessage:
    if not isinstance(found, dict):
        raise OpenAiError(f"'{where}' is {shown(found)}; expected an object", param=where)
    members = BodyMembers(found, f"{where}.")
    role = members.get("role")
    roles = _TOOL_ROLES if takes_tools else _ROLES
    if role not in roles:
        raise members.wrong("role", f"{', '.join(roles)}{'' if takes_tools else '; the model takes no tools'}")
    members.check_names(_MEMBERS)
    tool_members = ("tool_calls", "tool_call_id")
    for name in ("audio", "function_call", *(() if takes_tools else tool_members)):
        if members.get(name):
            raise members.wrong(name, "no such member; the model takes no tools and no audio")
    extra = {name: members.get(name) for name in tool_members if members.get(name)}
    content = "" if extra.get("tool_calls") and members.get("content") is None else _content(members)
    return ChatMessage("system" if role == "developer" else role, content, extra)


def _content(members: BodyMembers) -> str:
    content = members.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise members.wrong("content", 'a text, or a list of parts {"type": "text", "text": "..."}')
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise members.wrong("content", 'parts {"type": "text", "text": "..."}; pictures and sound are not taken')
        texts.append(part["text"])
    return "".join(texts)


def render_chat(template: str, messages: Sequence[ChatMessage]) -> str:
    """Return the prompt of a chat, up to where the answer of the assistant begins."""
    return _RENDER[template](messages)


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


def _json(messages: Sequence[ChatMessage]) -> str:
    try:
        return orjson.dumps(
            [{"role": role, "content": content, **extra} for role, content, extra in messages]
        ).decode()
    except orjson.JSONEncodeError:  # The decoder takes more levels than the encoder.
        raise OpenAiError(
            "'messages' has tool calls that are nested too deeply; expected JSON of at most 250 levels",
            param="messages",
            code="invalid_value",
        ) from None


_RENDER: Mapping[str, Callable[[Sequence[ChatMessage]], str]] = {
    "chatml": _chatml,
    "gemma": _gemma,
    "json": _json,
    "llama3": _llama3,
    "mistral": _mistral,
    "plain": _plain,
}

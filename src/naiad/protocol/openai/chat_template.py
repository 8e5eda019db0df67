"""The messages of a chat, and its prompt: in one of the formats of `core.chat_format`, or as JSON.

A model with another template takes `json` and renders it in its own process.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from naiad.core.texts.chat_format import ChatMessage, format_chat
from naiad.protocol.openai.members import BodyMembers, shown
from naiad.protocol.openai.openai_error import OpenAiError

MAX_MESSAGES = 4096
_ROLES = ("system", "developer", "user", "assistant")
_TOOL_ROLES = (*_ROLES, "tool")
_MEMBERS = (
    *("role", "content", "name", "refusal", "audio", "annotations", "tool_calls", "function_call"),
    "tool_call_id",
)


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
    return _json(messages) if template == "json" else format_chat(template, messages)


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

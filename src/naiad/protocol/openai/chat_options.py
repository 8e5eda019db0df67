"""Members of a chat that only some models can follow: response formats, tools, log probabilities."""

from collections.abc import Mapping
from typing import Any

import orjson

from naiad.config.openai_mapping import OpenAiMapping
from naiad.protocol.openai.members import BodyMembers

MAX_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 5
MAX_TOOLS = 128
MAX_OPTION_BYTES = 256 << 10
"""Limit of `response_format` and of `tools` as JSON."""
_REASONS = {
    "logprobs": "no such member: the model gives no log probabilities",
    "response_format": '{"type": "text"}: the model is not held to a grammar',
    "tools": "no such member: the model calls no tools",
}


def check_offer(body: BodyMembers, mapping: OpenAiMapping, name: str) -> None:
    """Raise OpenAiError for a member that is given and that the model cannot follow."""
    if name not in mapping.offers and body.get(name) not in (None, False, [], {}):
        raise body.wrong(name, _REASONS[name])


def read_chat_options(body: BodyMembers, mapping: OpenAiMapping) -> Mapping[str, Any]:
    """Return the options of a chat for the model, by the names of its inputs. Raises OpenAiError."""
    if body.get("modalities") not in (None, ["text"]):
        raise body.wrong("modalities", '["text"]')
    if body.get("function_call") not in (None, "none", "auto"):
        raise body.wrong("function_call", "no such member: send 'tools' and 'tool_choice'")
    return {**_response_format(body, mapping), **_tools(body, mapping), **_logprobs(body, mapping)}


def _response_format(body: BodyMembers, mapping: OpenAiMapping) -> Mapping[str, str]:
    form = body.object("response_format")
    if form is None or form.get("type") == "text":
        return {}
    check_offer(body, mapping, "response_format")
    kind = form.get("type")
    if kind not in ("json_object", "json_schema"):
        raise form.wrong("type", "text, json_object or json_schema")
    if kind == "json_schema":
        schema = form.object("json_schema")
        if schema is None or schema.object("schema") is None:
            raise form.wrong("json_schema", 'an object with the member "schema"')
    return {"response_format": _encoded(body, "response_format")}


def _tools(body: BodyMembers, mapping: OpenAiMapping) -> Mapping[str, str]:
    check_offer(body, mapping, "tools")
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise body.wrong("tool_choice", "'none' or 'auto': the request has no tools")
        return {}
    if body.get("parallel_tool_calls") is not None and not body.flag("parallel_tool_calls"):
        raise body.wrong("parallel_tool_calls", "true: the number of calls at a time is the model's choice")
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise body.wrong("tools", f"a list of at most {MAX_TOOLS} tools")
    for position, tool in enumerate(tools):
        name = f"tools[{position}]"
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
            raise BodyMembers({name: tool}).wrong(name, '{"type": "function", "function": {"name": "...", ...}}')
    if choice is None:
        return {"tools": _encoded(body, "tools")}
    if not isinstance(choice, dict) and choice not in ("none", "auto", "required"):
        raise body.wrong("tool_choice", "none, auto, required, or an object that names a function")
    return {"tools": _encoded(body, "tools"), "tool_choice": _encoded(body, "tool_choice")}


def _logprobs(body: BodyMembers, mapping: OpenAiMapping) -> Mapping[str, int]:
    wanted, others = body.flag("logprobs"), body.whole("top_logprobs", 0, MAX_LOGPROBS)
    check_offer(body, mapping, "logprobs")
    if others and not wanted:
        raise body.wrong("top_logprobs", "no such member without 'logprobs': true")
    return {"logprobs": others or 0} if wanted else {}


def _encoded(body: BodyMembers, name: str) -> str:
    try:
        data = orjson.dumps(body.get(name))
    except orjson.JSONEncodeError:  # The decoder takes more levels than the encoder.
        raise body.wrong(name, "JSON of at most 250 levels") from None
    if len(data) > MAX_OPTION_BYTES:
        raise body.wrong(name, f"at most {MAX_OPTION_BYTES} bytes of JSON, not {len(data)}")
    return data.decode()

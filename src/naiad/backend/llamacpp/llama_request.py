"""From the tensors of a request to the body that llama.cpp's server takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from naiad.backend.llamacpp.json_schema import check_schema
from naiad.backend.llamacpp.message_marks import check_marks
from naiad.backend.texts.generation.generation_request import (
    NUMBERS,
    SamplingRules,
    json_of,
    shown_value,
    tensors_of,
    text_of,
)
from naiad.core.errors import excerpt, invalid_argument
from naiad.core.request import InferRequest
from naiad.core.texts.mark_search import MarkSearch

MAX_LOGPROBS = 20
_RENAMED = {"repetition_penalty": "repeat_penalty"}
_INTEGERS: Mapping[str, tuple[int, int]] = {
    "max_tokens": (1, (1 << 31) - 1),
    "top_k": (-1, (1 << 31) - 1),
    "seed": (-(1 << 63), (1 << 63) - 1),
    "logprobs": (0, MAX_LOGPROBS),
}
_RULES = SamplingRules("llama.cpp models", NUMBERS, _INTEGERS, ("ignore_eos",))
_MAX_NAMES = 8
"""Functions that an error names."""
_NO_MARKS = MarkSearch(())
_SEEDS = 0xFFFFFFFF
"""llama.cpp: seeds have 32 bits, and this one means a random one."""


@dataclass(frozen=True, slots=True)
class LlamaRequest:
    """One generation."""

    is_chat: bool
    body: dict[str, Any]
    streams: bool
    """Whether the client wants pieces."""
    logprobs: int | None
    """How many other tokens it wants beside each; None for no probabilities."""


def read_llama_request(request: InferRequest, *, has_template: bool, marks: MarkSearch = _NO_MARKS) -> LlamaRequest:
    """Return what a request asks for. Raises InferError(INVALID_ARG) with input, value and what is expected.

    A chat with one of `marks` in its messages is refused.
    """
    tensors = tensors_of(request)
    texts = {name: text_of(name, tensors[name], limit) for name, limit in _TEXTS.items() if name in tensors}
    sampling = _sampling(texts.get("sampling_parameters", ""))
    logprobs = sampling.pop("logprobs", None)
    body: dict[str, Any] = {**sampling, "stream": True, "return_progress": True}
    body["stream_options"] = {"include_usage": True}
    prompt, messages = texts.get("text_input", ""), texts.get("messages", "")
    if bool(prompt) == bool(messages):
        raise invalid_argument("a request has either 'text_input' or 'messages', and not an empty one")
    if messages:
        if not has_template:
            raise invalid_argument("the model file has no chat template; send 'text_input'")
        body["messages"] = json_of("messages", messages, list)
        if marks.has_marks:
            check_marks(request, body["messages"], marks)
        body |= _tools(texts)
        body |= {} if logprobs is None else {"logprobs": True, "top_logprobs": max(1, logprobs)}
    else:
        body["prompt"] = prompt
        body |= {} if logprobs is None else {"n_probs": max(1, logprobs)}
    if texts.get("response_format"):
        body |= _response_format(json_of("response_format", texts["response_format"], dict))
    streams = bool(tensors["stream"][0]) if "stream" in tensors else False
    return LlamaRequest(bool(messages), body, streams, logprobs)


_TEXTS: Mapping[str, int] = {
    "text_input": 4 << 20,
    "messages": 4 << 20,
    "sampling_parameters": 64 << 10,
    "response_format": 256 << 10,
    "tools": 256 << 10,
    "tool_choice": 64 << 10,
}
"""Inputs with texts, and the limits of their bytes."""


def _sampling(text: str) -> dict[str, Any]:
    found = {_RENAMED.get(name, name): value for name, value in _RULES.read(text).items()}
    if "seed" in found:
        # Any number is a seed, and none stands for a random one.
        found["seed"] %= _SEEDS
    if found.get("top_k") == -1:
        found["top_k"] = 0
    return found


def _tools(texts: Mapping[str, str]) -> Mapping[str, Any]:
    if not texts.get("tools"):
        return {}
    tools = json_of("tools", texts["tools"], list)
    for position, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid_argument(f"'tools[{position}]' has no function with a name")
        if function.get("parameters"):
            check_schema(function["parameters"], f"tools[{position}].function.parameters")
    if not texts.get("tool_choice"):
        return {"tools": tools}
    tools, choice = _chosen(tools, texts["tool_choice"])
    return {"tools": tools, "tool_choice": choice}


_CHOICES = ("none", "auto", "required")


def _chosen(tools: list[Any], text: str) -> tuple[list[Any], str]:
    """Return the tools that may be called and llama.cpp's word for the choice: it takes no name of a function."""
    if text.strip('"') in _CHOICES:
        return tools, text.strip('"')
    if not text.startswith("{"):
        raise invalid_argument(
            f"'tool_choice' is '{excerpt(text)}'; expected {', '.join(_CHOICES)}, or an object that names a function"
        )
    function = json_of("tool_choice", text, dict).get("function")
    name = function.get("name") if isinstance(function, dict) else None
    named = [tool for tool in tools if tool["function"]["name"] == name]
    if not named:
        shown = f"the function '{excerpt(name)}'" if isinstance(name, str) else "no function"
        known = ", ".join(excerpt(tool["function"]["name"]) for tool in tools[:_MAX_NAMES])
        raise invalid_argument(f"'tool_choice' names {shown}; expected one of 'tools': {known}")
    return named, "required"


def _response_format(form: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = form.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}
    if kind == "json_schema" and isinstance(form.get("json_schema"), dict):
        schema = form["json_schema"].get("schema")
        check_schema(schema, "response_format")
        return {"json_schema": schema}
    raise invalid_argument(
        f"'response_format' has the type {shown_value(kind)}; expected text, json_object, or json_schema with "
        "the member 'json_schema'"
    )

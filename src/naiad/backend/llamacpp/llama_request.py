"""From the tensors of a request to the body that llama.cpp's server takes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from naiad.backend.llamacpp.json_schema import check_schema
from naiad.core.errors import InferError, excerpt, invalid_argument
from naiad.core.request import InferRequest
from naiad.core.value_limits import excess_of_values

MAX_LOGPROBS = 20
_RENAMED = {"repetition_penalty": "repeat_penalty"}
_NUMBERS: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (0, 100),
}
_INTEGERS: Mapping[str, tuple[int, int]] = {
    "max_tokens": (1, (1 << 31) - 1),
    "top_k": (-1, (1 << 31) - 1),
    "seed": (-(1 << 63), (1 << 63) - 1),
    "logprobs": (0, MAX_LOGPROBS),
}
_MAX_STOPS = 16
_MAX_STOP_CHARACTERS = 1024
_MAX_NAMES = 8
"""Functions that an error names."""
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


def read_llama_request(request: InferRequest, *, has_template: bool) -> LlamaRequest:
    """Return what a request asks for. Raises InferError(INVALID_ARG) with input, value and what is expected."""
    tensors = {spec.name: data for spec, data in zip(request.header.inputs, request.data, strict=True)}
    texts = {name: _text(name, tensors[name]) for name in _TEXTS if name in tensors}
    sampling = _sampling(texts.get("sampling_parameters", "") or "{}")
    logprobs = sampling.pop("logprobs", None)
    body: dict[str, Any] = {**sampling, "stream": True, "return_progress": True}
    body["stream_options"] = {"include_usage": True}
    prompt, messages = texts.get("text_input", ""), texts.get("messages", "")
    if bool(prompt) == bool(messages):
        raise invalid_argument("a request has either 'text_input' or 'messages', and not an empty one")
    if messages:
        if not has_template:
            raise invalid_argument("the model file has no chat template; send 'text_input'")
        body["messages"] = _json("messages", messages, list)
        body |= _tools(texts)
        body |= {} if logprobs is None else {"logprobs": True, "top_logprobs": max(1, logprobs)}
    else:
        body["prompt"] = prompt
        body |= {} if logprobs is None else {"n_probs": max(1, logprobs)}
    if texts.get("response_format"):
        body |= _response_format(_json("response_format", texts["response_format"], dict))
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


def _text(name: str, data: Any) -> str:
    """Return the one element of a BYTES tensor."""
    size = max(0, memoryview(data).nbytes - 4)
    if size > _TEXTS[name]:
        raise invalid_argument(
            f"input '{name}' has {size} bytes; at most {_TEXTS[name]} are taken: send a shorter text"
        )
    try:
        return bytes(memoryview(data)[4:]).decode()
    except UnicodeDecodeError as error:
        raise invalid_argument(f"input '{name}' is not UTF-8: {error}; send text in UTF-8") from error


def _json(name: str, text: str, kind: type) -> Any:
    # Parsing millions of small objects would keep the interpreter, and so the event loop, for a tenth of a second.
    excess = excess_of_values(text.encode())
    if excess:
        raise invalid_argument(f"input '{name}' has {excess}: send several requests")
    try:
        found = json.loads(text)
        # Halves of surrogate pairs, which llama.cpp does not take.
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise invalid_argument(f"input '{name}' is no JSON: {excerpt(str(error))}") from error
    if not isinstance(found, kind):
        raise invalid_argument(f"input '{name}' is {excerpt(text)}; expected a {_KINDS[kind]}")
    return found


_KINDS: Mapping[type, str] = {list: "JSON list", dict: "JSON object"}


def _sampling(text: str) -> dict[str, Any]:
    given = _json("sampling_parameters", text, dict)
    found: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in _NUMBERS:
            _check_number(name, value, _NUMBERS[name], (int, float))
        elif name in _INTEGERS:
            _check_number(name, value, _INTEGERS[name], (int,))
        elif name == "stop":
            _check_stops(value)
        elif name != "ignore_eos":
            known = ", ".join([*_NUMBERS, *_INTEGERS, "stop", "ignore_eos"])
            raise _wrong(name, value, f"no such parameter; llama.cpp models take {known}")
        found[_RENAMED.get(name, name)] = value
    if "seed" in found:
        # Any number is a seed, and none stands for a random one.
        found["seed"] %= _SEEDS
    if found.get("top_k") == -1:
        found["top_k"] = 0
    return found


def _wrong(name: str, value: Any, expected: str) -> InferError:
    return invalid_argument(f"'sampling_parameters' has '{excerpt(name)}': {_shown(value)}; expected {expected}")


def _shown(value: Any) -> str:
    """Return a value for an error; containers by their kind, since they may be large."""
    return f"a {_KINDS[type(value)]}" if type(value) in _KINDS else excerpt(repr(value))


def _check_number(name: str, value: Any, limits: tuple[float, float], kinds: tuple[type, ...]) -> None:
    if type(value) not in kinds or not limits[0] <= value <= limits[1]:
        what = "a whole number" if kinds == (int,) else "a number"
        raise _wrong(name, value, f"{what} from {limits[0]} to {limits[1]}")


def _check_stops(value: Any) -> None:
    stops = [value] if isinstance(value, str) else value
    fits = isinstance(stops, list) and len(stops) <= _MAX_STOPS
    if not fits or not all(isinstance(each, str) and 0 < len(each) <= _MAX_STOP_CHARACTERS for each in stops):
        raise _wrong("stop", value, f"at most {_MAX_STOPS} texts of 1 to {_MAX_STOP_CHARACTERS} characters")


def _tools(texts: Mapping[str, str]) -> Mapping[str, Any]:
    if not texts.get("tools"):
        return {}
    tools = _json("tools", texts["tools"], list)
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
    function = _json("tool_choice", text, dict).get("function")
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
        f"'response_format' has the type {_shown(kind)}; expected text, json_object, or json_schema with "
        "the member 'json_schema'"
    )

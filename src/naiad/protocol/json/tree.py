"""JSON documents of requests: parsed once, fast for numbers, with typed access and Triton's error texts.

simdjson parses; tensor data stays a `simdjson.Array`, which converts to an array of doubles or integers without a
Python object per number. The standard library's parser reads a document again if simdjson rejects it, and its result
counts: it accepts the bare NaN and Infinity of Triton and integers beyond 64 bits, and it reports the position of a
syntax error.

`check_depth` bounds the nesting of a document before a recursive parser reads it. simdjson has a bound of its own,
1024, without extra cost.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import simdjson

from naiad.core.errors import MAX_EXCERPT_CHARACTERS, InferError, excerpt, invalid_argument, wrong_request
from naiad.core.limits.request_limits import MAX_MEMBERS, RequestLimits, check_dims, check_parameters, unlimited
from naiad.core.tensor import Buffer

MAX_JSON_DEPTH = 512
MAX_DATA_DEPTH = 99
"""Arrays around an element of tensor data; newer versions of Triton."""

_OPEN, _CLOSE, _QUOTE = b"[{", b"]}", b'"'
# Quotes become 0, brackets their change of the depth; as int8, so 255 is -1.
_STEPS = bytes.maketrans(_QUOTE + _OPEN + _CLOSE, b"\0\1\1\xff\xff")
_OTHERS = bytes(set(range(256)) - set(_QUOTE + _OPEN + _CLOSE))
_PIECE = 1 << 20


def check_depth(text: Buffer, limit: int = MAX_JSON_DEPTH) -> None:
    """Raise InferError(INVALID_ARG) when a document is nested deeper than `limit`.

    Checks only the depth; for text that is not JSON the depth found is arbitrary.
    """
    data = text if isinstance(text, bytes | bytearray) else bytes(text)
    # Nearly every document has so few brackets that it cannot be too deep.
    if data.count(b"[") + data.count(b"{") > limit and _depth(data) > limit:
        raise too_deep(limit)


def too_deep(limit: int) -> InferError:
    """Return the error for a document that is nested deeper than `limit`."""
    return invalid_argument(
        f"failed to parse the request JSON buffer: arrays and objects are nested more than {limit} levels deep"
    )


def data_too_deep(member: str = "data") -> InferError:
    """Return the error for a member's array that is nested deeper than MAX_DATA_DEPTH, with Triton's text."""
    return invalid_argument(
        f"JSON nesting depth exceeds maximum allowed limit (100) in '{member[:64]}'; expected as many levels as "
        "'shape' has dimensions, or a flat array"
    )


def _depth(data: bytes | bytearray) -> int:
    if b"\\" in data:
        # Only strings have quotes; the rest of a split string ends with the first quote.
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(data.translate(_STEPS, _OTHERS), np.int8)
    deepest = depth = quotes = 0
    for start in range(0, len(marks), _PIECE):
        piece = marks[start : start + _PIECE]
        quoted = np.cumsum(piece == 0, dtype=np.int32) + quotes
        depths = np.cumsum(np.where(quoted & 1, 0, piece), dtype=np.int32) + depth
        deepest = max(deepest, int(depths.max()))
        depth, quotes = int(depths[-1]), int(quoted[-1]) & 1
    return deepest


JsonObject: TypeAlias = Mapping[str, Any]
Members: TypeAlias = tuple[tuple[str, Any], ...]
"""The members of an object in order; a repeated name is present twice, and the caller chooses the value."""

NOT_AN_OBJECT = (
    "attempt to get members for non-object; the request body is another JSON value, expected an object: put the "
    "members into braces"
)
_MOST_NAMES = 8
_NEAR_CHARACTERS = 16
"""Members and characters of a request that an error shows."""
_LARGE_BYTES = 8 << 20
"""The memory of larger documents is released. Fresh memory costs more than parsing: 7 ms for an image."""
_parser = simdjson.Parser()
MAX_CONTROL_BYTES = 64 * 1024
"""Limit of a request about the server or a model. Load requests may be longer because of their files."""
_TOP_LEVEL = ("id", "parameters", "inputs", "outputs")
_INPUT = ("name", "shape", "datatype", "parameters", "data")
_ABSENT = object()
# A string, which stays unchanged, or Triton's short spelling of Infinity.
_SHORT_INFINITY = re.compile(r'"(?:[^"\\]|\\.)*"|\bInf\b')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_infer_document(text: Buffer, limits: RequestLimits | None = None) -> JsonObject:
    """Return the members of an inference request that have a meaning; `data` of inputs may be a `simdjson.Array`.

    Triton: a document that is not an object has no members. Raises InferError for invalid JSON, and for a
    document nested too deeply or with more parts than `limits` allow.
    """
    try:
        return _infer_members(_parse(text), limits or unlimited("", ""))
    except (ValueError, RuntimeError, KeyError):
        tree = parse_document(text)
        return tree if isinstance(tree, dict) else {}


def _infer_members(root: Any, limits: RequestLimits) -> JsonObject:
    if not isinstance(root, simdjson.Object):
        return {}
    tree: dict[str, Any] = {}
    for name in _TOP_LEVEL:
        value = root.get(name, _ABSENT)
        if value is _ABSENT:
            continue
        if name == "inputs" and isinstance(value, simdjson.Array):
            limits.check_inputs(len(value))
            tree[name] = [_input(entry) for entry in value]
            continue
        if name == "outputs" and isinstance(value, simdjson.Array):
            limits.check_outputs(len(value))
        if name == "parameters" and isinstance(value, simdjson.Object):
            check_parameters(len(value))
        tree[name] = _plain(value)
    return tree


def parse_members(text: Buffer) -> Members:
    """Return the members of a document that is an object; members that are objects are `Members` as well.

    Arrays may be `simdjson.Array`. Raises InferError for invalid JSON, a value that is not an object, and a
    document nested too deeply.
    """
    try:
        members = _as_members(_parse(text))
        if type(members) is tuple:
            members = tuple([(name, _as_members(value)) for name, value in members])
    except (ValueError, RuntimeError, KeyError):
        members = parse_document(text, object_type=tuple)
    if type(members) is not tuple:
        raise wrong_request(NOT_AN_OBJECT)
    return members


def _as_members(value: Any) -> Any:
    if isinstance(value, simdjson.Object) and len(value) > MAX_MEMBERS:
        # The parser looks each name up from the first member on.
        raise invalid_argument(f"an object of the request JSON has more than {MAX_MEMBERS} members")
    # `items()` would make Python lists of arrays.
    return tuple([(name, _value(value, name)) for name in value]) if isinstance(value, simdjson.Object) else value


def _value(value: Any, name: str) -> Any:
    if "\0" in name:
        # simdjson looks names up as C strings.
        raise KeyError(name)
    return value[name]


def _parse(text: Buffer) -> Any:
    """Parse with the memory of the previous document, unless that is still in use or is large."""
    global _parser  # noqa: PLW0603 - one thread decodes, and what it keeps is only memory
    if len(text) > _LARGE_BYTES:
        return simdjson.Parser().parse(text)
    try:
        return _parser.parse(text)
    except RuntimeError:
        # Tensor data of the previous document outlives its request.
        _parser = simdjson.Parser()
        return _parser.parse(text)


def parse_array(text: bytes) -> Any:
    """Return a document that is an array, as `simdjson.Array` if possible. Raises InferError."""
    try:
        array = _parse(text)
    except (ValueError, RuntimeError):
        array = parse_document(text)
    if not isinstance(array, list | simdjson.Array):
        raise syntax_error("expected an array", 0)
    return array


def _input(entry: Any) -> Any:
    if not isinstance(entry, simdjson.Object):
        return _plain(entry)
    tree: dict[str, Any] = {}
    for name in _INPUT:
        value = entry.get(name, _ABSENT)
        if value is not _ABSENT:
            tree[name] = value if name == "data" else _bounded(name, value)
    return tree


def _bounded(name: str, value: Any) -> Any:
    """Return a member of an input as plain values, unless it has too many."""
    if name == "shape" and isinstance(value, simdjson.Array):
        check_dims("", len(value))
    elif name == "parameters" and isinstance(value, simdjson.Object):
        check_parameters(len(value))
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    if isinstance(value, simdjson.Array):
        return value.as_list()
    return value


def parse_document(text: Buffer, *, object_type: "Callable[[list[tuple[str, Any]]], Any] | None" = None) -> Any:
    """Return a JSON document as plain Python values, with NaN and Infinity allowed.

    Objects are dictionaries unless `object_type` converts their members.

    Raises InferError with the cause and position of a syntax error, and for a document nested too deeply.
    """
    check_depth(text)
    try:
        decoded = str(text, "utf-8")
        if "Inf" in decoded:
            decoded = _SHORT_INFINITY.sub(_spell_infinity, decoded)
        has_huge = _HUGE_NUMBER.search(decoded) is not None
        tree = json.loads(
            decoded,
            object_pairs_hook=object_type,
            parse_float=_finite if has_huge else None,
            parse_int=_whole if has_huge else None,
        )
        if _SURROGATE.search(decoded):
            json.dumps(tree, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise syntax_error("Invalid UTF-8", error.start) from None
    except UnicodeEncodeError:
        raise half_surrogate() from None
    except json.JSONDecodeError as error:
        raise syntax_error(error.msg, error.pos, error.doc) from None
    except ValueError as error:
        raise wrong_request(f"failed to parse the request JSON buffer: {error}") from None
    return tree


_HUGE_NUMBER = re.compile(r"[eE]\+?0*[1-9]\d\d|\d{300}")
"""May be in a document with a number beyond a double: Python would make infinity of it, or refuse its digits."""
_MOST_DIGITS = 4000
"""Fewer than `sys.get_int_max_str_digits()`."""


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _too_big(text)
    return number


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise _too_big(text)
    return int(text)


def _too_big(text: str) -> InferError:
    return wrong_request(
        f"failed to parse the request JSON buffer: Number too big to be stored in double; got {excerpt(text)}"
    )


def parse_control_document(text: Buffer) -> Any:
    """Return the JSON body of a control request, which is short. Raises InferError as `parse_document` does."""
    if len(text) > MAX_CONTROL_BYTES:
        raise invalid_argument(
            f"the request body has {len(text)} bytes; at most {MAX_CONTROL_BYTES} are allowed for this request"
        )
    return parse_document(text)


def _spell_infinity(match: "re.Match[str]") -> str:
    return "Infinity" if match[0] == "Inf" else match[0]


def syntax_error(what: str, offset: int, text: str = "") -> InferError:
    """Return the error for `text` that is not JSON."""
    near = excerpt(text[max(0, offset - _NEAR_CHARACTERS) : offset + _NEAR_CHARACTERS])
    hint = f"; got {near} there, expected one JSON object: check its quotes, commas and brackets" if text else ""
    return wrong_request(f"failed to parse the request JSON buffer: {what}. at {offset}{hint}")


# --- typed access ---------------------------------------------------------------------------------------------------


def half_surrogate() -> InferError:
    """Return the error for a string that cannot be encoded."""
    return wrong_request("failed to parse the request JSON buffer: a \\u escape is half of a surrogate pair")


def unparsable(field: str, why: str) -> InferError:
    """Return Triton's error for a member that is missing or of the wrong type."""
    return wrong_request(f"Unable to parse '{field}': {why}")


_EXAMPLES = {
    "inputs": '[{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1]}]',
    "outputs": '[{"name": "OUTPUT0"}]',
    "name": '"INPUT0"',
    "datatype": '"FP32"',
    "shape": "[1, 2]",
    "data": "[0.5, 1]",
    "key": '"/my_region"',
    "byte_size": "64",
    "trace_level": '["TIMESTAMPS"]',
}
"""Values of members, as the end of an error shows them."""


def mismatch(field: str, value: Any, words: str, expected: str) -> InferError:
    """Return the error for a member of the wrong type; `words` are Triton's."""
    example = f', such as "{field}": {_EXAMPLES[field]}' if field in _EXAMPLES else ""
    return unparsable(field, f"attempt to access JSON {words}; got {shown(value)}, expected {expected}{example}")


def shown(value: Any) -> str:
    """Return a JSON value for an error message: its text, truncated, or the size of an array or an object."""
    if isinstance(value, simdjson.Array | list):
        return f"an array of {len(value)} elements"
    if isinstance(value, dict | tuple | simdjson.Object):
        return f"an object of {len(value)} members"
    if isinstance(value, str):
        return excerpt(json.dumps(value[:MAX_EXCERPT_CHARACTERS], ensure_ascii=False))
    return excerpt(json.dumps(value)) if isinstance(value, int | float | None) else "a long value"


def member(tree: JsonObject, name: str) -> Any:
    """Return a required member."""
    try:
        return tree[name]
    except KeyError:
        present = ", ".join([f"'{excerpt(each)}'" for each in list(tree)[:_MOST_NAMES]]) or "no members"
        raise unparsable(
            name,
            f"attempt to access non-existing object member '{name}'; got {present}, expected '{name}': "
            f'add "{name}": {_EXAMPLES.get(name, "...")}',
        ) from None


def as_string(field: str, value: Any) -> str:
    """Return `value` if it is a string."""
    if type(value) is not str:
        raise mismatch(field, value, "non-string as string", "a string in quotes")
    return value


def as_unsigned(field: str, value: Any) -> int:
    """Return `value` if it is an unsigned integer of 64 bits."""
    if type(value) is not int or not 0 <= value < 1 << 64:
        words = "non-unsigned-integer as unsigned-integer"
        raise mismatch(field, value, words, "an integer from 0 to 2^64 - 1 without quotes")
    return value


def as_bool(field: str, value: Any) -> bool:
    """Return `value` if it is true or false."""
    if type(value) is not bool:
        raise mismatch(field, value, "non-boolean as boolean", "true or false without quotes")
    return value


def as_array(field: str, value: Any) -> "list[Any]":
    """Return `value` if it is an array."""
    if type(value) is not list:
        raise mismatch(field, value, "non-array as array", "an array in brackets")
    return value


def members_of(tree: JsonObject) -> JsonObject:
    """Return the `parameters` of a request, an input or an output; empty when there are none."""
    parameters = tree.get("parameters")
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise wrong_request(
            "failed to get request params.: attempt to get members for non-object; 'parameters': got "
            f'{shown(parameters)}, expected an object, such as "parameters": {{"timeout": 1000000}}'
        )
    return parameters

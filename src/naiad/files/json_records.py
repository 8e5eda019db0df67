"""Dataclasses as JSON, and back: enumerations are their values, paths are text, sequences and tuples are arrays.

A reader ignores members that it does not know, and members of fields with a default may be missing.
"""

import dataclasses
import json
import types
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

_Record = TypeVar("_Record")
_NAMES = {float: "a number", int: "an integer", str: "a string", bool: "true or false"}


class RecordFieldError(ValueError):
    """A field of a record does not fit; the message names it."""


def to_json(value: Any) -> str:
    """Return dataclasses and what they hold as JSON; numbers and arrays of numpy become numbers and arrays."""
    return json.dumps(value, default=_plain, sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "tolist"):  # A number or an array of numpy.
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else str(value)


def read_record(kind: type[_Record], document: Any, path: str = "") -> _Record:
    """Return a dataclass from its JSON form; errors name fields below `path`. Raises RecordFieldError."""
    if not isinstance(document, dict):
        raise _misfit(path, document, "an object")
    values = {}
    hints = _hints(cast("Hashable", kind))
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # no type says "dataclass"
        place = f"{path}.{field.name}" if path else field.name
        if field.name in document:
            values[field.name] = _value(hints[field.name], document[field.name], place)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RecordFieldError(f"field '{place}' is missing")
    return kind(**values)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(kind: Any, value: Any, path: str) -> Any:
    if kind is Any:
        return value
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return read_record(kind, value, path)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _one_of([each for each in arguments if each is not type(None)], value, path)
    if origin is Mapping:
        if not isinstance(value, dict):
            raise _misfit(path, value, "an object")
        return {
            _key(arguments[0], key, path): _value(arguments[1], each, f"{path}.{key}") for key, each in value.items()
        }
    if origin in (Sequence, tuple):
        return _list(origin, arguments, value, path)
    return _scalar(kind, value, path)


def _one_of(kinds: Sequence[Any], value: Any, path: str) -> Any:
    for kind in kinds[:-1]:
        try:
            return _value(kind, value, path)
        except RecordFieldError:
            continue
    return _value(kinds[-1], value, path)


def _list(origin: Any, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    if not isinstance(value, list):
        raise _misfit(path, value, "an array")
    if origin is Sequence or arguments[-1] is Ellipsis:
        items = [_value(arguments[0], each, f"{path}[{place}]") for place, each in enumerate(value)]
        return items if origin is Sequence else tuple(items)
    if len(value) != len(arguments):
        raise _misfit(path, value, f"an array of {len(arguments)}")
    return tuple(_value(kind, each, path) for kind, each in zip(arguments, value, strict=True))


def _key(kind: Any, key: str, path: str) -> Any:
    try:
        return kind(key)
    except ValueError:
        raise _misfit(path, key, "integers as names") from None


def _scalar(kind: Any, value: Any, path: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        return float(value)
    if issubclass(kind, Enum | Path):
        return _named(kind, value, path)
    if isinstance(value, kind) and (is_number or kind is not int):
        return value
    raise _misfit(path, value, _NAMES[kind])


def _named(kind: Any, value: Any, path: str) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError):
        expected = " or ".join(str(each.value) for each in kind) if issubclass(kind, Enum) else "a path"
        raise _misfit(path, value, expected) from None


def _misfit(path: str, value: Any, expected: str) -> RecordFieldError:
    return RecordFieldError(f"field '{path}': expected {expected}, got {json.dumps(value)[:80]}")

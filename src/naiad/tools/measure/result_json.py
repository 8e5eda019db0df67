"""The result of a run as a JSON file, and back. Fields are named as in `naiad.tools.measure.result`; times in us.

A reader takes the version of the schema it knows. Fields that it does not know are ignored, and fields with a default
may be missing, so new fields do not need a new version.
"""

import dataclasses
import json
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from naiad.tools.measure.result import SCHEMA_VERSION, Result


class ResultFileError(ValueError):
    """A file is not a result that this version can read; the message names the field."""


def to_json(result: Result) -> str:
    """Return the text of the file. Raises ValueError for a number that is not finite."""
    return json.dumps(dataclasses.asdict(result), allow_nan=False, ensure_ascii=False, indent=1) + "\n"


def from_json(text: str | bytes) -> Result:
    """Read the text of a file.

    Raises ResultFileError when it is not JSON, has another version of the schema, or a field does not fit.
    """
    try:
        document = json.loads(text, parse_constant=_not_finite)
    except (ValueError, RecursionError) as error:
        raise ResultFileError(f"not a JSON file: {error}") from error
    if not isinstance(document, dict) or "version" not in document:
        raise ResultFileError("not a result of `naiad perf --json`: it has no field 'version'")
    if document["version"] != SCHEMA_VERSION:
        raise ResultFileError(
            f"version {document['version']!r} of the result is not supported, expected {SCHEMA_VERSION}; "
            "measure again with this version of naiad"
        )
    result: Result = read_record(Result, document, "")
    return result


def _not_finite(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def read_record(kind: Any, document: Any, path: str) -> Any:
    """Read a dataclass of `naiad.tools.measure.result` from its JSON form; errors name fields below `path`.

    Raises ResultFileError.
    """
    if not isinstance(document, dict):
        raise _misfit(path, document, "an object")
    values = {}
    for field in dataclasses.fields(kind):
        place = f"{path}.{field.name}" if path else field.name
        if field.name in document:
            values[field.name] = _value(_hints(kind)[field.name], document[field.name], place)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ResultFileError(f"field '{place}' is missing")
    return kind(**values)


def _value(kind: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return read_record(kind, value, path)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _value(arguments[0], value, path)
    if origin is Mapping:
        if not isinstance(value, dict):
            raise _misfit(path, value, "an object")
        return {
            _key(arguments[0], key, path): _value(arguments[1], each, f"{path}.{key}") for key, each in value.items()
        }
    if origin in (Sequence, tuple):
        return _list(origin, arguments, value, path)
    return _scalar(kind, value, path)


def _list(origin: Any, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    if not isinstance(value, list):
        raise _misfit(path, value, "an array")
    if origin is Sequence:
        return [_value(arguments[0], each, f"{path}[{place}]") for place, each in enumerate(value)]
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
    if isinstance(value, kind) and (is_number or kind is not int):
        return value
    raise _misfit(path, value, {float: "a number", int: "an integer", str: "a string", bool: "true or false"}[kind])


def _misfit(path: str, value: Any, expected: str) -> ResultFileError:
    return ResultFileError(f"field '{path}': expected {expected}, got {json.dumps(value)[:80]}")

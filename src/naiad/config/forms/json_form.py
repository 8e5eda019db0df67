"""The JSON form of a model configuration: read for load overrides, written for the config endpoint."""

import math
from collections.abc import Mapping
from typing import Any

import orjson
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from naiad.config.forms.pbtxt.scalar import meant_enum
from naiad.config.forms.schema import (
    FLOAT_TYPES,
    INT_RANGES,
    EnumSchema,
    Field,
    is_map,
    is_message,
    is_repeated,
    type_in_words,
)
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import Problem, nearest, raise_problems
from naiad.core.errors import excerpt, internal

# --- writing --------------------------------------------------------------------------------------------------------


def config_to_json(config: ModelConfig) -> bytes:
    """Return `config` as a JSON object, as in Triton's config endpoint.

    Field names of the schema, every scalar with its default, enums by name, 64-bit integers as numbers, map keys as
    strings, lists even if empty; messages and members of a oneof only if they are set. Numbers without a JSON form
    (infinities, NaN) become null.
    """
    return orjson.dumps(_message_to_dict(config))


def _message_to_dict(message: Message) -> dict[str, Any]:
    fields = message.DESCRIPTOR.fields
    return {field.name: _field_to_json(message, field) for field in fields if _is_written(message, field)}


def _is_written(message: Message, field: Field) -> bool:
    if is_repeated(field):
        return True
    if is_message(field) or field.containing_oneof is not None:
        return bool(message.HasField(field.name))
    return True


def _field_to_json(message: Message, field: Field) -> Any:
    value = getattr(message, field.name)
    if is_map(field):
        value_field = field.message_type.fields_by_name["value"]
        return {str(key): _value_to_json(value_field, value[key]) for key in sorted(value)}
    if is_repeated(field):
        return [_value_to_json(field, element) for element in value]
    return _value_to_json(field, value)


def _value_to_json(field: Field, value: Any) -> Any:
    if is_message(field):
        return _message_to_dict(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT and math.isfinite(value):
        return _shortest(value)
    return value


def _shortest(value: float) -> float:
    """Return the double whose shortest text reads back to the same 32-bit float."""
    return float(f"{value:.6g}") if _same_single(float(f"{value:.6g}"), value) else float(f"{value:.9g}")


def _same_single(a: float, b: float) -> bool:
    probe = ModelConfig().sequence_batching.direct
    probe.minimum_slot_utilization = a
    return bool(probe.minimum_slot_utilization == b)


# --- reading --------------------------------------------------------------------------------------------------------


def config_from_json(text: str | bytes) -> ModelConfig:
    """Read the JSON of a load override.

    Accepts field names of the schema or in camelCase, enum names in any case, integers also as strings, null for a
    default. Raises InferError(INVALID_ARG) that lists every problem: unknown fields and invalid values.
    """
    config, problems = read_json(text)
    raise_problems(problems)
    return config


def read_json(text: str | bytes, filename: str = "") -> tuple[ModelConfig, list[Problem]]:
    """Return the configuration as far as it could be read, and all problems."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        place = Problem(
            message=f"Invalid config override: {error.msg}", filename=filename, line=error.lineno, column=error.colno
        )
        return ModelConfig(), [place]
    reader = _Reader(filename)
    config = ModelConfig()
    if isinstance(value, Mapping):
        reader.message(config, value, "")
    else:
        reader.problem("", value, "Invalid config override: the root must be an object", "a JSON object")
    return config, reader.problems


def config_of_server(value: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration that a server sent. Fields of servers of other versions are passed over, as in gRPC.

    Raises InferError(INTERNAL) for values that are none of their fields.
    """
    reader = _Reader("", passes_unknown=True)
    config = ModelConfig()
    reader.message(config, value, "")
    if reader.problems:
        raise internal(f"the server sent a configuration that cannot be read: {reader.problems[0].message}")
    return config


def config_from_dict(value: Mapping[str, Any]) -> tuple[ModelConfig, list[Problem]]:
    """Return the configuration in JSON values, as far as it could be read, and all problems."""
    reader = _Reader("")
    config = ModelConfig()
    reader.message(config, value, "")
    return config, reader.problems


class _MisfitError(ValueError):
    """A JSON value that is not valid for its field; the argument is a suggestion."""


class _Reader:
    def __init__(self, filename: str, *, passes_unknown: bool = False) -> None:
        self.problems: list[Problem] = []
        self._filename = filename
        self._passes_unknown = passes_unknown

    def problem(self, path: str, value: object, message: str, expected: str, suggestion: str = "") -> None:
        self.problems.append(
            Problem(
                message=message,
                path=path,
                filename=self._filename,
                text=str(value)[:60],
                expected=expected,
                suggestion=suggestion,
            )
        )

    def message(self, message: Message, value: Mapping[str, Any], path: str) -> None:
        fields = message.DESCRIPTOR.fields_by_name
        for name, element in value.items():
            field = fields.get(name) or message.DESCRIPTOR.fields_by_camelcase_name.get(name)
            field_path = f"{path}.{name}" if path else name
            if field is None and self._passes_unknown:
                continue
            if field is None:
                owner = message.DESCRIPTOR.name
                self.problem(
                    field_path,
                    name,
                    f"Invalid config override: {excerpt(field_path)}: Cannot find field.",
                    f"a field of {owner}",
                    nearest(name, fields),
                )
            elif element is not None:
                self._field(message, field, element, field_path)

    def _field(self, message: Message, field: Field, value: Any, path: str) -> None:
        if is_map(field):
            self._map(message, field, value, path)
        elif is_repeated(field):
            self._list(message, field, value, path)
        elif is_message(field):
            self._sub_message(message, field, value, path)
        else:
            self._scalar(message, field, value, path)

    def _sub_message(self, message: Message, field: Field, value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            self._misfit(field, value, path)
        elif self._fits_oneof(message, field, path):
            target: Message = getattr(message, field.name)
            target.SetInParent()
            self.message(target, value, path)

    def _scalar(self, message: Message, field: Field, value: Any, path: str) -> None:
        converted = self._convert(field, value, path)
        if converted is not None and self._fits_oneof(message, field, path):
            setattr(message, field.name, converted)

    def _fits_oneof(self, message: Message, field: Field, path: str) -> bool:
        oneof = field.containing_oneof
        other = message.WhichOneof(oneof.name) if oneof else None
        if not other:
            return True
        choices = ", ".join(member.name for member in oneof.fields)
        self.problem(path, field.name, f"'{path}' cannot be given along with '{other}'", f"one of {choices}")
        return False

    def _list(self, message: Message, field: Field, value: Any, path: str) -> None:
        if not isinstance(value, list):
            self._misfit(field, value, path, expected="a list")
            return
        target: Any = getattr(message, field.name)
        for index, element in enumerate(value):
            element_path = f"{path}[{index}]"
            if is_message(field):
                added = target.add()
                if isinstance(element, Mapping):
                    self.message(added, element, element_path)
                else:
                    self._misfit(field, element, element_path)
                continue
            converted = self._convert(field, element, element_path)
            if converted is not None:
                target.append(converted)

    def _map(self, message: Message, field: Field, value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            self._misfit(field, value, path, expected="an object")
            return
        target: Any = getattr(message, field.name)
        key_field = field.message_type.fields_by_name["key"]
        value_field = field.message_type.fields_by_name["value"]
        for key, element in value.items():
            element_path = f'{path}["{key}"]'
            converted_key = self._convert(key_field, key, element_path)
            if converted_key is None:
                continue
            if not is_message(value_field):
                converted = self._convert(value_field, element, element_path)
                if converted is not None:
                    target[converted_key] = converted
            elif isinstance(element, Mapping):
                self.message(target[converted_key], element, element_path)
            else:
                self._misfit(value_field, element, element_path)

    def _convert(self, field: Field, value: Any, path: str) -> Any:
        try:
            return _from_json(field, value)
        except _MisfitError as error:
            self._misfit(field, value, path, suggestion=str(error))
            return None

    def _misfit(self, field: Field, value: Any, path: str, *, expected: str = "", suggestion: str = "") -> None:
        shown = orjson.dumps(value).decode()[:60]
        self.problem(
            path,
            value,
            f"Invalid config override: ({path}): invalid value {shown}",
            expected or ("an object" if is_message(field) else type_in_words(field)),
            suggestion,
        )


def _from_json(field: Field, value: Any) -> Any:
    if field.cpp_type in INT_RANGES:
        return _int_from_json(field, value)
    if field.cpp_type in FLOAT_TYPES:
        return _float_from_json(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return _enum_from_json(field.enum_type, value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            raise _MisfitError(str(value) if value in ("true", "false") else "")
        return value
    if not isinstance(value, str):
        raise _MisfitError
    return value


def _int_from_json(field: Field, value: Any) -> int:
    # The JSON mapping of protobuf writes 64-bit integers as strings, and accepts strings for all integers.
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) <= 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    low, high = INT_RANGES[field.cpp_type]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _MisfitError
    return value


def _float_from_json(value: Any) -> float:
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value.replace("Infinity", "inf"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _MisfitError
    return float(value)


def _enum_from_json(enum: EnumSchema, value: Any) -> int:
    if isinstance(value, str):
        known = enum.values_by_name.get(value) or enum.values_by_name.get(value.upper())
        if known is None:
            raise _MisfitError(meant_enum(enum, value))
        return int(known.number)
    if isinstance(value, bool) or not isinstance(value, int) or value not in enum.values_by_number:
        raise _MisfitError
    return int(value)

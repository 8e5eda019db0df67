"""Queries about the ModelConfig schema, shared by its readers and writers."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from google.protobuf.descriptor import FieldDescriptor

from naiad.config.model_config_pb2 import ModelConfig

# The published types of protobuf descriptors differ between its releases and from upb's return types.
Schema: TypeAlias = Any
"""A message's Descriptor."""
Field: TypeAlias = Any
"""A FieldDescriptor."""
EnumSchema: TypeAlias = Any
"""An EnumDescriptor."""

INT_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
"""Smallest and largest value of each integer type."""
_LABEL_REPEATED = 3
FLOAT_TYPES = frozenset({FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE})


def is_repeated(field: Field) -> bool:
    """Return whether a field holds a list or a map."""
    # protobuf 6.31 added is_repeated and deprecated label, the only one in 5.29.
    flag = getattr(field, "is_repeated", None)
    return bool(field.label == _LABEL_REPEATED if flag is None else flag)


def is_message(field: Field) -> bool:
    """Return whether a field's values are messages, map entries included."""
    return bool(field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE)


def is_map(field: Field) -> bool:
    """Return whether a field is a map."""
    return is_message(field) and is_map_entry(field.message_type)


def is_map_entry(descriptor: Schema) -> bool:
    """Return whether a message is the key/value pair of a map."""
    return bool(descriptor.GetOptions().map_entry)


def type_in_words(field: Field) -> str:
    """Return the form of a value of the field, for messages: `an integer from 0 to 4294967295`."""
    if is_message(field):
        return f"a block '{{ ... }}' with fields of {field.message_type.name}"
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return "one of " + ", ".join(name for name in field.enum_type.values_by_name if name != "TYPE_INVALID")
    if field.cpp_type in INT_RANGES:
        low, high = INT_RANGES[field.cpp_type]
        return f"an integer from {low} to {high}"
    if field.cpp_type in FLOAT_TYPES:
        return "a number"
    return "true or false" if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else "a quoted string"


def title_of(descriptor: Schema) -> str:
    """Return the name of a message for users: the field that holds it."""
    if is_map_entry(descriptor):
        return "a map entry"
    return _FIELD_OF_MESSAGE[descriptor.full_name]


def field_list(descriptor: Schema) -> str:
    """Return the names of a message's fields: `one of dims, name`."""
    return "one of " + ", ".join(sorted(descriptor.fields_by_name))


def owners_of(name: str) -> str:
    """Return the messages with a field of that name; empty if there is none."""
    return ", ".join(_OWNERS.get(name, ()))


def _survey() -> tuple[dict[str, str], dict[str, Sequence[str]]]:
    """Return the field that holds each message, and the holders of each field name, over the whole schema."""
    titles: dict[str, str] = {}
    owners: dict[str, list[str]] = {}
    queue: list[tuple[Schema, str]] = [(ModelConfig.DESCRIPTOR, "ModelConfig")]
    while queue:
        descriptor, title = queue.pop(0)
        if descriptor.full_name in titles:
            continue
        titles[descriptor.full_name] = title
        for field in descriptor.fields:
            if not is_map_entry(descriptor):
                owners.setdefault(field.name, []).append(title)
            if is_message(field):
                queue.append((field.message_type, field.name if field.name != "value" else title))
    return titles, {name: tuple(dict.fromkeys(found)) for name, found in owners.items()}


_FIELD_OF_MESSAGE, _OWNERS = _survey()

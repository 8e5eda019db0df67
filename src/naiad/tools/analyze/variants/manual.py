"""Model Analyzer's `model_config_parameters`: a configuration in which a list gives the values of a field.

A field that is no list in the configuration has a list for its alternatives: `max_batch_size: [4, 8]`. A field that
is one (`instance_group`, `preferred_batch_size`) has a list of lists; a plain list is a single value, in whose
elements lists are alternatives again: `instance_group: [{kind: KIND_CPU, count: [1, 2]}]`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from naiad.config.forms.schema import is_map, is_message, is_repeated
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import nearest
from naiad.core.errors import invalid_argument

_Path = tuple[str, ...]


def manual_settings(parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings of each combination. Raises InferError(INVALID_ARG) for an unknown field."""
    axes = list(_axes((), ModelConfig.DESCRIPTOR, parameters))
    return [{".".join(path): value for (path, _), value in zip(axes, row, strict=True)} for row in _rows(axes)]


def _rows(axes: Sequence[tuple[_Path, Sequence[Any]]]) -> Iterator[tuple[Any, ...]]:
    return product(*(values for _, values in axes))


def _axes(path: _Path, schema: Any, value: Mapping[str, Any]) -> Iterator[tuple[_Path, Sequence[Any]]]:
    """Yield each field that is given, and its values."""
    for name, inner in value.items():
        field = schema.fields_by_name.get(name)
        here = (*path, name)
        if field is None:
            near = nearest(name, schema.fields_by_name)
            hint = f"; did you mean '{near}'?" if near else ""
            raise invalid_argument(f"model_config_parameters: there is no field '{'.'.join(here)}'{hint}")
        if is_map(field):
            yield from _map_axes(here, inner)
        elif is_message(field) and not is_repeated(field) and isinstance(inner, Mapping) and inner:
            yield from _axes(here, field.message_type, inner)
        else:
            yield here, _values(field, inner)


def _map_axes(path: _Path, entries: Any) -> Iterator[tuple[_Path, Sequence[Any]]]:
    """Yield the entries of `parameters`, whose values are `{string_value: ...}` or the text itself."""
    if path != ("parameters",) or not isinstance(entries, Mapping):
        yield path, _alternatives(entries)
        return
    for key, value in entries.items():
        text = value.get("string_value", "") if isinstance(value, Mapping) else value
        yield (*path, key), [_text(each) for each in _alternatives(text)]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _alternatives(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _values(field: FieldDescriptor, value: Any) -> Sequence[Any]:
    if not is_repeated(field):
        return [each for one in _alternatives(value) for each in _expanded(field, one)]
    if not isinstance(value, list):
        return [[each] for each in _expanded(field, value)]
    if any(isinstance(each, list) for each in value):
        return [each for one in value for each in _values(field, one)]
    return [list(row) for row in product(*(_expanded(field, each) for each in value))]


def _expanded(field: FieldDescriptor, value: Any) -> Sequence[Any]:
    """Return the combinations of an element: lists in the fields of a message are alternatives."""
    if not isinstance(value, Mapping) or not is_message(field):
        return [value]
    axes = list(_axes((), field.message_type, value))
    return [_nested(zip([path for path, _ in axes], row, strict=True)) for row in _rows(axes)]


def _nested(pairs: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for path, value in pairs:
        inner = result
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return result

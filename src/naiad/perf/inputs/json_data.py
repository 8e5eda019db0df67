"""Data files in perf_analyzer's JSON format.

    {"data": [{"INPUT0": [1, 2], "INPUT1": {"b64": "..."}}, {"INPUT0": {"content": [1, 2, 3], "shape": [3]}, ...}],
     "validation_data": [{"OUTPUT0": [3, 4]}, ...]}

`data` is a list of samples, or a list of lists: streams, one for each sequence. Shapes are without the batch
dimension.
"""

import binascii
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from naiad.core.errors import InferError
from naiad.core.tensor import Array, Shape
from naiad.perf.inputs.conversion import array_of_raw, array_of_values
from naiad.perf.inputs.signature import InputError, ModelTensor, Signature, Step, Stream
from naiad.protocol.json.tree import parse_document

_OTHER_MEMBERS = ("timestamp", "delay", "session_id")
"""Members of a step that are not tensors."""


def read_json(path: Path, signature: Signature) -> tuple[list[Stream], bool]:
    """Return the streams of a file, and whether the file has several (a list of lists). Raises InputError."""
    tree = _parse(path)
    data = tree.get("data") if isinstance(tree, dict) else None
    if not isinstance(data, list) or not data:
        raise InputError(f'{path}: expected an object with a list of samples: {{"data": [{{"INPUT": [...]}}]}}')
    validation = tree.get("validation_data")
    has_streams = all(isinstance(each, list) for each in data)
    if not has_streams:
        return [_stream(path.name, data, validation, signature)], False
    if validation is not None and (not isinstance(validation, list) or len(validation) != len(data)):
        raise InputError(
            f"{path}: expected a list in 'validation_data' for each of the {len(data)} streams of 'data'"
        )
    return [
        _stream(f"{path.name} stream {number}", steps, validation and validation[number], signature)
        for number, steps in enumerate(data)
    ], True


def _parse(path: Path) -> Any:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    try:
        return orjson.loads(text)
    except ValueError:
        pass  # perhaps NaN and Infinity, which orjson does not know
    try:
        return parse_document(text)
    except InferError as error:
        raise InputError(f"{path}: not a JSON document: {error.message}") from None


def _stream(where: str, steps: list[Any], validation: Any, signature: Signature) -> Stream:
    if not steps:
        raise InputError(f"{where}: expected at least one step, got none")
    if validation is not None and (not isinstance(validation, list) or len(validation) != len(steps)):
        got = len(validation) if isinstance(validation, list) else "no list"
        raise InputError(f"{where}: expected an entry of 'validation_data' for each of {len(steps)} steps, got {got}")
    expected = validation or [{}] * len(steps)
    return [_step(f"{where} step {i}", *pair, signature) for i, pair in enumerate(zip(steps, expected, strict=True))]


def _step(where: str, step: Any, expected: Any, signature: Signature) -> Step:
    for members in (step, expected):
        if not isinstance(members, dict):
            raise InputError(f"{where}: expected an object with a member for each tensor, got {_kind(members)}")
    names = [name for name in step if name in signature.inputs or name not in _OTHER_MEMBERS]
    signature.check_names(names, where)
    for name in expected:
        if name not in signature.outputs:
            outputs = ", ".join(f"'{each}'" for each in signature.outputs)
            raise InputError(
                f"{where}: model '{signature.model}' has no output '{name}' to validate; it has {outputs}"
            )
    tensors = {name: _array(signature.inputs[name], step[name], f"{where}, input '{name}'") for name in names}
    outputs_ = _expected(expected, signature.outputs, where)
    return Step(tensors, where, outputs_, None if "timestamp" in names else _timestamp(step, where))


def _expected(members: Mapping[str, Any], outputs: Mapping[str, ModelTensor], where: str) -> dict[str, Array]:
    return {name: _array(outputs[name], value, f"{where}, output '{name}'") for name, value in members.items()}


def _array(tensor: ModelTensor, value: Any, where: str) -> Array:
    shape: Shape | None = None
    if isinstance(value, dict):
        shape = _shape(value.get("shape"), where)
        value = value.get("content", value)
    if isinstance(value, dict) and isinstance(value.get("b64"), str):
        return array_of_raw(tensor, _decoded(value["b64"], where), shape, where)
    if not isinstance(value, list):
        raise InputError(
            f'{where}: expected a flat list of values, {{"b64": "..."}} or {{"content": [...], "shape": [...]}}, '
            f"got {_kind(value)}"
        )
    if value and isinstance(value[0], list):
        raise InputError(f"{where}: expected a flat list in row-major order, got nested lists")
    return array_of_values(tensor, value, shape, where)


def _shape(value: Any, where: str) -> Shape | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(size) is int for size in value):
        raise InputError(f"{where}: expected a list of integers as 'shape', got {_kind(value)}")
    return tuple(value)


def _decoded(text: str, where: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{where}: 'b64' is not base64: {error}") from None


def _timestamp(step: Mapping[str, Any], where: str) -> float | None:
    value = step.get("timestamp")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is not None and (type(value) not in (int, float) or not 0 <= value < float("inf")):
        raise InputError(f"{where}: expected milliseconds from the start as 'timestamp', got {value!r}")
    return value


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, value)) or 'no members'}"
    return repr(value)[:60]

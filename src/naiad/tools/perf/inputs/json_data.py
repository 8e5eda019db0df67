"""Data files in perf_analyzer's JSON format.

    {"data": [{"INPUT0": [1, 2], "INPUT1": {"b64": "..."}}, {"INPUT0": {"content": [1, 2, 3], "shape": [3]}, ...}],
     "validation_data": [{"OUTPUT0": [3, 4]}, ...]}

`data` is a list of samples, or a list of lists: streams, one for each sequence. Shapes are without the batch
dimension.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from naiad.core.tensor import Array, Shape
from naiad.tools.perf.inputs.request_signature import InputStep, Signature, Stream
from naiad.tools.values.conversion import array_of_raw, array_of_values
from naiad.tools.values.json_values import decoded, kind_of, parse_text, read_shape
from naiad.tools.values.tensor import InputError, ModelTensor

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
    return parse_text(text, str(path))


def _stream(where: str, steps: list[Any], validation: Any, signature: Signature) -> Stream:
    if not steps:
        raise InputError(f"{where}: expected at least one step, got none")
    if validation is not None and (not isinstance(validation, list) or len(validation) != len(steps)):
        got = len(validation) if isinstance(validation, list) else "no list"
        raise InputError(f"{where}: expected an entry of 'validation_data' for each of {len(steps)} steps, got {got}")
    expected = validation or [{}] * len(steps)
    return [_step(f"{where} step {i}", *pair, signature) for i, pair in enumerate(zip(steps, expected, strict=True))]


def _step(where: str, step: Any, expected: Any, signature: Signature) -> InputStep:
    for members in (step, expected):
        if not isinstance(members, dict):
            raise InputError(f"{where}: expected an object with a member for each tensor, got {kind_of(members)}")
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
    return InputStep(tensors, where, outputs_, None if "timestamp" in names else _timestamp(step, where))


def _expected(members: Mapping[str, Any], outputs: Mapping[str, ModelTensor], where: str) -> dict[str, Array]:
    return {name: _array(outputs[name], value, f"{where}, output '{name}'") for name, value in members.items()}


def _array(tensor: ModelTensor, value: Any, where: str) -> Array:
    shape: Shape | None = None
    if isinstance(value, dict):
        shape = read_shape(value.get("shape"), where)
        value = value.get("content", value)
    if isinstance(value, dict) and isinstance(value.get("b64"), str):
        return array_of_raw(tensor, decoded(value["b64"], where), shape, where)
    if not isinstance(value, list):
        raise InputError(
            f'{where}: expected a flat list of values, {{"b64": "..."}} or {{"content": [...], "shape": [...]}}, '
            f"got {kind_of(value)}"
        )
    if value and isinstance(value[0], list):
        raise InputError(f"{where}: expected a flat list in row-major order, got nested lists")
    return array_of_values(tensor, value, shape, where)


def _timestamp(step: Mapping[str, Any], where: str) -> float | None:
    value = step.get("timestamp")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is not None and (type(value) not in (int, float) or not 0 <= value < float("inf")):
        raise InputError(f"{where}: expected milliseconds from the start as 'timestamp', got {value!r}")
    return value

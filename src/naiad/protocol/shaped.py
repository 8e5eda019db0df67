"""Responses whose JSON has the shape of the tensors: nested lists by output, or one prediction for each row."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from naiad.core.datatype import DataType
from naiad.core.response import InferResponse
from naiad.core.slices import SLICE_BYTES, Slices
from naiad.core.tensor import Buffer, TensorSpec, to_array
from naiad.protocol.json.tensor import encode_data

NESTED = "nested"
"""Each output as its shape: the answer to nested lists."""
PREDICTIONS = "predictions"
"""One prediction for each row: the answer to rows."""
_GROUP_ROWS = 256


def nested_outputs(response: InferResponse, *, nan_is_null: bool) -> Slices[dict[str, list[bytes]]]:
    """Return the JSON of each output, nested as its shape, in parts. Raises InferError as `encode_data`."""
    members: dict[str, list[bytes]] = {}
    for spec, data in zip(response.header.outputs, response.data, strict=True):
        rows = _Rows(spec, data)
        if not spec.shape:
            members[spec.name] = [_written(rows.read(0, 1)[0], nan_is_null)]
            continue
        members[spec.name] = yield from _list_of(rows.chunks(), nan_is_null)
    return members


def predictions(response: InferResponse, *, nan_is_null: bool) -> Slices[dict[str, list[bytes]]]:
    """Return one prediction for each row: the value of the only output, or an object of all outputs.

    Outputs without a common number of rows are nested by name instead.
    """
    outputs = response.header.outputs
    counts = {spec.shape[0] if spec.shape else -1 for spec in outputs}
    if len(counts) != 1 or -1 in counts:
        return (yield from nested_outputs(response, nan_is_null=nan_is_null))
    rows = [_Rows(spec, data) for spec, data in zip(outputs, response.data, strict=True)]
    names = [spec.name for spec in outputs]
    chunks = _joined([each.values() for each in rows], names)
    return {PREDICTIONS: (yield from _list_of(chunks, nan_is_null))}


def _joined(columns: Sequence[Iterator[Any]], names: Sequence[str]) -> Iterator[list[Any]]:
    """Yield groups of predictions."""
    group: list[Any] = []
    size = 0
    for values in zip(*columns, strict=True):
        group.append(values[0] if len(names) == 1 else dict(zip(names, values, strict=True)))
        size += 1
        if size == _GROUP_ROWS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _list_of(chunks: Iterator[list[Any]], nan_is_null: bool) -> Slices[list[bytes]]:
    parts = [b"["]
    for chunk in chunks:
        parts += [_written(chunk, nan_is_null)[1:-1], b","]
        yield
    if len(parts) > 1:
        parts.pop()
    return [*parts, b"]"]


def _written(values: Any, nan_is_null: bool) -> bytes:
    text = orjson.dumps(values)
    # orjson writes null for numbers that are not finite; Triton writes them bare.
    if nan_is_null or b"null" not in text:
        return text
    return json.dumps(values, separators=(",", ":")).encode()


class _Rows:
    """The rows of an output as Python values."""

    def __init__(self, spec: TensorSpec, data: Buffer) -> None:
        if spec.datatype in (DataType.FP16, DataType.BF16) or spec.datatype is DataType.BYTES:
            encode_data(spec, data)  # raises the error for what JSON cannot carry
        array = to_array(spec, data)
        self._array = array if array.ndim else array[np.newaxis]
        self._is_text = spec.datatype is DataType.BYTES
        row_bytes = max(1, len(data) // max(1, len(self._array)))
        self._step = max(1, SLICE_BYTES // (4 * row_bytes))

    def read(self, begin: int, end: int) -> list[Any]:
        """Return some rows."""
        part = self._array[begin:end]
        if self._is_text:
            part = np.array([each.decode() for each in part.flat], np.object_).reshape(part.shape)
        elif part.dtype.kind == "f":
            part = part.astype(np.float64)
        values: list[Any] = part.tolist()
        return values

    def chunks(self) -> Iterator[list[Any]]:
        """Yield all rows in groups."""
        for begin in range(0, len(self._array), self._step):
            yield self.read(begin, begin + self._step)

    def values(self) -> Iterator[Any]:
        """Yield all rows; one of a single element is its value."""
        is_single = self._array[:1].size == 1
        for chunk in self.chunks():
            for row in chunk:
                value = row
                while is_single and isinstance(value, list):
                    value = value[0]
                yield value


def members_of(response: InferResponse, form: str, *, nan_is_null: bool) -> Slices[Mapping[str, list[bytes]]]:
    """Return the members for the outputs of a response, by the form of its request."""
    if form == PREDICTIONS:
        return (yield from predictions(response, nan_is_null=nan_is_null))
    return (yield from nested_outputs(response, nan_is_null=nan_is_null))

"""Columns of a file to tensors: whole columns at once, row by row only where a row does not fit.

Nothing here reads files. Rows that do not fit get a reason; all other rows are grouped by the shapes of their
tensors.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.tensor import Array, Shape
from naiad.protocol.pictures import PictureReader
from naiad.tools.predict.rows.chunk import ABSENT, Chunk, Column, FileRows, Group
from naiad.tools.predict.rows.outage import is_outage
from naiad.tools.predict.rows.picture_files import PictureFiles
from naiad.tools.predict.stores.object_path import FolderPath
from naiad.tools.values.conversion import array_of_array, array_of_raw, array_of_values, strings
from naiad.tools.values.json_values import decoded, kind_of, read_shape
from naiad.tools.values.tensor import InputError, ModelTensor


@dataclass(slots=True)
class _Converted:
    """An input of all rows: one array, or an array for each row; None for a row without it."""

    whole: Array | None
    rows: Sequence[Array | None] = ()

    def shape(self, offset: int) -> Shape | None:
        if self.whole is not None:
            return tuple(self.whole.shape[1:])
        row = self.rows[offset]
        return None if row is None else row.shape

    def of(self, offsets: Sequence[int]) -> Array:
        if self.whole is not None:
            return self.whole if len(offsets) == len(self.whole) else self.whole[np.asarray(offsets)]
        return np.stack([row for offset in offsets if (row := self.rows[offset]) is not None])


def to_chunk(
    rows: FileRows,
    inputs: Mapping[str, ModelTensor],
    pictures: PictureReader | None = None,
    folder: FolderPath = Path(),
) -> Chunk:
    """Return rows as tensors; names of picture files are relative to `folder`."""
    failures = dict(rows.failures)
    converted: dict[str, _Converted] = {}
    for name, column in rows.columns.items():
        if pictures is not None and pictures.name == name and not isinstance(column, np.ndarray):
            converted[name] = _of_pictures(inputs[name], column, failures, pictures, PictureFiles(folder))
        else:
            converted[name] = _convert(inputs[name], column, rows.count, failures, name)
    groups = _group(converted, rows.count, failures)
    return Chunk(rows.file, rows.first, rows.count, rows.keys, groups, failures, files_are_rows=rows.files_are_rows)


def _group(converted: Mapping[str, _Converted], count: int, failures: Mapping[int, str]) -> list[Group]:
    if not failures and all(each.whole is not None for each in converted.values()):
        offsets: Sequence[int] = range(count)
        return [Group(offsets, {name: each.of(offsets) for name, each in converted.items()})]
    members: dict[tuple[Shape | None, ...], list[int]] = {}
    for offset in range(count):
        if offset not in failures:
            members.setdefault(tuple([each.shape(offset) for each in converted.values()]), []).append(offset)
    return [
        Group(
            offsets,
            {
                name: each.of(offsets)
                for (name, each), shape in zip(converted.items(), shapes, strict=True)
                if shape is not None
            },
        )
        for shapes, offsets in members.items()
    ]


def _convert(tensor: ModelTensor, column: Column, count: int, failures: dict[int, str], name: str) -> _Converted:
    if isinstance(column, np.ndarray):
        return _of_array(tensor, column, failures, f"input '{name}'")
    return _of_values(tensor, column, count, failures, f"input '{name}'")


def _of_pictures(
    tensor: ModelTensor, column: Sequence[Any], failures: dict[int, str], pictures: PictureReader, files: PictureFiles
) -> _Converted:
    """Return pictures as tensors: text is the name of a file, bytes are its content, lists are the tensor itself."""
    where = f"input '{tensor.name}'"
    rows: list[Array | None] = []
    for offset, value in enumerate(column):
        rows.append(None)
        if offset in failures:
            continue
        if value is ABSENT or value is None or value == "":
            failures[offset] = _missing(tensor, where)
            continue
        try:
            if isinstance(value, list):
                rows[offset] = _of_row(tensor, value, where)
            else:
                rows[offset] = pictures.row({"path": value} if isinstance(value, str) else value, files.read)
        except (InputError, InferError) as error:
            if isinstance(error, InferError) and is_outage(error):
                raise  # an object store, which says nothing about the row
            failures[offset] = f"{where}: {error.message}" if isinstance(error, InferError) else str(error)
    return _Converted(None, rows)


def _of_array(tensor: ModelTensor, column: Array, failures: dict[int, str], where: str) -> _Converted:
    if column.dtype == tensor.datatype.numpy and tensor.datatype is not DataType.BYTES:
        return _Converted(column)
    try:
        return _Converted(array_of_array(_block(tensor, len(column)), column, where))
    except InputError:
        rows: list[Array | None] = []
        for offset, row in enumerate(column):
            rows.append(None)
            try:
                rows[offset] = array_of_array(tensor, np.asarray(row), where)
            except InputError as error:
                failures.setdefault(offset, str(error))
        return _Converted(None, rows)


def _of_values(
    tensor: ModelTensor, column: Sequence[Any], count: int, failures: dict[int, str], where: str
) -> _Converted:
    by_shape: dict[object, list[int]] = {}
    for offset, value in enumerate(column):
        if offset in failures:
            continue
        if value is ABSENT or (value is None and not tensor.null_is_nan):
            if not tensor.is_optional:
                failures[offset] = _missing(tensor, where)
            continue
        by_shape.setdefault(_shape_of(value), []).append(offset)
    rows: list[Array | None] = [None] * count
    for shape, offsets in by_shape.items():
        block = _of_equal(tensor, shape, [column[offset] for offset in offsets], where)
        if block is not None and len(offsets) == count:
            return _Converted(block)
        for index, offset in enumerate(offsets):
            try:
                rows[offset] = block[index] if block is not None else _of_row(tensor, column[offset], where)
            except InputError as error:
                failures[offset] = str(error)
    return _Converted(None, rows)


def _missing(tensor: ModelTensor, where: str) -> str:
    return f"{where} is missing; expected {tensor.datatype.value} of shape {list(tensor.dims)}"


def _shape_of(value: Any) -> object:
    """Return the shape of nested lists as their first elements have it; None for an object."""
    if type(value) is not list:
        return None if type(value) is dict else ()
    shape = [len(value)]
    while value and type(value[0]) is list:
        value = value[0]
        shape.append(len(value))
    return tuple(shape)


def _of_equal(tensor: ModelTensor, shape: object, values: Sequence[Any], where: str) -> Array | None:
    """Return rows of one shape as one array; None if they need a look row by row."""
    if not isinstance(shape, tuple):
        return None
    try:
        flat = _flattened(values, shape)
        target = _target(tensor, shape, where)
        return _array(_block(tensor, len(values)), flat, (len(values), *target), where)
    except InputError:
        return None


def _of_row(tensor: ModelTensor, value: Any, where: str) -> Array:
    stated: Shape | None = None
    if type(value) is dict:
        stated = read_shape(value.get("shape"), where)
        value = value.get("content", value)
    if type(value) is dict:
        return _of_base64(tensor, value, stated, where)
    if type(value) is bytes and tensor.datatype is not DataType.BYTES:
        return array_of_raw(tensor, value, stated, where)
    shape = _shape_of(value)
    if not isinstance(shape, tuple):
        raise InputError(f"{where}: expected a value or a list, got {kind_of(value)}")
    flat = _flattened([value], shape)
    return _array(tensor, flat, _target(tensor, shape, where) if stated is None else stated, where)


def _of_base64(tensor: ModelTensor, value: Mapping[str, Any], shape: Shape | None, where: str) -> Array:
    """Return the one string, or the raw little-endian values, of an object with `b64`."""
    if not isinstance(value.get("b64"), str):
        raise InputError(f'{where}: expected a value, a list or {{"b64": "..."}}, got {kind_of(value)}')
    content = decoded(value["b64"], where)
    if tensor.datatype is DataType.BYTES:
        return strings([content]).reshape(tensor.shape_of(1, shape, where))
    return array_of_raw(tensor, content, shape, where)


def _flattened(values: Sequence[Any], shape: Shape) -> Sequence[Any]:
    """Return the elements of nested lists. Raises InputError unless all have the shape."""
    flat = values
    for size in shape:
        if any(type(each) is not list or len(each) != size for each in flat):
            raise InputError(f"the lists are nested unequally; expected shape {list(shape)} as their first elements")
        flat = list(chain.from_iterable(flat))
    return flat


def _target(tensor: ModelTensor, shape: Shape, where: str) -> Shape:
    """Return the shape of a row: that of its nested lists, or the tensor's for a flat list or a value."""
    if len(shape) == len(tensor.dims):
        tensor.check(shape, where)
        return shape
    if len(shape) > 1:
        tensor.check(shape, where)
    return tensor.shape_of(shape[0] if shape else 1, None, where)


def _array(tensor: ModelTensor, flat: Sequence[Any], shape: Shape, where: str) -> Array:
    if tensor.datatype is not DataType.BYTES:
        return array_of_values(tensor, flat, shape, where)
    elements = strings([_bytes(each, where) for each in flat])
    return elements.reshape(tensor.shape_of(len(flat), shape, where))


def _bytes(value: Any, where: str) -> bytes:
    if type(value) is str:
        return value.encode("utf-8", "surrogatepass")
    if type(value) is bytes:
        return value
    if type(value) is dict and isinstance(value.get("b64"), str):
        return decoded(value["b64"], where)
    raise InputError(f"{where}: expected a string, got {kind_of(value)}")


def _block(tensor: ModelTensor, count: int) -> ModelTensor:
    """Return a tensor with rows along its first axis."""
    return replace(tensor, dims=(count, *tensor.dims))


def names_of(tensors: Iterable[str]) -> str:
    """Return names for error messages."""
    return ", ".join(f"'{name}'" for name in tensors) or "none"

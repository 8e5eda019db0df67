"""Rows in JSON, as data frames, MLflow and Vertex AI write them, to the tensors of a model.

A request is a list of rows, or has it under one name: `instances` (Vertex AI), `records`, `dataframe_records`,
`dataframe_split`, `inputs` (MLflow). A row is a record, an object with a value for each input or for each feature
that the model was trained on, or the value of the only input.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from naiad.config.tensors.features import Features
from naiad.core.errors import InferError, excerpt, invalid_argument, wrong_request
from naiad.core.slices import Slices
from naiad.core.tensor import Buffer, Shape, TensorSpec
from naiad.protocol.json.tensor import decode_data, nested_shape
from naiad.protocol.json.tree import NOT_AN_OBJECT, Members, parse_document, shown
from naiad.protocol.pictures import PictureReader

MAX_BYTES = 4 << 20
"""Limit of a request in this form, which is parsed at once."""
_NAMES = ("instances", "records", "dataframe_records", "dataframe_split", "inputs")
_SPLIT = "dataframe_split"
_HEAD_BYTES = 64 * 1024
_ROWS = re.compile(
    rb'\s*\[|\s*\{(?s:.*?)"(?:instances|records|dataframe_records|dataframe_split|inputs)"\s*:\s*[\[{]'
)
_TENSORS = re.compile(rb'\[\s*(?:\]|\{[^{}]*?"(?:datatype|name|shape|data|parameters)"\s*:)')
_SLICE_ROWS = 1024
_MOST_NAMES = 8
_SYNTAX = "send a list of records, [{...}, {...}], or of rows"


@dataclass(frozen=True, slots=True)
class RowTable:
    """The rows of a request, and what stands beside them."""

    rows: Sequence[Any]
    members: Members = ()
    names: Sequence[str] = ()
    """Of the values of rows that are lists, if the request has them."""


def has_rows(body: Buffer, inputs: Mapping[str, object]) -> bool:
    """Return whether a request consists of rows; a member with the name of an input is that input."""
    found = _ROWS.match(bytes(memoryview(body)[:_HEAD_BYTES]))
    if found is None:
        return False
    return not any(name in inputs and f'"{name}"'.encode() in found[0] for name in _NAMES)


def looks_like_rows(body: Buffer) -> bool:
    """Return whether a request that may also have the tensors of an inference consists of rows."""
    head = bytes(memoryview(body)[:_HEAD_BYTES])
    found = _ROWS.match(head)
    if found is None or not found[0].rstrip().endswith((b"[", b"{")):
        return False
    # The tensors of an inference are also called inputs: a list of objects with names and data.
    return b'"inputs"' not in found[0] or _TENSORS.match(head, found.end() - 1) is None


def read_table(body: Buffer, max_bytes: int = MAX_BYTES) -> RowTable:
    """Return the rows of a request. Raises InferError for invalid JSON and other forms."""
    if len(body) > max_bytes:
        raise invalid_argument(
            f"a request of rows has at most {max_bytes} bytes, got {len(body)}: send fewer rows at a time, or one "
            "array for each input"
        )
    tree = _parsed(body)
    if isinstance(tree, list):
        return _table("the request", tree, ())
    name = next(name for name in _NAMES if name in tree)
    others = tuple((each, _members(value)) for each, value in tree.items() if each != name)
    if name == _SPLIT:
        return _split(tree[name], others)
    return _table(name, tree[name], others)


def read_members(body: Buffer) -> Members:
    """Return the members of a request that is parsed at once. Raises InferError for invalid JSON and other forms."""
    tree = _parsed(body)
    if not isinstance(tree, dict):
        raise wrong_request(NOT_AN_OBJECT)
    return tuple((name, _members(value)) for name, value in tree.items())


def _parsed(body: Buffer) -> Any:
    try:
        return orjson.loads(body)
    except ValueError:
        return parse_document(body)  # NaN, or the error with its place


def _members(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, dict) else value


def _table(name: str, value: Any, members: Members) -> RowTable:
    if isinstance(value, dict):
        columns = list(value)
        if not all(isinstance(column, list) for column in value.values()):
            return RowTable([value], members)  # one record
        if len({len(column) for column in value.values()}) > 1:
            sizes = ", ".join(f"'{excerpt(each)}': {len(value[each])}" for each in columns[:_MOST_NAMES])
            raise invalid_argument(
                f"'{name}': the columns have different lengths ({sizes}); send one value for each row"
            )
        return RowTable([dict(zip(columns, row, strict=True)) for row in zip(*value.values(), strict=True)], members)
    if not value:
        raise invalid_argument(f"'{name}' has no rows: {_SYNTAX}")
    return RowTable(value, members)


def _split(value: Any, members: Members) -> RowTable:
    columns = value.get("columns") if isinstance(value, dict) else None
    rows = value.get("data") if isinstance(value, dict) else None
    if not isinstance(columns, list) or not isinstance(rows, list):
        raise invalid_argument(
            f"'{_SPLIT}': got {shown(value)}, expected an object with 'columns', a list of names, and 'data', a list "
            "of rows, as DataFrame.to_dict(orient='split') returns it"
        )
    names = [str(each) for each in columns]
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(names):
            raise invalid_argument(
                f"'{_SPLIT}': row {number} is {shown(row)}, expected a list of {len(names)} values, one for each "
                "column"
            )
    if not rows:
        raise invalid_argument(f"'{_SPLIT}' has no rows: {_SYNTAX}")
    return RowTable(rows, members, names)


class RowsReader:
    """Makes the tensors of a model from rows."""

    def __init__(
        self,
        inputs: Mapping[str, TensorSpec],
        features: Features,
        optional: frozenset[str],
        *,
        nan_is_null: bool = False,
        pictures: PictureReader | None = None,
        picture_tensor: Callable[[Sequence[Any]], tuple[TensorSpec, Buffer]] | None = None,
    ) -> None:
        """`picture_tensor` makes the tensor of the input of `pictures`."""
        self._inputs = inputs
        self._features = features
        self._optional = optional
        self._nan_is_null = nan_is_null
        self._pictures = pictures
        self._picture_tensor = picture_tensor
        required = [spec for name, spec in inputs.items() if name not in optional]
        self._only = required[0] if len(required) == 1 else next(iter(inputs.values())) if len(inputs) == 1 else None

    def read(self, table: RowTable) -> Slices[list[tuple[TensorSpec, Buffer]]]:
        """Return the tensors of a request, in slices. Raises InferError with the number of a wrong row."""
        columns: dict[str, list[Any]] = {}
        rows = self._by_name(table)
        for start in range(0, len(rows), _SLICE_ROWS):
            for number, row in enumerate(rows[start : start + _SLICE_ROWS], start):
                for name, value in self._values(row, number):
                    columns.setdefault(name, []).append(value)
            yield
        tensors = []
        for name, values in columns.items():
            if len(values) != len(rows):
                raise invalid_argument(f"input '{excerpt(name)}' is in {len(values)} of {len(rows)} rows, not in all")
            tensors.append((yield from self._tensor(self._inputs[name], values)))
        return tensors

    def _by_name(self, table: RowTable) -> Sequence[Any]:
        """Return rows as records if the request has names for their values."""
        names = table.names
        if not names:
            return table.rows
        if self._only is not None and not self._features.names and self._only.name not in names:
            return table.rows  # The model does not know names: its columns have the order of the request.
        return [dict(zip(names, row, strict=True)) for row in table.rows]

    def _values(self, row: Any, number: int) -> Iterator[tuple[str, Any]]:
        """Return input and value for one row."""
        pictures = self._pictures
        if (
            pictures is not None
            and self._only is not None
            and pictures.name == self._only.name
            and pictures.takes(row)
        ):
            yield pictures.name, row
            return
        if not isinstance(row, dict):
            if self._only is None:
                raise invalid_argument(
                    f"row {number} is {shown(row)}; the model has the inputs {_listed(self._inputs)}: send an object "
                    "with a value for each"
                )
            yield self._only.name, self._null(row)
            return
        if self._only is not None and self._features.names and self._only.name not in row:
            yield self._only.name, self._features.record(row, f"row {number}")
            return
        missing = [name for name in self._inputs if name not in row and name not in self._optional]
        unknown = [name for name in row if name not in self._inputs]
        if missing or unknown:
            raise self._mismatch(number, row, missing or unknown, is_missing=bool(missing))
        for name, value in row.items():
            yield name, self._features.value(name, value, f"row {number}")

    def _null(self, value: Any) -> Any:
        if isinstance(value, list) and self._features.null_is_nan and None in value:
            return [self._features.value("", each, "") if each is None else each for each in value]
        return value

    def _mismatch(self, number: int, row: Mapping[str, Any], names: Sequence[str], *, is_missing: bool) -> InferError:
        what = f"no value for {_listed(names)}" if is_missing else f"{_listed(names)}, which is no input"
        hint = ""
        if self._only is not None and is_missing:
            hint = (
                "; this model does not know the names of its columns: send each row as a list in their order, or "
                "name them in the parameter feature_names of its configuration"
            )
        return invalid_argument(
            f"row {number} has {what}; it has {_listed(row)}, the model takes {_listed(self._inputs)}{hint}"
        )

    def _tensor(self, declared: TensorSpec, values: Sequence[Any]) -> Slices[tuple[TensorSpec, Buffer]]:
        pictures = self._pictures
        if (
            pictures is not None
            and self._picture_tensor is not None
            and pictures.name == declared.name
            and any(map(pictures.takes, values))
        ):
            return self._picture_tensor(values)
        shape = self._row_shape(declared, values, 0)
        given = nested_shape(values[0])
        parts: list[Buffer] = []
        for start in range(0, len(values), _SLICE_ROWS):
            part = values[start : start + _SLICE_ROWS]
            for number, value in enumerate(part, start):
                if nested_shape(value) != given:
                    self._row_shape(declared, values, number)
                    raise invalid_argument(
                        f"row {number} of input '{excerpt(declared.name)}' has shape {_shape_text(value)}, row 0 has "
                        f"{_shape_text(values[0])}: rows of one request have equal shapes"
                    )
            parts.append(self._decoded(TensorSpec(declared.name, declared.datatype, (1, *shape)), part, start))
            yield
        whole = shape if _is_one_row(declared) else (len(values), *shape)
        return TensorSpec(declared.name, declared.datatype, whole), b"".join(parts)

    def _decoded(self, row: TensorSpec, values: Sequence[Any], start: int) -> Buffer:
        spec = TensorSpec(row.name, row.datatype, (len(values), *row.shape[1:]))
        try:
            return decode_data(spec, list(values), nan_is_null=self._nan_is_null)
        except InferError as error:
            number = next((n for n, value in enumerate(values) if _is_wrong(row, value, self._nan_is_null)), 0)
            message = f"{error.message} (input '{excerpt(row.name)}', row {start + number})"
            raise error.with_message(message) from None

    def _row_shape(self, declared: TensorSpec, values: Sequence[Any], number: int) -> Shape:
        """Return the shape of a row's value. Raises InferError if the input does not take it."""
        dims = declared.shape
        if _is_one_row(declared):
            if len(values) > 1:
                raise invalid_argument(
                    f"the model takes one row at a time: input '{excerpt(declared.name)}' has the shape {list(dims)} "
                    f"without a batch dimension, got {len(values)} rows: send one row in a request, or export the "
                    "model with a first dimension of any size"
                )
        else:
            dims = dims[1:]
        found = fitted(nested_shape(values[number]), dims)
        if found is None:
            raise invalid_argument(
                f"row {number} of input '{excerpt(declared.name)}' has shape {_shape_text(values[number])}, expected "
                f"{list(dims)}; -1 is any size"
            )
        return found


def _is_one_row(declared: TensorSpec) -> bool:
    return not declared.shape or declared.shape[0] >= 0


def _is_wrong(row: TensorSpec, value: Any, nan_is_null: bool) -> bool:
    try:
        decode_data(row, [value], nan_is_null=nan_is_null)
    except InferError:
        return True
    return False


def fitted(shape: Shape | None, dims: Shape) -> Shape | None:
    """Return the shape of a tensor of `dims` with values of `shape`; None if they do not fit.

    A single value and a flat list also fill dimensions of the size 1.
    """
    if shape is None:
        return None
    if _fits(shape, dims):
        return shape
    wide = [dim for dim in dims if dim != 1]
    if len(shape) > 1 or len(wide) > 1:
        return None
    count = shape[0] if shape else 1
    if not wide:
        return dims if count == 1 else None
    return tuple(count if dim != 1 else 1 for dim in dims) if wide[0] in (-1, count) else None


def fits_declared(shape: Shape, declared: Shape) -> Shape | None:
    """Return the shape of a tensor from nested lists, which may lack a free first dimension; None if it is wrong."""
    if _fits(shape, declared):
        return shape
    if declared and declared[0] < 0 and _fits(shape, declared[1:]):
        return (1, *shape)
    return None


def _fits(shape: Shape, dims: Shape) -> bool:
    return len(shape) == len(dims) and all(want in (-1, got) for want, got in zip(dims, shape, strict=True))


def _shape_text(value: Any) -> str:
    shape = nested_shape(value)
    return "that is irregular" if shape is None else str(list(shape))


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    listed = list(names)
    more = ", ..." if len(listed) > _MOST_NAMES else ""
    return ", ".join(f"'{excerpt(str(name))}'" for name in listed[:_MOST_NAMES]) + more if listed else "none"

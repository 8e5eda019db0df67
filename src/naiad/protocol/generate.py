"""The generate extension: flat JSON objects to requests and back, by the names of the model's tensors.

A member with the name of an input is that tensor's data; every other member is a parameter. The members of the object
`parameters` are read in the same way. A response is an object of its outputs and parameters; a tensor with one
element becomes a scalar.

Two other forms have a shape: nested lists, answered with nested lists (`shaped`), and rows (`rows`).
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import simdjson

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.tensors.features import Features, read_features
from naiad.config.tensors.pictures import read_pictures
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.errors import InferError, excerpt, invalid_argument, wrong_request
from naiad.core.limits.request_limits import check_name, check_parameters
from naiad.core.parameters import ParameterValue
from naiad.core.request import RequestHeader
from naiad.core.response import InferResponse
from naiad.core.slices import Slices
from naiad.core.tensor import Buffer, Shape, TensorSpec
from naiad.protocol.json.document import SHORT_BYTES, LongArray, LongString, read_document
from naiad.protocol.json.infer.header import nan_means_null
from naiad.protocol.json.infer.long_data import (
    append_long_string,
    decode_long_array,
    decode_long_string,
    shape_of_text,
)
from naiad.protocol.json.response import LONG_BYTES
from naiad.protocol.json.tensor import NAN_PARAMETER, decode_data, encode_data, encode_long_data, nested_shape
from naiad.protocol.json.tree import NOT_AN_OBJECT, Members, as_string, parse_members, shown
from naiad.protocol.pictures import PictureReader, ReadFile, no_files
from naiad.protocol.rows import MAX_BYTES, RowsReader, RowTable, fits_declared, has_rows, read_members, read_table
from naiad.protocol.shaped import NESTED, PREDICTIONS, members_of

_NESTED = "parameters"
_INT64 = range(-(1 << 63), 1 << 63)

Inputs = Mapping[str, TensorSpec]
"""Names and specifications of a model's inputs, the batch dimension (-1) included."""
_BEGINS_WITH_LIST = re.compile(rb"\s*\[\s*\[")


@dataclass(frozen=True, slots=True)
class RowColumns:
    """What the model says of rows."""

    features: Features = field(default_factory=Features)
    optional: frozenset[str] = frozenset()
    """Inputs that a row may lack."""
    pictures: PictureReader | None = None
    """Of the input that takes pictures; the owner of the model turns it on."""
    read_file: ReadFile = no_files
    """Reads the files that pictures name."""


NO_COLUMNS = RowColumns()


def columns_of(config: ModelConfig) -> RowColumns:
    """Return what a configuration says of rows. Raises InferError for wrong parameters."""
    return RowColumns(
        read_features(config), frozenset(each.name for each in config.input if each.optional), pictures_of(config)
    )


def pictures_of(config: ModelConfig) -> PictureReader | None:
    """Return what makes tensors of pictures; None for a model without such an input. Raises InferError."""
    pictures = read_pictures(config)
    spec = inputs_of(config).get(pictures.input) if pictures is not None else None
    return PictureReader(pictures, spec, config) if pictures is not None and spec is not None else None


def inputs_of(config: ModelConfig) -> Inputs:
    """Return the inputs of a model by their names."""
    batch = (-1,) if config.max_batch_size > 0 else ()
    return {t.name: TensorSpec(t.name, BY_CONFIG_NUMBER[t.data_type], (*batch, *t.dims)) for t in config.input}


def decode_generate(
    model_name: str,
    model_version: str,
    body: Buffer,
    inputs: Inputs,
    max_input_bytes: int,
    columns: RowColumns = NO_COLUMNS,
) -> Slices[tuple[RequestHeader, str, list[Buffer]]]:
    """Return header, request id and one buffer per input, in slices.

    `max_input_bytes` bounds the tensors together: JSON of small numbers may grow when it becomes tensors. Raises
    InferError with Triton's codes and texts.
    """
    if not len(body):
        raise wrong_request(
            "failed to parse the request JSON buffer: The document is empty. at 0; got 0 bytes, expected one JSON "
            "object with a member for each input"
        )
    members: Members
    table: RowTable | None = None
    if has_rows(body, inputs):
        table = read_table(body, MAX_BYTES if columns.pictures is None else max_input_bytes)
        members = table.members
    elif columns.pictures is not None:
        members = read_members(body)
    elif len(body) > SHORT_BYTES:
        members = yield from _read_members(body)
    else:
        members = parse_members(body)
    # Triton: an id that is not a string fails first, before any other error of the request.
    request_id = next((as_string("id", value) for name, value in members if name == "id"), "")
    reading = _Reading(inputs, max_input_bytes, columns)
    if table is None:
        table = _single_record(members, inputs, columns)
    yield from reading.read(members if table is None else table.members)
    if table is not None:
        yield from reading.read_rows(table, columns)
    header = RequestHeader(
        model_name=model_name,
        model_version=model_version,
        inputs=reading.specs,
        parameters=reading.parameters,
        nan_is_null=reading.nan_is_null,
        json_form=reading.json_form,
    )
    return header, request_id, reading.data


def _single_record(members: Members, inputs: Inputs, columns: RowColumns) -> RowTable | None:
    """Return the row of a request that has a member for each feature in place of the only input; None for others."""
    names = columns.features.names
    if not names or any(name in inputs for name, _ in members):
        return None
    record = dict(members)
    if not all(name in record for name in names):
        return None
    others = tuple((name, value) for name, value in members if name not in names)
    return RowTable([{name: record[name] for name in names}], others)


class _Reading:
    """Accumulates the tensors and parameters of one request object."""

    def __init__(self, inputs: Inputs, max_input_bytes: int, columns: RowColumns = NO_COLUMNS) -> None:
        self._inputs = inputs
        self._columns = columns
        self._max_input_bytes = max_input_bytes
        self._input_bytes = 0
        self.specs: list[TensorSpec] = []
        self.data: list[Buffer] = []
        self.parameters: dict[str, ParameterValue] = {}
        self.nan_is_null = False
        self.json_form = ""

    def read_rows(self, table: RowTable, columns: RowColumns) -> Slices[None]:
        """Take the rows of the request."""
        reader = RowsReader(
            self._inputs,
            columns.features,
            columns.optional,
            nan_is_null=self.nan_is_null,
            pictures=columns.pictures,
            picture_tensor=self._picture_tensor,
        )
        for spec, data in (yield from reader.read(table)):
            self._count(spec.name, len(data))
            self.specs.append(spec)
            self.data.append(data)
        self.json_form = PREDICTIONS

    def read(self, members: Members) -> Slices[None]:
        """Take the members of the request."""
        self.nan_is_null = self._reads_null(members)
        for name, value in _first_values(members):
            if name == _NESTED:
                yield from self._read_nested(value)
            else:
                yield from self._read_member(name, value)

    def _reads_null(self, members: Members) -> bool:
        """Return whether the parameter `json_nan`, beside the inputs or nested, chooses null."""
        for name, value in members:
            if name == NAN_PARAMETER and name not in self._inputs:
                return nan_means_null(name, value)
            if name == _NESTED and type(value) is tuple and self._reads_null(value):
                return True
        return False

    def _read_nested(self, value: Any) -> Slices[None]:
        if _NESTED in self._inputs:
            raise invalid_argument(f"Keyword '{_NESTED}' for nested schema also given as input tensor name")
        if type(value) is not tuple:
            raise wrong_request(
                f"Expected JSON object for keyword: '{_NESTED}': attempt to access JSON non-object as object; got "
                f'{shown(value)}, expected an object, such as "{_NESTED}": {{"temperature": 0.5}}'
            )
        try:
            for name, nested_value in _first_values(value):
                yield from self._read_member(name, nested_value)
        except InferError as error:
            raise error.with_message(f"Converting keyword: '{_NESTED}': {error.message}") from None

    def _read_member(self, name: str, value: Any) -> Slices[None]:
        declared = self._inputs.get(name)
        if declared is None and name == NAN_PARAMETER:
            return
        if declared is None:
            check_name("a parameter", name)
            check_parameters(len(self.parameters) + 1)
            if isinstance(value, LongString):
                self._count(name, value.end - value.start)
                value = (yield from decode_long_string(value)).decode()
            self.parameters[name] = _parameter(name, value)
            return
        pictures = self._columns.pictures
        if pictures is not None and pictures.name == name and pictures.takes(value):
            spec, picture_data = self._picture_tensor(value if isinstance(value, list) else [value])
            self._count(name, len(picture_data))
            self.specs.append(spec)
            self.data.append(picture_data)
            return
        if isinstance(value, LongString):
            yield from self._read_long_string(declared, value)
            return
        if isinstance(value, LongArray):
            yield from self._read_long_array(declared, value)
            return
        elements = value if isinstance(value, (list, simdjson.Array)) else [value]
        spec = TensorSpec(name, declared.datatype, self._shape_of(declared, elements))
        # Checked before memory is allocated; the size of strings is known only afterwards.
        self._count(name, spec.byte_size)
        try:
            data = decode_data(spec, elements, nan_is_null=self.nan_is_null)
        except InferError as error:
            raise error.with_message(f"{error.message} (input '{excerpt(name)}')") from None
        if spec.datatype is DataType.BYTES:
            self._count(name, len(data))
        self.specs.append(spec)
        self.data.append(data)

    def _picture_tensor(self, values: Sequence[Any]) -> tuple[TensorSpec, Buffer]:
        assert self._columns.pictures is not None
        return self._columns.pictures.tensor(
            values, self._columns.read_file, self._max_input_bytes - self._input_bytes
        )

    def _shape_of(self, declared: TensorSpec, elements: Any) -> Shape:
        """Return the shape of an array: its own if it is nested."""
        if not len(elements) or not isinstance(elements[0], (list, simdjson.Array)):
            return _shape(declared, len(elements))
        listed = elements.as_list() if isinstance(elements, simdjson.Array) else elements
        return self._shape_of_nested(declared, nested_shape(listed), len(elements))

    def _shape_of_nested(self, declared: TensorSpec, found: Shape | None, count: int) -> Shape:
        if found is None:
            raise invalid_argument(
                f"input '{excerpt(declared.name)}': the lists are nested irregularly; expected the shape "
                f"{list(declared.shape)}, -1 is any size"
            )
        shape = fits_declared(found, declared.shape)
        if shape is not None:
            self.json_form = NESTED
            return shape
        if math.prod(found) == count:
            return _shape(declared, count)  # Triton: the nesting of as many elements has no meaning.
        raise invalid_argument(
            f"input '{excerpt(declared.name)}' has the shape {list(found)}, expected {list(declared.shape)}; -1 is "
            "any size"
        )

    def _read_long_string(self, declared: TensorSpec, value: LongString) -> Slices[None]:
        spec = TensorSpec(declared.name, declared.datatype, _shape(declared, 1))
        if spec.datatype is not DataType.BYTES:
            decode_data(spec, [""])  # raises the error for an invalid string
        self._count(spec.name, value.end - value.start)
        data = bytearray(4)
        yield from append_long_string(data, value)
        data[:4] = (len(data) - 4).to_bytes(4, "little")
        self.specs.append(spec)
        self.data.append(memoryview(data))

    def _read_long_array(self, declared: TensorSpec, value: LongArray) -> Slices[None]:
        if _BEGINS_WITH_LIST.match(value.document, value.pieces[0][0]):
            shape = self._shape_of_nested(declared, (yield from shape_of_text(value)), value.length)
        else:
            shape = _shape(declared, value.length)
        spec = TensorSpec(declared.name, declared.datatype, shape)
        self._count(spec.name, spec.byte_size)
        data = yield from decode_long_array(spec, value, nan_is_null=self.nan_is_null)
        if spec.datatype is DataType.BYTES:
            self._count(spec.name, len(data))
        self.specs.append(spec)
        self.data.append(data)

    def _count(self, name: str, size: int) -> None:
        before = self._input_bytes
        self._input_bytes += size
        if self._input_bytes > self._max_input_bytes:
            raise invalid_argument(
                f"request size of {before} bytes with input '{excerpt(name)}' of size {size} bytes exceeds the "
                "maximum "
                f"allowed input size of {self._max_input_bytes}. Use --http-max-input-size to increase the limit."
            )


def _read_members(body: Buffer) -> Slices[Members]:
    """Return the members of a long request."""
    members = yield from read_document(body)
    if type(members) is not tuple:
        raise wrong_request(NOT_AN_OBJECT)
    return members


def _first_values(members: Members) -> Members:
    """Return the members as a mapping; Triton: a repeated member has its first value both times."""
    first = dict(reversed(members))
    return members if len(first) == len(members) else tuple((name, first[name]) for name, _ in members)


def _parameter(name: str, value: Any) -> ParameterValue:
    kind = type(value)
    if kind in (str, bool, float) or (kind is int and value in _INT64):
        accepted: ParameterValue = value
        return accepted
    if kind is int:
        # Triton: integers beyond 64 bits become doubles.
        try:
            return float(value)
        except OverflowError:
            raise invalid_argument(
                f"parameter '{excerpt(name)}' is too large: not even a double can hold it"
            ) from None
    raise invalid_argument(
        f"parameter '{excerpt(name)}' has invalid type. It should be either 'int', 'bool', or 'string'."
    )


def _shape(declared: TensorSpec, count: int) -> Shape:
    """Distribute `count` elements over the declared dimensions.

    Fixed dimensions keep their size, the innermost free dimension takes the rest, other free dimensions are 1.
    """
    left = count
    for dim in declared.shape:
        if dim >= 0:
            if not dim or left % dim:
                raise _no_shape(declared, count)
            left //= dim
    shape = list(declared.shape)
    for position in reversed(range(len(shape))):
        if shape[position] < 0:
            shape[position], left = left, 1
    if left != 1:
        raise _no_shape(declared, count)
    return tuple(shape)


def _no_shape(declared: TensorSpec, count: int) -> InferError:
    return invalid_argument(
        f"The schema can not convert input '{excerpt(declared.name)}' to tensor with proper shape; got {count} "
        f"elements, expected as many as a shape {list(declared.shape)} has: correct the array, -1 is any size"
    )


def encode_generate(
    request_id: str, response: InferResponse, *, nan_is_null: bool = False, json_form: str = ""
) -> Slices[Sequence[bytes]]:
    """Return a response as one line of JSON, its members sorted by name, in slices.

    The text of long outputs stays in parts, because joining 60 MB takes longer than a slice may.

    The id, the model's name and version take precedence over parameters of these names, and parameters over outputs.
    Raises InferError when an output cannot be written as JSON.
    """
    header = response.header
    members: dict[str, bytes] = {}
    long: dict[str, list[bytes]] = {}
    if json_form:
        long.update((yield from members_of(response, json_form, nan_is_null=nan_is_null)))
        members.update(dict.fromkeys(long, b""))
    for spec, data in () if json_form else zip(header.outputs, response.data, strict=True):
        if len(data) > LONG_BYTES:
            parts = yield from encode_long_data(spec, data, nan_is_null=nan_is_null)
            long[spec.name] = parts[1:-1] if spec.element_count == 1 else parts
            members[spec.name] = b""
        else:
            text = encode_data(spec, data, nan_is_null=nan_is_null)
            members[spec.name] = text[1:-1] if spec.element_count == 1 else text
    for name, value in response.parameters.items():
        # Triton: NaN and the infinities are written bare; orjson writes null.
        is_bare = type(value) is float and not nan_is_null
        members[name] = json.dumps(value).encode() if is_bare else orjson.dumps(value)
    members["model_name"] = orjson.dumps(header.model_name)
    members["model_version"] = orjson.dumps(header.model_version)
    if request_id:
        members["id"] = orjson.dumps(request_id)
    if not long:
        return (b"{%s}" % b",".join([b"%s:%s" % (orjson.dumps(name), members[name]) for name in sorted(members)]),)
    return _in_parts(members, long)


def _in_parts(members: Mapping[str, bytes], long: Mapping[str, Sequence[bytes]]) -> list[bytes]:
    """Return the parts of an object; an empty value stands for the long member of that name in `long`."""
    parts: list[bytes] = []
    for name in sorted(members):
        parts.append(b"%s%s:" % (b"," if parts else b"{", orjson.dumps(name)))
        if members[name]:
            parts.append(members[name])
        else:
            parts += long[name]
    return [*parts, b"}"]

"""Replaces ZipMap nodes of ONNX models, so that classifiers of scikit-learn are served as they are exported.

`skl2onnx.to_onnx` ends a classifier with a node ZipMap; it outputs a dictionary (class to probability)
per row. No protocol has such a type. The node becomes an Identity: the output of the same name is then the matrix
of probabilities, FP32 `[rows, classes]`, and the classes are the labels of its columns.

Edits the serialized model; the field numbers come from onnx.proto3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from naiad.backend.onnx.protobuf_fields import Field, bytes_field, read_fields, read_varint, varint_field

_MODEL_GRAPH, _MODEL_OPSET = 7, 8
_OPSET_DOMAIN = 1
_GRAPH_NODE, _GRAPH_OUTPUT, _GRAPH_VALUE_INFO = 1, 12, 13
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_ATTRIBUTE = 1, 2, 3, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_INTS, _ATTRIBUTE_STRINGS = 1, 8, 9
_VALUE_NAME = 1
_FLOAT = 1
_IDENTITY_OPSET = bytes_field(_MODEL_OPSET, bytes_field(1, b"") + varint_field(2, 9))


@dataclass(frozen=True, slots=True)
class PlainModel:
    """A model whose outputs are tensors instead of dictionaries."""

    data: bytes
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Output name to the classes of its columns."""


@dataclass(frozen=True, slots=True)
class _ZipMap:
    source: bytes
    output: bytes
    name: bytes
    labels: Sequence[str]


def replace_zip_maps(model: bytes) -> PlainModel:
    """Return the model with an Identity in place of each ZipMap. Raises ValueError if `model` is not protobuf."""
    zip_maps: dict[bytes, _ZipMap] = {}
    parts: list[bytes] = []
    has_default_domain = False
    for each in read_fields(model):
        if each.number == _MODEL_GRAPH:
            zip_maps |= _find_zip_maps(model, each)
            parts.append(bytes_field(_MODEL_GRAPH, _without_zip_maps(model, each, zip_maps)))
        else:
            parts.append(model[each.start : each.end])
        if each.number == _MODEL_OPSET:
            has_default_domain |= not any(_texts(model, each, _OPSET_DOMAIN))
    if not has_default_domain:
        # The operators of scikit-learn are in the domain ai.onnx.ml, Identity is in the default one.
        parts.append(_IDENTITY_OPSET)
    return PlainModel(b"".join(parts), {each.output.decode(): each.labels for each in zip_maps.values()})


def _find_zip_maps(model: bytes, graph: Field) -> dict[bytes, _ZipMap]:
    """Return the ZipMap nodes by their output."""
    nodes = (each for each in read_fields(model, graph.value_start, graph.end) if each.number == _GRAPH_NODE)
    found = [_read_zip_map(model, node) for node in nodes if _texts(model, node, _NODE_OPERATOR) == [b"ZipMap"]]
    return {each.output: each for each in found}


def _read_zip_map(model: bytes, node: Field) -> _ZipMap:
    labels: list[str] = []
    for attribute in read_fields(model, node.value_start, node.end):
        if attribute.number == _NODE_ATTRIBUTE:
            name = b"".join(_texts(model, attribute, _ATTRIBUTE_NAME))
            if name == b"classlabels_int64s":
                labels += map(str, _integers(model, attribute, _ATTRIBUTE_INTS))
            elif name == b"classlabels_strings":
                labels += [text.decode(errors="replace") for text in _texts(model, attribute, _ATTRIBUTE_STRINGS)]
    names = (_texts(model, node, number) for number in (_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME))
    source, output, name = (b"".join(texts) for texts in names)
    return _ZipMap(source, output, name, labels)


def _without_zip_maps(model: bytes, graph: Field, zip_maps: Mapping[bytes, _ZipMap]) -> bytes:
    parts: list[bytes] = []
    for each in read_fields(model, graph.value_start, graph.end):
        if each.number == _GRAPH_NODE and _texts(model, each, _NODE_OPERATOR) == [b"ZipMap"]:
            parts.append(bytes_field(_GRAPH_NODE, _identity(zip_maps[_texts(model, each, _NODE_OUTPUT)[0]])))
            continue
        zip_map = None
        if each.number in (_GRAPH_OUTPUT, _GRAPH_VALUE_INFO):
            zip_map = zip_maps.get(b"".join(_texts(model, each, _VALUE_NAME)))
        parts.append(model[each.start : each.end] if zip_map is None else bytes_field(each.number, _matrix(zip_map)))
    return b"".join(parts)


def _identity(zip_map: _ZipMap) -> bytes:
    names = bytes_field(_NODE_INPUT, zip_map.source) + bytes_field(_NODE_OUTPUT, zip_map.output)
    return names + bytes_field(_NODE_NAME, zip_map.name) + bytes_field(_NODE_OPERATOR, b"Identity")


def _matrix(zip_map: _ZipMap) -> bytes:
    """Return the ValueInfoProto of a FP32 tensor `[-1, classes]`."""
    rows, classes = bytes_field(1, b""), bytes_field(1, varint_field(1, len(zip_map.labels)))
    tensor = varint_field(1, _FLOAT) + bytes_field(2, rows + classes)
    return bytes_field(_VALUE_NAME, zip_map.output) + bytes_field(2, bytes_field(1, tensor))


def _texts(model: bytes, message: Field, number: int) -> list[bytes]:
    """Return the values of a field of bytes in a message."""
    fields = read_fields(model, message.value_start, message.end)
    return [model[each.value_start : each.end] for each in fields if each.number == number]


def _integers(model: bytes, message: Field, number: int) -> list[int]:
    """Return the values of a repeated int64 in a message, packed or not."""
    values: list[int] = []
    for each in read_fields(model, message.value_start, message.end):
        if each.number != number:
            continue
        position = each.value_start
        while position < each.end:
            value, position = read_varint(model, position, each.end)
            values.append(value)
    return [value - (1 << 64) if value >> 63 else value for value in values]

"""The signature of an OpenVINO model."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.core.datatype import DataType

DATATYPES: Mapping[str, DataType] = {
    "boolean": DataType.BOOL,
    "u8": DataType.UINT8,
    "u16": DataType.UINT16,
    "u32": DataType.UINT32,
    "u64": DataType.UINT64,
    "i8": DataType.INT8,
    "i16": DataType.INT16,
    "i32": DataType.INT32,
    "i64": DataType.INT64,
    "f16": DataType.FP16,
    "bf16": DataType.BF16,
    "f32": DataType.FP32,
    "f64": DataType.FP64,
    "string": DataType.BYTES,
}
"""Name of an element type in OpenVINO to datatype."""


def read_signature(model: Any, configured: Collection[str], *, has_fixed_rows: bool = False) -> ModelSignature:
    """Return the signature of an openvino.Model.

    A tensor may have several names; it is known by the one that is `configured`. With `has_fixed_rows` the first
    dimensions count as free, since the instance fills batches up.
    """
    return ModelSignature(
        "OpenVINO",
        inputs=_tensors(model.inputs, configured, has_fixed_rows=has_fixed_rows),
        outputs=_tensors(model.outputs, configured, has_fixed_rows=has_fixed_rows),
    )


def _tensors(
    ports: Sequence[Any], configured: Collection[str], *, has_fixed_rows: bool
) -> dict[str, TensorSignature]:
    tensors: dict[str, TensorSignature] = {}
    for port in ports:
        name = _name(port, configured)
        dims = _dims(port.partial_shape)
        if has_fixed_rows and dims:
            dims = (None, *dims[1:])
        type_name = port.element_type.get_type_name()
        tensors[name] = TensorSignature(name, DATATYPES.get(type_name), dims, type_name)
    return tensors


def _name(port: Any, configured: Collection[str]) -> str:
    names: set[str] = port.names
    known = sorted(names.intersection(configured))
    if known:
        return known[0]
    # A Result is known by the operator that it is the result of.
    source = port.node.input_value(0).node if port.node.type_info.name == "Result" else port.node
    return str(port.any_name if names else source.friendly_name)


def _dims(shape: Any) -> tuple[int | None, ...] | None:
    if shape.rank.is_dynamic:
        return None
    return tuple(dim.get_length() if dim.is_static else None for dim in shape)

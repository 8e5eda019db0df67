"""The signature of an ONNX model, as an InferenceSession reports it."""

from collections.abc import Mapping, Sequence
from typing import Any

from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.core.datatype import DataType

DATATYPES: Mapping[str, DataType] = {
    "tensor(bool)": DataType.BOOL,
    "tensor(uint8)": DataType.UINT8,
    "tensor(uint16)": DataType.UINT16,
    "tensor(uint32)": DataType.UINT32,
    "tensor(uint64)": DataType.UINT64,
    "tensor(int8)": DataType.INT8,
    "tensor(int16)": DataType.INT16,
    "tensor(int32)": DataType.INT32,
    "tensor(int64)": DataType.INT64,
    "tensor(float16)": DataType.FP16,
    "tensor(float)": DataType.FP32,
    "tensor(double)": DataType.FP64,
    "tensor(bfloat16)": DataType.BF16,
    "tensor(string)": DataType.BYTES,
}
"""Name of a type in ONNX Runtime to datatype."""


def read_signature(session: Any) -> ModelSignature:
    """Return the signature of the model of an InferenceSession; initializers with a name are optional inputs."""
    return ModelSignature(
        "ONNX",
        inputs=_tensors(session.get_inputs()),
        outputs=_tensors(session.get_outputs()),
        optional_inputs=_tensors(session.get_overridable_initializers()),
        may_lack_ranks=True,
    )


def _tensors(arguments: Sequence[Any]) -> dict[str, TensorSignature]:
    return {
        each.name: TensorSignature(each.name, DATATYPES.get(each.type), tuple(each.shape or ()), each.type)
        for each in arguments
    }

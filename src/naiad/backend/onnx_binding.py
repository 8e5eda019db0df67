"""Run a session with every tensor bound by address: also works for BF16, which ONNX Runtime has no arrays for."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from naiad.backend.onnx_signature import OnnxTensor
from naiad.backend.onnx_staging import ELEMENT_TYPES
from naiad.core.datatype import DataType, from_numpy
from naiad.core.tensor import Array


def run_bound(session: Any, inputs: Mapping[str, Array], outputs: Sequence[OnnxTensor]) -> list[Array]:
    """Return the outputs as arrays of their own. Raises what ONNX Runtime raises."""
    binding = session.io_binding()
    for name, array in inputs.items():
        datatype = from_numpy(array.dtype)
        if datatype is None or datatype is DataType.BYTES:
            binding.bind_cpu_input(name, array)
        else:
            binding.bind_input(name, "cpu", 0, ELEMENT_TYPES[datatype], array.shape, array.ctypes.data)
    for tensor in outputs:
        binding.bind_output(tensor.name, "cpu")
    session.run_with_iobinding(binding)
    return [_to_array(value) for value in binding.get_outputs()]


def _to_array(value: Any) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    dtype = DataType.BF16.numpy
    size = int(np.prod(shape)) * dtype.itemsize
    # The memory belongs to `value`, so it is copied before that goes.
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(data, dtype).reshape(shape)

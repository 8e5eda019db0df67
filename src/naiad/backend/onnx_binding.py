"""Run a session with tensors bound by address: BF16, which ONNX Runtime has no arrays for, and large outputs."""

import ctypes
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from naiad.backend.onnx_signature import OnnxTensor
from naiad.backend.onnx_staging import ELEMENT_TYPES
from naiad.core.datatype import DataType, from_numpy
from naiad.core.tensor import Array, TensorSpec

NO_DESTINATIONS: Mapping[str, memoryview] = MappingProxyType({})


def run_bound(session: Any, inputs: Mapping[str, Array], outputs: Sequence[OnnxTensor]) -> list[Array]:
    """Return the outputs as arrays of their own. Raises what ONNX Runtime raises."""
    binding = _bind_inputs(session, inputs)
    for tensor in outputs:
        binding.bind_output(tensor.name, "cpu")
    session.run_with_iobinding(binding)
    return [_to_array(value) for value in binding.get_outputs()]


def run_into(
    session: Any,
    inputs: Mapping[str, Array],
    outputs: Sequence[TensorSpec],
    destinations: Mapping[str, memoryview] = NO_DESTINATIONS,
) -> list[Array]:
    """Return the outputs in arrays made here, which the system gets back when they are gone.

    What ONNX Runtime allocates itself stays in its arena. An output that `destinations` has memory for is an array at
    the beginning of that. Raises what ONNX Runtime raises, also when a shape in `outputs` turns out to be wrong, and
    ValueError when memory is too small or not aligned.
    """
    binding = _bind_inputs(session, inputs)
    arrays = [_array_for(spec, destinations.get(spec.name)) for spec in outputs]
    for spec, array in zip(outputs, arrays, strict=True):
        binding.bind_output(spec.name, "cpu", 0, ELEMENT_TYPES[spec.datatype], spec.shape, array.ctypes.data)
    session.run_with_iobinding(binding)
    return arrays


def _array_for(spec: TensorSpec, memory: memoryview | None) -> Array:
    if memory is None:
        return np.empty(spec.shape, spec.datatype.numpy)
    array: Array = np.ndarray(spec.shape, spec.datatype.numpy, memory)
    if not array.flags.aligned:
        raise ValueError(f"the memory for output '{spec.name}' is not aligned")
    return array


def _bind_inputs(session: Any, inputs: Mapping[str, Array]) -> Any:
    binding = session.io_binding()
    for name, array in inputs.items():
        datatype = from_numpy(array.dtype)
        if datatype is None or datatype is DataType.BYTES:
            binding.bind_cpu_input(name, array)
        else:
            binding.bind_input(name, "cpu", 0, ELEMENT_TYPES[datatype], array.shape, array.ctypes.data)
    return binding


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

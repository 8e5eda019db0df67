"""Instances of ONNX models: how one batch runs on a session.

Tiny batches run on fixed buffers, which costs a third of making and receiving arrays. Measured for add/sub of 16
floats, batch of 8: `InferenceSession.run` 7.7 us, the same call without its checks 5.9 us, a run with inputs and
outputs bound beforehand 3.1 us and 0.5 us of copying. BF16, for which ONNX Runtime has no arrays, and large outputs
are bound by address.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from naiad.backend.api import ModelContext
from naiad.backend.assembler import StagedRun
from naiad.backend.onnx.sessions import OnnxSession, ort_message, refuse_to_run
from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.backend.tensor_instance import TensorInstance
from naiad.core.datatype import DataType, from_numpy
from naiad.core.device_tensor import Device
from naiad.core.errors import internal, invalid_argument
from naiad.core.tensor import Array, Shape, TensorSpec

LIMIT_BYTES = 65536
"""Inputs and outputs of a staged batch together; above, copying costs more than binding saves."""

ELEMENT_TYPES: Mapping[DataType, Any] = {
    datatype: 16 if datatype is DataType.BF16 else datatype.numpy.type
    for datatype in DataType
    if datatype is not DataType.BYTES
}
"""The datatype in bindings: a numpy type, or ONNX's number where numpy has none."""


class OnnxStagedRun:
    """An IO binding to buffers of its own."""

    def __init__(self, session: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        arrays = [np.zeros(spec.shape, spec.datatype.numpy) for spec in inputs]
        self.inputs: Sequence[memoryview] = [memoryview(array.reshape(-1).view(np.uint8).data) for array in arrays]
        self.outputs: Sequence[Array] = [np.zeros(spec.shape, spec.datatype.numpy) for spec in outputs]
        binding = session.io_binding()
        for spec, array in zip(inputs, arrays, strict=True):
            binding.bind_input(spec.name, "cpu", 0, ELEMENT_TYPES[spec.datatype], spec.shape, array.ctypes.data)
        for spec, array in zip(outputs, self.outputs, strict=True):
            binding.bind_output(spec.name, "cpu", 0, ELEMENT_TYPES[spec.datatype], spec.shape, array.ctypes.data)
        self._arrays = arrays
        self._binding = binding
        # Python's wrappers around the two objects cost 0.5 us of 3.5.
        inner, inner_binding = getattr(session, "_sess", None), getattr(binding, "_iobinding", None)
        self.run: Callable[[], object]
        if inner is None or inner_binding is None:
            self.run = partial(session.run_with_iobinding, binding)
        else:
            self.run = partial(inner.run_with_iobinding, inner_binding, None)


def are_small(specs: Sequence[TensorSpec]) -> bool:
    """Whether tensors are small enough, together, to be copied in and out of buffers."""
    byte_sizes = [spec.byte_size for spec in specs]
    # Buffers of nothing have no address to bind.
    return all(byte_sizes) and sum(byte_sizes) <= LIMIT_BYTES


def plan_outputs(
    signature: ModelSignature, inputs: Sequence[TensorSpec], output_names: Sequence[str], *, is_batching: bool
) -> list[TensorSpec] | None:
    """Return the outputs' full shapes, None when the inputs' do not determine them or they are strings.

    A named free dimension has one value in the whole graph. What a graph declares may be wrong; a run with outputs
    bound to memory then fails, and is repeated without.
    """
    sizes = _dimension_sizes(signature, inputs)
    outputs: list[TensorSpec] = []
    for name in output_names:
        tensor = signature.outputs[name]
        datatype = tensor.datatype
        shape = _resolve(tensor, sizes, rows=inputs[0].shape[0] if is_batching and inputs else None)
        if datatype is None or datatype is DataType.BYTES or shape is None:
            return None
        outputs.append(TensorSpec(name, datatype, shape))
    return outputs


def _dimension_sizes(signature: ModelSignature, inputs: Sequence[TensorSpec]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for spec in inputs:
        tensor = signature.inputs.get(spec.name)
        for dim, size in zip((tensor.dims or ()) if tensor else (), spec.shape, strict=False):
            if isinstance(dim, str):
                sizes[dim] = size
    return sizes


def _resolve(tensor: TensorSignature, sizes: Mapping[str, int], *, rows: int | None) -> Shape | None:
    if not tensor.dims:
        return None
    shape = [dim if isinstance(dim, int) else sizes.get(dim or "", -1) for dim in tensor.dims]
    if rows is not None:
        shape[0] = rows
    return None if min(shape) < 0 else tuple(shape)


NO_DESTINATIONS: Mapping[str, memoryview] = MappingProxyType({})


def run_bound(session: Any, inputs: Mapping[str, Array], outputs: Sequence[TensorSignature]) -> list[Array]:
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


MAX_STAGED_RUNS = 64
"""Buffer sets that an instance keeps, one per shape of batch."""

LARGE_BYTES = 1 << 20
"""With an input of this size, memory for the outputs is worth giving back."""


class OnnxInstance(TensorInstance):
    """Runs batches on a session that it shares with the other instances."""

    runs_on_any_thread: ClassVar[bool] = True
    binds: ClassVar[bool] = True
    """Whether inputs and outputs may be bound to memory before a run; else ONNX Runtime allocates the outputs."""

    def __init__(self, context: ModelContext, session: OnnxSession, device: Device | None = None) -> None:
        super().__init__(context, device)
        self._session = session
        self.mapped_bytes = session.mapped_bytes
        self._run = session.run
        self._run_options = session.run_options
        self._string_inputs = [
            tensor.name for tensor in session.signature.inputs.values() if tensor.datatype is DataType.BYTES
        ]
        self._may_bind = self.binds and session.run_options is None
        # The rows of a ragged batch differ from the rows of its first input.
        self._may_preallocate = self._may_bind and not self._table.is_ragged
        self._staged: dict[object, OnnxStagedRun] = {}

    def close(self) -> None:
        """Release the session, which other instances may still use."""
        super().close()
        self._run = refuse_to_run
        self._staged.clear()

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the session; see `TensorInstance.run`."""
        if self._string_inputs:
            self._decode_strings(inputs)
        is_large = self._may_preallocate and any(array.nbytes >= LARGE_BYTES for array in inputs.values())
        # The outputs are in memory that does not stay in ONNX Runtime's arena.
        if is_large and (arrays := self._run_planned(inputs, output_names, NO_DESTINATIONS)) is not None:
            return arrays
        try:
            outputs: Sequence[Array] = self._run(output_names, inputs, self._run_options)
        except Exception as error:  # ONNX Runtime raises a different class for each status
            raise internal(ort_message(error)) from error
        if is_large:
            # It works, only not with outputs of the shapes that were expected.
            self._may_preallocate = False
        return outputs

    def run_into(
        self, inputs: dict[str, Array], output_names: Sequence[str], destinations: Mapping[str, memoryview]
    ) -> Sequence[Array] | None:
        """Run with outputs bound to the client's memory; see `TensorInstance.run_into`."""
        if self._string_inputs or not self._may_bind:
            return None
        return self._run_planned(inputs, output_names, destinations)

    def _run_planned(
        self, inputs: dict[str, Array], output_names: Sequence[str], destinations: Mapping[str, memoryview]
    ) -> Sequence[Array] | None:
        """Run with outputs of planned shapes; None when these are unknown or wrong, or have nothing to bind."""
        specs = [
            TensorSpec(name, datatype, array.shape)
            for name, array in inputs.items()
            if (datatype := from_numpy(array.dtype)) is not None
        ]
        outputs = plan_outputs(self._session.signature, specs, output_names, is_batching=self._is_batching)
        if outputs is None or not all(spec.byte_size for spec in outputs):
            return None
        try:
            return run_into(self._session.ort, inputs, outputs, destinations)
        except Exception:  # the same inputs are run on the slow path at once, which raises the reason
            return None

    def stage(self, inputs: Sequence[TensorSpec], output_names: Sequence[str]) -> StagedRun | None:
        """Bind small inputs and outputs of known shapes to buffers; see `TensorInstance.stage`."""
        if not self._may_bind:
            return None
        key = (tuple(inputs), tuple(output_names))
        staged = self._staged.get(key)
        if staged is None:
            outputs = plan_outputs(self._session.signature, inputs, output_names, is_batching=self._is_batching)
            if outputs is None or not are_small([*inputs, *outputs]):
                return None
            if len(self._staged) >= MAX_STAGED_RUNS:
                self._staged.clear()
            staged = self._staged[key] = OnnxStagedRun(self._session.ort, inputs, outputs)
        return staged

    def _decode_strings(self, inputs: dict[str, Array]) -> None:
        """Replace arrays of bytes with arrays of str, which is all that ONNX Runtime takes."""
        for name in self._string_inputs:
            array = inputs.get(name)
            if array is None:
                continue
            try:
                texts = [element.decode() for element in array.ravel().tolist()]
            except UnicodeDecodeError as error:
                raise invalid_argument(
                    f"input '{name}' of model '{self._model_name}' has an element that is not UTF-8 ({error}); "
                    "strings of ONNX models are text"
                ) from error
            decoded = np.empty(len(texts), dtype=np.object_)
            decoded[:] = texts
            inputs[name] = decoded.reshape(array.shape)


class Bf16OnnxInstance(OnnxInstance):
    """Runs a model with BF16 tensors, for which ONNX Runtime has no arrays: all of them are bound by address."""

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the session; see `TensorInstance.run`."""
        if self._string_inputs:
            self._decode_strings(inputs)
        try:
            return run_bound(self._session.ort, inputs, [self._session.signature.outputs[n] for n in output_names])
        except Exception as error:  # ONNX Runtime raises a different class for each status
            raise internal(ort_message(error)) from error

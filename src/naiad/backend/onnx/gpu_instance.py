"""Instances of ONNX models on GPUs, and the tensors that stay there between the steps of an ensemble."""

from collections.abc import Mapping, Sequence, Set
from typing import Any, ClassVar

import numpy as np

from naiad.backend.api import ModelContext
from naiad.backend.onnx.instance import OnnxInstance
from naiad.backend.onnx.library import onnxruntime
from naiad.backend.onnx.sessions import OnnxSession, ort_message
from naiad.backend.signature import TensorSignature
from naiad.core.datatype import DataType
from naiad.core.device_tensor import Device
from naiad.core.errors import internal
from naiad.core.tensor import Array

_CUDA = 2
"""kDLCUDA, the kind of the devices."""
_DEVICE_NAME = "cuda"
"""The kind of the devices for ONNX Runtime."""


class OrtTensor:
    """A value of ONNX Runtime with the shape and datatype of an array; its run is complete."""

    def __init__(self, value: Any, dtype: np.dtype[Any]) -> None:
        self.value = value
        self.shape = tuple(value.shape())
        self.dtype = dtype

    def __dlpack__(self, *, dl_device: Device | None = None, **_: Any) -> Any:
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"this tensor is on DLPack device {self.__dlpack_device__()}, not on {dl_device}")
        return self.value.__dlpack__()

    def __dlpack_device__(self) -> Device:
        kind, number = self.value.__dlpack_device__()
        return int(kind), int(number)


class GpuOnnxInstance(OnnxInstance):
    """Runs on a GPU: ONNX Runtime copies inputs there and outputs back; bound buffers are the host's memory."""

    runs_on_any_thread: ClassVar[bool] = False
    binds: ClassVar[bool] = False

    def __init__(self, context: ModelContext, session: OnnxSession, device_id: int | None = None) -> None:
        """`device_id`: the GPU where tensors may stay; None for a session that does not exchange them."""
        has_strings = any(tensor.datatype is DataType.BYTES for tensor in session.signature.inputs.values())
        can_exchange = hasattr(onnxruntime.OrtValue, "from_dlpack") and not has_strings  # strings cannot be bound
        super().__init__(context, session, (_CUDA, device_id) if device_id is not None and can_exchange else None)
        self._place = (_DEVICE_NAME, device_id)

    def run_on_device(self, inputs: dict[str, Any], output_names: Sequence[str], staying: Set[str]) -> Sequence[Any]:
        """Run the session with tensors on its GPU; see `TensorInstance.run_on_device`."""
        outputs = [self._session.signature.outputs[name] for name in output_names]
        try:
            return run_with_device(self._session.ort, inputs, outputs, staying, self._place, self._run_options)
        except Exception as error:  # ONNX Runtime raises a different class for each status
            raise internal(ort_message(error)) from error

    @staticmethod
    def to_host(tensor: Any) -> Array:
        """Return an output as an array; see `TensorInstance.to_host`."""
        try:
            array: Array = tensor.value.numpy()
        except RuntimeError as error:
            place = tensor.__dlpack_device__()
            raise BufferError(f"a tensor on DLPack device {place}: {ort_message(error)}") from error
        return array


def run_with_device(
    session: Any,
    inputs: Mapping[str, Any],
    outputs: Sequence[TensorSignature],
    staying: Set[str],
    device: tuple[str, int | None],
    run_options: Any,
) -> list[Any]:
    """Return the outputs as arrays, except those in `staying`, which are left on `device`.

    Inputs are arrays or DLPack tensors. Raises what ONNX Runtime raises.
    """
    binding = session.io_binding()
    for name, tensor in inputs.items():
        if isinstance(tensor, np.ndarray):
            binding.bind_cpu_input(name, tensor)
        else:
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.from_dlpack(tensor))
    # ONNX Runtime exports BOOL as UINT8.
    left = {t.name: t.datatype for t in outputs if t.name in staying and t.datatype not in (None, DataType.BOOL)}
    for tensor in outputs:
        binding.bind_output(tensor.name, *(device if tensor.name in left else ("cpu",)))
    session.run_with_iobinding(binding, run_options)
    binding.synchronize_outputs()
    found = []
    for tensor, value in zip(outputs, binding.get_outputs(), strict=True):
        datatype = left.get(tensor.name)
        found.append(value.numpy() if datatype is None else OrtTensor(value, datatype.numpy))
    return found

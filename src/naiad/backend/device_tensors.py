"""Tensors that frameworks return instead of numpy arrays: anything with `__dlpack__` and `__dlpack_device__`.

Tensors in host memory become arrays without a copy. Tensors of devices are copied to the host, except between the
steps of an ensemble and to CUDA shared memory: see `naiad.core.device_tensor`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.device_tensor import Device, DeviceTensor
from naiad.core.errors import InferError
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Array, Buffer
from naiad.worker.api.dlpack import DLPackError, import_array


class DLPackTensor(Protocol):
    """A tensor of a framework; see https://dmlc.github.io/dlpack."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """Return a capsule."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return kind and number of the device."""


Tensor: TypeAlias = Array | DLPackTensor

_HOST_KINDS = (1, 3, 11)
"""kDLCPU, kDLCUDAHost and kDLROCMHost: the last two are pinned host memory."""

_BY_DTYPE: Mapping[str, DataType] = {
    "bfloat16" if each is DataType.BF16 else each.numpy.name: each for each in DataType if each is not DataType.BYTES
}


def device_of(tensor: DLPackTensor) -> Device | None:
    """Return the device of a tensor; None for host memory."""
    kind, number = tensor.__dlpack_device__()
    return None if kind in _HOST_KINDS else (int(kind), int(number))


def datatype_of(tensor: Any) -> DataType | None:
    """Return the datatype of a tensor of any framework; None if its `dtype` and `shape` do not describe it.

    Frameworks have numpy's dtypes, or write numpy's names as PyTorch does: `torch.float32`.
    """
    if not isinstance(getattr(tensor, "shape", None), tuple):
        return None
    return _BY_DTYPE.get(str(getattr(tensor, "dtype", "")).rpartition(".")[2])


def to_host(tensor: DLPackTensor) -> Array:
    """Return a tensor as an array: a view on host memory (often read-only), or a copy of what is on a device.

    Raises BufferError for what cannot be exchanged: its framework does not copy between devices through DLPack, or
    its datatype has no equivalent.
    """
    kind = tensor.__dlpack_device__()[0]
    try:
        if kind in _HOST_KINDS:
            return _view(tensor)
        copied: Array = np.from_dlpack(tensor, device="cpu")
    except (TypeError, ValueError, RuntimeError, BufferError, DLPackError) as error:
        raise BufferError(
            f"a {type(tensor).__name__} on DLPack device {tuple(tensor.__dlpack_device__())} cannot become an array: "
            f"{error}"
        ) from error
    return copied


def _view(tensor: DLPackTensor) -> Array:
    try:
        view: Array = np.from_dlpack(tensor)
    except (RuntimeError, BufferError):
        # numpy does not know BF16, and old releases not BOOL.
        datatype, view = import_array(tensor)
        return view.view(DataType.BF16.numpy) if datatype == DataType.BF16.value else view
    return view


def take_to_places(requests: Sequence[InferRequest], responses: Sequence[InferResponse]) -> None:
    """Copy outputs that are on the device where their client has memory for them; other outputs remain."""
    for request, response in zip(requests, responses, strict=True):
        if request.destinations and request.header.is_on_device and response.error is None:
            try:
                response.data = [
                    _taken(request, spec.name, data)
                    for spec, data in zip(response.header.outputs, response.data, strict=True)
                ]
            except InferError as error:
                response.error = error.with_traceback(None)


def _taken(request: InferRequest, name: str, data: Buffer | DeviceTensor) -> Any:
    place = (request.destinations or {}).get(name)
    if place is None or isinstance(place, memoryview) or not isinstance(data, DeviceTensor):
        return data
    if not len(data) or data.device != place.device or len(data) > place.byte_size:
        return data
    place.take(data)
    return b""

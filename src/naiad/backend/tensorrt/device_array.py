"""Outputs that stay on the GPU, in memory of their own: the buffers of an instance are overwritten by its next run.

Blocks of this memory are used again. They come back from any thread, but `cudaMalloc` and `cudaFree`, which wait for
the whole GPU, are called on the instance's thread.
"""

import contextlib
import logging
import math
from collections import deque
from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.device_tensor import Device
from naiad.core.tensor import Array, Buffer, Shape
from naiad.memory.cuda_runtime import CudaError, CudaRuntime
from naiad.worker.api.dlpack import export_array, header_of

_log = logging.getLogger(__name__)

MAX_SPARE_BLOCKS = 4
"""Unused blocks that are kept, for each output."""


class Blocks:
    """Memory for one output, in blocks of its largest size."""

    def __init__(self, runtime: CudaRuntime, byte_size: int) -> None:
        self._runtime = runtime
        self._byte_size = max(byte_size, 1)
        self._spare: deque[int] = deque()
        self._is_closed = False

    def read(self, address: int, byte_size: int, device_id: int) -> Buffer:
        """Return a copy of what a block begins with. Raises CudaError."""
        return self._runtime.read(address, byte_size, device_id)

    def take(self) -> int:
        """Return the address of a block on the current device. Raises CudaError."""
        while len(self._spare) > MAX_SPARE_BLOCKS:
            self._runtime.free(self._spare.pop())
        return self._spare.pop() if self._spare else self._runtime.allocate(self._byte_size)

    def give_back(self, address: int) -> None:
        """Keep a block that nothing reads any more; callable on any thread."""
        self._spare.append(address)
        if self._is_closed:
            try:
                self._free_all()
            except CudaError as error:
                _log.warning("memory of an output on a GPU is not released: %s", error)

    def close(self) -> None:
        """Release the unused blocks now, and other ones when they come back. Raises CudaError."""
        self._is_closed = True
        self._free_all()

    def _free_all(self) -> None:
        with contextlib.suppress(IndexError):  # another thread may have released the last one
            while self._spare:
                self._runtime.free(self._spare.pop())


class DeviceArray:
    """A C-contiguous tensor in a block, for other frameworks through DLPack; its values are complete."""

    def __init__(self, blocks: Blocks, shape: Shape, datatype: DataType, device: Device) -> None:
        """Take a block. Raises CudaError."""
        self.address = blocks.take()
        self._blocks = blocks
        self.shape = shape
        self.dtype = datatype.numpy
        self._datatype = datatype
        self._device = device

    def __del__(self) -> None:
        if hasattr(self, "_blocks"):
            self._blocks.give_back(self.address)

    def to_host(self) -> Array:
        """Return a copy. Raises CudaError."""
        byte_size = math.prod(self.shape) * self._datatype.item_bytes
        array: Array = np.frombuffer(self._blocks.read(self.address, byte_size, self._device[1]), self.dtype)
        return array.reshape(self.shape)

    def __dlpack__(self, *, dl_device: Device | None = None, **_: Any) -> Any:
        if dl_device not in (None, self._device):
            raise BufferError(f"this tensor is on DLPack device {self._device}, not on {dl_device}")
        # numpy makes the capsule, and does not read the memory.
        capsule = export_array(np.asarray(_Memory(self)), self._datatype.value)
        place = header_of(capsule).device
        place.kind, place.number = self._device
        return capsule

    def __dlpack_device__(self) -> Device:
        return self._device


class _Memory:
    """The memory of a tensor as an array of the host, which keeps the tensor alive."""

    def __init__(self, tensor: DeviceArray) -> None:
        dtype = np.dtype(np.uint16) if tensor.dtype == DataType.BF16.numpy else tensor.dtype
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.address, False),
            "shape": tensor.shape,
            "typestr": dtype.str,
        }


def address_of(tensor: Any, stream: int) -> int:
    """Return where a C-contiguous tensor is, for work in a stream of CUDA; the tensor has to outlive that."""
    capsule = tensor.__dlpack__(stream=stream)
    header = header_of(capsule)
    address: int = (header.data or 0) + header.byte_offset
    return address

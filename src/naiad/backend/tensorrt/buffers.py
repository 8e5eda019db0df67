"""The memory of an instance: for each tensor a buffer on the GPU and a pinned one on the host; outputs that stay.

Outputs that stay on the GPU are in memory of their own: the buffers of an instance are overwritten by its next run.
Blocks of this memory are used again. They come back from any thread, but `cudaMalloc` and `cudaFree`, which wait for
the whole GPU, are called on the instance's thread.
"""

import contextlib
import ctypes
import logging
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from naiad.backend.cuda.cuda import CudaError, CudaRuntime
from naiad.backend.cuda.dlpack import check_device, export_memory
from naiad.core.datatype import DataType
from naiad.core.device_tensor import Device
from naiad.core.tensor import Array, Buffer, Shape

_log = logging.getLogger(__name__)

MAX_SPARE_BLOCKS = 4
"""Unused blocks that are kept, for each output."""


class TensorBuffer:
    """Memory of one tensor on both sides; only on the host for a tensor that TensorRT reads there."""

    def __init__(self, runtime: CudaRuntime, byte_size: int, *, is_on_host: bool) -> None:
        """Allocate on the current device. Raises CudaError."""
        self._runtime = runtime
        self._device = 0
        self.byte_size = byte_size
        self._host = runtime.allocate_pinned(max(byte_size, 1))
        if not is_on_host:
            try:
                self._device = runtime.allocate(max(byte_size, 1))
            except Exception:
                self.close()
                raise
        memory = (ctypes.c_uint8 * byte_size).from_address(self._host)
        self._bytes: Array = np.frombuffer(memoryview(memory), np.uint8) if byte_size else np.empty(0, np.uint8)

    @property
    def is_on_device(self) -> bool:
        """Whether TensorRT finds the tensor on the GPU."""
        return bool(self._device)

    @property
    def address(self) -> int:
        """Where TensorRT finds the tensor."""
        return self._device or self._host

    def send(self, array: Array, stream: int) -> None:
        """Begin to copy an input to the GPU. Raises CudaError."""
        size = array.nbytes
        if not size:
            return
        self._bytes[:size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if self._device:
            self._runtime.copy_to_device(self._device, self._host, size, stream)

    def receive(self, address: int, byte_size: int, stream: int) -> None:
        """Begin to copy an input from memory of the GPU. Raises CudaError."""
        if byte_size and self._device:
            self._runtime.copy_on_device(self._device, address, byte_size, stream)
        elif byte_size:
            self._runtime.copy_to_host(self._host, address, byte_size, stream)
            self._runtime.wait_for(stream)  # TensorRT reads it before the stream does

    def leave(self, address: int, byte_size: int, stream: int) -> None:
        """Begin to copy an output to other memory of the GPU. Raises CudaError."""
        if byte_size:
            self._runtime.copy_on_device(address, self._device, byte_size, stream)

    def fetch(self, byte_size: int, stream: int) -> None:
        """Begin to copy an output to the host. Raises CudaError."""
        if byte_size and self._device:
            self._runtime.copy_to_host(self._host, self._device, byte_size, stream)

    def take(self, shape: Shape, dtype: np.dtype[np.generic], byte_size: int) -> Array:
        """Return a copy of what was fetched, once the stream is done."""
        array: Array = self._bytes[:byte_size].copy().view(dtype).reshape(shape)
        return array

    def close(self) -> None:
        """Release the memory. Raises CudaError."""
        self._bytes = np.empty(0, np.uint8)
        if self._device:
            self._runtime.free(self._device)
        if self._host:
            self._runtime.free_pinned(self._host)
        self._device = self._host = 0


class Buffers:
    """The buffers of all tensors of an instance, and its stream."""

    def __init__(self, runtime: CudaRuntime, byte_sizes: Mapping[str, int], on_host: frozenset[str]) -> None:
        """Allocate on the current device. Raises CudaError, with nothing left allocated."""
        self._runtime = runtime
        self.by_name: dict[str, TensorBuffer] = {}
        try:
            for name, byte_size in byte_sizes.items():
                self.by_name[name] = TensorBuffer(runtime, byte_size, is_on_host=name in on_host)
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        """Release all memory. Raises CudaError."""
        while self.by_name:
            self.by_name.popitem()[1].close()


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
        check_device(dl_device, self._device)
        return export_memory(self, self.address, self.shape, self._datatype, self._device)

    def __dlpack_device__(self) -> Device:
        return self._device

"""The memory of an instance: for each tensor a buffer on the GPU and a pinned one on the host, and a stream."""

import ctypes
from collections.abc import Mapping

import numpy as np

from naiad.core.tensor import Array, Shape
from naiad.memory.cuda_runtime import CudaRuntime


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

"""Blocks of shared memory that a generator owns: POSIX objects, and allocations of a GPU.

Names carry the process and a random part, so that runs on one machine do not meet.
"""

import contextlib
import mmap
import os
import secrets
import sys
from typing import Protocol

from naiad.client import Client
from naiad.core.tensor import Buffer
from naiad.memory.cuda_runtime import CudaError, CudaRuntime, load_runtime
from naiad.memory.system import DIRECTORY
from naiad.perf.inputs.signature import InputError


def new_region_name(purpose: str) -> str:
    """Return a name that no other region has."""
    return f"naiad_perf_{os.getpid()}_{secrets.token_hex(6)}_{purpose}"


class MemoryBlock(Protocol):
    """A block and its region on the server, which have the same name.

    A block can be pickled for another process of the machine, where the copy is the same memory. `close` is for the
    process that has made the block.
    """

    name: str

    async def register(self, client: Client) -> None:
        """Register the block with the server. Raises InferError."""

    async def unregister(self, client: Client) -> None:
        """Unregister it. Raises InferError."""

    def write(self, offset: int, data: Buffer) -> None:
        """Copy data into it."""

    def read(self, offset: int, byte_size: int) -> Buffer:
        """Return a copy of a part."""

    def close(self) -> None:
        """Release the memory."""


class SystemBlock:
    """A POSIX shared-memory object."""

    def __init__(self, name: str, byte_size: int) -> None:
        """Make the object, with all of its memory. Raises InputError."""
        if sys.platform != "linux":
            raise InputError("--shared-memory system: works on Linux only; leave the flag out")
        self.name = name
        self._byte_size = byte_size
        self._path = f"{DIRECTORY}/{name}"
        try:
            descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                # Without it a full /dev/shm would end the process with SIGBUS at a later write.
                os.posix_fallocate(descriptor, 0, byte_size)
                self._mapping = mmap.mmap(descriptor, byte_size)
            finally:
                os.close(descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            raise InputError(
                f"--shared-memory system: {byte_size} bytes in {DIRECTORY}: {error.strerror}; make it larger, or use "
                "fewer requests outstanding or a smaller --output-shared-memory-size"
            ) from None

    def __getstate__(self) -> tuple[str, int]:
        """Return name and size."""
        return self.name, self._byte_size

    def __setstate__(self, state: tuple[str, int]) -> None:
        """Map the object of the other process. Raises OSError if it is gone."""
        self.name, self._byte_size = state
        self._path = f"{DIRECTORY}/{self.name}"
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._mapping = mmap.mmap(descriptor, self._byte_size)
        finally:
            os.close(descriptor)

    async def register(self, client: Client) -> None:
        """Register the object with the server. Raises InferError."""
        await client.register_system_shared_memory(self.name, f"/{self.name}", self._byte_size)

    async def unregister(self, client: Client) -> None:
        """Unregister it. Raises InferError."""
        await client.unregister_system_shared_memory(self.name)

    def write(self, offset: int, data: Buffer) -> None:
        """Copy data into it."""
        self._mapping[offset : offset + len(data)] = data

    def read(self, offset: int, byte_size: int) -> Buffer:
        """Return a copy of a part."""
        return self._mapping[offset : offset + byte_size]

    def close(self) -> None:
        """Remove the object and unmap it."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._mapping.close()


class CudaBlock:
    """An allocation of GPU 0."""

    def __init__(self, name: str, byte_size: int) -> None:
        """Allocate the memory. Raises InputError without a CUDA runtime, a GPU or the memory."""
        self.name = name
        self._byte_size = byte_size
        try:
            self._runtime: CudaRuntime = load_runtime()
            self._runtime.set_device(0)
            self._address = self._runtime.allocate(byte_size)
            self._handle = self._runtime.export(self._address)
        except CudaError as error:
            raise InputError(f"--shared-memory cuda: {byte_size} bytes of GPU 0: {error}") from None

    def __getstate__(self) -> tuple[str, int, bytes]:
        """Return name, size and handle."""
        return self.name, self._byte_size, self._handle

    def __setstate__(self, state: tuple[str, int, bytes]) -> None:
        """Open the allocation of the other process. Raises CudaError."""
        self.name, self._byte_size, self._handle = state
        self._runtime = load_runtime()
        self._address = self._runtime.open(self._handle, 0)

    async def register(self, client: Client) -> None:
        """Register the allocation with the server. Raises InferError."""
        await client.register_cuda_shared_memory(self.name, self._handle, 0, self._byte_size)

    async def unregister(self, client: Client) -> None:
        """Unregister it. Raises InferError."""
        await client.unregister_cuda_shared_memory(self.name)

    def write(self, offset: int, data: Buffer) -> None:
        """Copy data into it. Raises CudaError."""
        self._runtime.write(self._address + offset, data, 0)

    def read(self, offset: int, byte_size: int) -> Buffer:
        """Return a copy of a part. Raises CudaError."""
        return self._runtime.read(self._address + offset, byte_size, 0)

    def close(self) -> None:
        """Free the allocation. Raises CudaError."""
        self._runtime.set_device(0)
        self._runtime.free(self._address)

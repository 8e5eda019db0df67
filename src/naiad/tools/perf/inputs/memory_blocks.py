"""Blocks of shared memory that a generator owns, POSIX objects and allocations of a GPU, and the outputs in them.

Names carry the process and a random part, so that runs on one machine do not meet.
"""

import contextlib
import mmap
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from naiad.backend.cuda.cuda import CudaError, CudaRuntime, load_runtime
from naiad.client import Client
from naiad.core.request import RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.tensor import Buffer, TensorSpec
from naiad.tools.values.tensor import InputError

DIRECTORY = "/dev/shm"
"""Directory of POSIX shared-memory objects on Linux."""


def new_region_name(purpose: str) -> str:
    """Return a name that no other region has."""
    return f"naiad_perf_{os.getpid()}_{secrets.token_hex(6)}_{purpose}"


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


MemoryBlock: TypeAlias = SystemBlock | CudaBlock
"""A block and its region on the server, which have the same name.

A block can be pickled for another process of the machine, where the copy is the same memory. `close` is for the
process that has made the block.
"""


# --- slots of outputs ---------------------------------------------------------------------------------------------

_ALIGNMENT = 64


class OutputSlots:
    """The outputs of each outstanding request, in one region."""

    def __init__(self, sizes: Mapping[str, int], slots: int) -> None:
        self._sizes = sizes
        self._slots = slots
        self._offsets: dict[str, int] = {}
        self._slot_bytes = 0
        for name, size in sizes.items():
            self._offsets[name] = self._slot_bytes
            self._slot_bytes += aligned(size)
        self.byte_size = self._slot_bytes * slots
        self.block: MemoryBlock | None = None
        """The memory, once it is there."""

    def requested(self, slot: int) -> list[RequestedOutput]:
        """Return the outputs of a request with their places; slots past the last begin again at the first."""
        name = "" if self.block is None else self.block.name
        start = slot % self._slots * self._slot_bytes
        return [
            RequestedOutput(output, shared_memory=SharedMemoryRegion(name, start + self._offsets[output], size))
            for output, size in self._sizes.items()
        ]

    def fill(self, slot: int, specs: Sequence[TensorSpec], data: Sequence[Buffer]) -> list[Buffer]:
        """Return the data of a response, with that of outputs in shared memory."""
        pairs = zip(specs, data, strict=True)
        return [content if len(content) else self._read(slot, spec) for spec, content in pairs]

    def _read(self, slot: int, spec: TensorSpec) -> Buffer:
        if self.block is None or spec.name not in self._offsets:
            return b""
        start = slot % self._slots * self._slot_bytes + self._offsets[spec.name]
        if spec.datatype.item_bytes:
            return self.block.read(start, min(spec.byte_size, self._sizes[spec.name]))
        return _strings_in(self.block.read(start, self._sizes[spec.name]), spec.element_count)


def with_memory(
    header: RequestHeader, inputs: Mapping[str, SharedMemoryRegion], outputs: Sequence[RequestedOutput]
) -> RequestHeader:
    """Return a header with inputs and outputs in shared memory."""
    return RequestHeader(
        model_name=header.model_name,
        model_version=header.model_version,
        inputs=header.inputs,
        outputs=outputs,
        parameters=header.parameters,
        binary_output_default=header.binary_output_default,
        wants_empty_final=header.wants_empty_final,
        shared_memory=inputs,
    )


def aligned(size: int) -> int:
    """Return a size that is rounded up, so that the next tensor begins at a cache line."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _strings_in(data: Buffer, count: int) -> Buffer:
    """Return the beginning of `data` with `count` strings."""
    end = 0
    for _ in range(count):
        end += 4 + int.from_bytes(data[end : end + 4], "little")
    return data[:end]

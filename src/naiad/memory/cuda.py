"""CUDA shared memory: a GPU allocation of the client, opened by its inter-process handle through the CUDA runtime.

Tensors are copied between GPU and host once in each direction. The runtime is loaded when the first region is
registered.
"""

from naiad.core.errors import InferError, excerpt, internal, invalid_argument
from naiad.core.model import CudaRegionStatus
from naiad.core.tensor import Buffer
from naiad.memory.cuda_runtime import HANDLE_BYTES, CudaError, CudaRuntime


class CudaRegion:
    """An opened allocation of a GPU."""

    __slots__ = ("_address", "_runtime", "byte_size", "device_id", "is_leaving", "name", "user_count")

    def __init__(self, runtime: CudaRuntime, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Open the allocation behind `handle`. Raises InferError(INVALID_ARG) with Triton's text."""
        try:
            if len(handle) != HANDLE_BYTES:
                raise CudaError(f"raw_handle has {len(handle)} bytes, a cudaIpcMemHandle_t has {HANDLE_BYTES}")
            if not 0 <= device_id < runtime.device_count:
                raise CudaError(f"device_id is {device_id}, but there are {runtime.device_count} GPUs")
            if not byte_size:
                raise CudaError("byte_size is 0")
            self._address = runtime.open(handle, device_id)
            self._check_end(runtime, byte_size, device_id)
        except CudaError as error:
            raise invalid_argument(
                f"failed to register CUDA shared memory region '{name}': invalid args: {error}"
            ) from error
        self._runtime = runtime
        self.name = name
        self.device_id = device_id
        self.byte_size = byte_size
        self.user_count = 0
        self.is_leaving = False

    def _check_end(self, runtime: CudaRuntime, byte_size: int, device_id: int) -> None:
        """Check that the allocation has the given size, by reading its last byte."""
        try:
            runtime.read(self._address + byte_size - 1, 1, device_id)
        except CudaError as error:
            runtime.close(self._address, device_id)
            raise CudaError(f"byte_size {byte_size} is beyond the allocation ({error})") from error

    @property
    def status(self) -> CudaRegionStatus:
        """The status of the region."""
        return CudaRegionStatus(self.name, self.device_id, self.byte_size)

    def check_alive(self) -> None:
        """Do nothing: a mapped allocation does not change."""

    def check_intact(self) -> None:
        """Do nothing: failed accesses raise at once."""

    def read(self, offset: int, byte_size: int) -> Buffer:
        """Return a copy of a part of the region in host memory. Raises InferError(INTERNAL)."""
        try:
            return self._runtime.read(self._address + offset, byte_size, self.device_id)
        except CudaError as error:
            raise self._failed("read", error) from error

    def write(self, offset: int, data: Buffer) -> None:
        """Copy `data` to a part of the region. Raises InferError(INTERNAL)."""
        try:
            self._runtime.write(self._address + offset, data, self.device_id)
        except CudaError as error:
            raise self._failed("written", error) from error

    def close(self) -> None:
        """Close the allocation. Raises CudaError."""
        self._runtime.close(self._address, self.device_id)

    def _failed(self, verb: str, error: CudaError) -> InferError:
        return internal(f"CUDA shared memory region '{excerpt(self.name)}' could not be {verb}: {error}")

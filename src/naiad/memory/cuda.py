"""CUDA shared memory: a GPU allocation of the client, opened by its inter-process handle through the CUDA runtime.

Tensors are copied between GPU and host once in each direction. The runtime is loaded when the first region is
registered: from the loader's path under libcudart's usual names, or from NVIDIA's Python packages.
"""

import ctypes
import ctypes.util
from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.errors import InferError, excerpt, internal, invalid_argument
from naiad.core.shared_memory import CudaRegionStatus
from naiad.core.tensor import Buffer

HANDLE_BYTES = 64
"""sizeof(cudaIpcMemHandle_t)."""
_NAMES = ("libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")
_HOST_TO_DEVICE = 1
_DEVICE_TO_HOST = 2
_LAZY_ENABLE_PEER_ACCESS = 1
_SUCCESS = 0


class _IpcHandle(ctypes.Structure):
    """`cudaIpcMemHandle_t`, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class CudaError(Exception):
    """A call of the runtime failed; the text names the call and the reason."""


class CudaRuntime:
    """The calls of libcudart that regions need; device memory is an integer address."""

    def __init__(self, library: Any) -> None:
        """`library` is a loaded libcudart. Raises CudaError if it lacks a call or there is no GPU."""
        self._library = library
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        signatures: dict[str, tuple[Any, ...]] = {
            "cudaGetDeviceCount": (ctypes.POINTER(ctypes.c_int),),
            "cudaSetDevice": (ctypes.c_int,),
            "cudaIpcOpenMemHandle": (ctypes.POINTER(pointer), _IpcHandle, ctypes.c_uint),
            "cudaIpcCloseMemHandle": (pointer,),
            "cudaMemcpy": (pointer, pointer, size, ctypes.c_int),
        }
        try:
            for name, arguments in signatures.items():
                function = getattr(library, name)
                function.argtypes, function.restype = arguments, ctypes.c_int
            library.cudaGetErrorString.argtypes = (ctypes.c_int,)
            library.cudaGetErrorString.restype = ctypes.c_char_p
        except AttributeError as error:
            raise CudaError(f"the CUDA runtime lacks a call: {error}") from None
        count = ctypes.c_int(0)
        self._call("cudaGetDeviceCount", ctypes.byref(count))
        self.device_count = count.value
        if not self.device_count:
            raise CudaError("there is no GPU")

    def open(self, handle: bytes, device_id: int) -> int:
        """Map another process's allocation and return its address. Raises CudaError."""
        address = ctypes.c_void_p()
        self._call("cudaSetDevice", device_id)
        self._call(
            "cudaIpcOpenMemHandle",
            ctypes.byref(address),
            _IpcHandle.from_buffer_copy(handle),
            _LAZY_ENABLE_PEER_ACCESS,
        )
        return address.value or 0

    def close(self, address: int, device_id: int) -> None:
        """Unmap what `open` returned. Raises CudaError."""
        self._call("cudaSetDevice", device_id)
        self._call("cudaIpcCloseMemHandle", address)

    def read(self, address: int, byte_size: int, device_id: int) -> Buffer:
        """Return a copy of device memory. Raises CudaError."""
        target = np.empty(byte_size, np.uint8)
        self._call("cudaSetDevice", device_id)
        self._call("cudaMemcpy", target.ctypes.data, address, byte_size, _DEVICE_TO_HOST)
        return memoryview(target.data)

    def write(self, address: int, data: Buffer, device_id: int) -> None:
        """Copy `data` to device memory. Raises CudaError."""
        source = np.frombuffer(data, np.uint8)
        self._call("cudaSetDevice", device_id)
        self._call("cudaMemcpy", address, source.ctypes.data, source.nbytes, _HOST_TO_DEVICE)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != _SUCCESS:
            text = self._library.cudaGetErrorString(status) or b""
            raise CudaError(f"{name} failed with error {status}: {text.decode('utf-8', 'replace')}")


def load_runtime() -> CudaRuntime:
    """Return the CUDA runtime of this machine. Raises CudaError if there is none, or no GPU."""
    for name in _candidates():
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        return CudaRuntime(library)
    raise CudaError("libcudart was not found; install the CUDA runtime, or pip install nvidia-cuda-runtime-cu12")


def _candidates() -> list[str]:
    found = ctypes.util.find_library("cudart")
    packaged = [
        str(path)
        for folder in ("cuda_runtime", "cu13")
        for path in sorted(_site_packages().glob(f"nvidia/{folder}/lib/libcudart.so.*"), reverse=True)
    ]
    return [*_NAMES, *([found] if found else []), *packaged]


def _site_packages() -> Path:
    return Path(np.__file__).parents[1]


class CudaRegion:
    """An opened allocation of a GPU."""

    __slots__ = (
        "_address",
        "_runtime",
        "byte_size",
        "device_id",
        "is_leaving",
        "name",
        "user_count",
    )

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

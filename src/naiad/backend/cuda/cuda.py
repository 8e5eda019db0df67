"""CUDA: its runtime through ctypes, and shared memory, which is an allocation that a client has made.

libcudart is loaded from the loader's path under its usual names, or from NVIDIA's Python packages, when the first
region is registered. A model on the GPU of a region reads its inputs there and its outputs are copied there on the
GPU; for all others tensors are copied between GPU and host once in each direction.
"""

import contextlib
import ctypes
import ctypes.util
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from naiad.backend.cuda.dlpack import address_of, check_device, export_memory
from naiad.core.datatype import DataType
from naiad.core.device_tensor import Device, DeviceTensor
from naiad.core.errors import InferError, excerpt, internal, invalid_argument
from naiad.core.model import CudaRegionStatus
from naiad.core.tensor import Buffer, Shape, TensorSpec

_log = logging.getLogger(__name__)

HANDLE_BYTES = 64
"""sizeof(cudaIpcMemHandle_t)."""
_NAMES = ("libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")
_HOST_TO_DEVICE = 1
_DEVICE_TO_HOST = 2
_DEVICE_TO_DEVICE = 3
_LAZY_ENABLE_PEER_ACCESS = 1
_NON_BLOCKING = 1
"""cudaStreamNonBlocking: the stream does not wait for the legacy default stream."""
_DEFAULT_STREAM = 0
_SUCCESS = 0
_DLPACK_KIND = 2
"""kDLCUDA."""
_ALIGNMENT_BYTES = 256
"""Of tensors that models read in a region: as cudaMalloc aligns, which compilers of models may rely on."""


class _IpcHandle(ctypes.Structure):
    """`cudaIpcMemHandle_t`, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class CudaError(Exception):
    """A call of the runtime failed; the text names the call and the reason."""


class CudaRuntime:
    """The calls of libcudart that naiad needs; memory and streams are integer addresses.

    CUDA has a current device for each thread. All calls raise CudaError.
    """

    def __init__(self, library: Any) -> None:
        """`library` is a loaded libcudart. Raises CudaError if it lacks a call or there is no GPU."""
        self._library = library
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        signatures: dict[str, tuple[Any, ...]] = {
            "cudaGetDeviceCount": (ctypes.POINTER(ctypes.c_int),),
            "cudaGetDevice": (ctypes.POINTER(ctypes.c_int),),
            "cudaSetDevice": (ctypes.c_int,),
            "cudaIpcOpenMemHandle": (ctypes.POINTER(pointer), _IpcHandle, ctypes.c_uint),
            "cudaIpcCloseMemHandle": (pointer,),
            "cudaIpcGetMemHandle": (ctypes.POINTER(_IpcHandle), pointer),
            "cudaMemcpy": (pointer, pointer, size, ctypes.c_int),
            "cudaMalloc": (ctypes.POINTER(pointer), size),
            "cudaFree": (pointer,),
            "cudaHostAlloc": (ctypes.POINTER(pointer), size, ctypes.c_uint),
            "cudaFreeHost": (pointer,),
            "cudaStreamCreateWithFlags": (ctypes.POINTER(pointer), ctypes.c_uint),
            "cudaStreamDestroy": (pointer,),
            "cudaStreamSynchronize": (pointer,),
            "cudaMemcpyAsync": (pointer, pointer, size, ctypes.c_int, pointer),
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
        self.set_device(device_id)
        self._call(
            "cudaIpcOpenMemHandle",
            ctypes.byref(address),
            _IpcHandle.from_buffer_copy(handle),
            _LAZY_ENABLE_PEER_ACCESS,
        )
        return address.value or 0

    def close(self, address: int, device_id: int) -> None:
        """Unmap what `open` returned. Raises CudaError."""
        self.set_device(device_id)
        self._call("cudaIpcCloseMemHandle", address)

    def export(self, address: int) -> bytes:
        """Return the handle by which another process opens memory that `allocate` returned. Raises CudaError."""
        handle = _IpcHandle()
        self._call("cudaIpcGetMemHandle", ctypes.byref(handle), address)
        return bytes(handle)

    def read(self, address: int, byte_size: int, device_id: int) -> Buffer:
        """Return a copy of device memory. Raises CudaError."""
        target = np.empty(byte_size, np.uint8)
        self.set_device(device_id)
        self._call("cudaMemcpy", target.ctypes.data, address, byte_size, _DEVICE_TO_HOST)
        return memoryview(target.data)

    def write(self, address: int, data: Buffer, device_id: int) -> None:
        """Copy `data` to device memory. Raises CudaError."""
        if not len(data):
            return
        source = np.frombuffer(data, np.uint8)
        self.set_device(device_id)
        self._call("cudaMemcpy", address, source.ctypes.data, source.nbytes, _HOST_TO_DEVICE)
        # From pageable memory it returns before the device has the bytes, and another process may read them next.
        self._call("cudaStreamSynchronize", _DEFAULT_STREAM)

    def set_device(self, device_id: int) -> None:
        """Make a device the current one of this thread."""
        self._call("cudaSetDevice", device_id)

    @contextlib.contextmanager
    def on_device(self, device_id: int) -> Iterator[None]:
        """Make a device the current one of a thread of a model, which has its own again afterwards."""
        before = ctypes.c_int(0)
        self._call("cudaGetDevice", ctypes.byref(before))
        self.set_device(device_id)
        try:
            yield
        finally:
            if before.value != device_id:
                self.set_device(before.value)

    def allocate(self, byte_size: int) -> int:
        """Return memory of the current device."""
        return self._create("cudaMalloc", byte_size)

    def free(self, address: int) -> None:
        """Release what `allocate` returned."""
        self._call("cudaFree", address)

    def allocate_pinned(self, byte_size: int) -> int:
        """Return page-locked host memory, which devices copy from and to without the CPU."""
        return self._create("cudaHostAlloc", byte_size, 0)

    def free_pinned(self, address: int) -> None:
        """Release what `allocate_pinned` returned."""
        self._call("cudaFreeHost", address)

    def create_stream(self) -> int:
        """Return a stream of the current device."""
        return self._create("cudaStreamCreateWithFlags", _NON_BLOCKING)

    def destroy_stream(self, stream: int) -> None:
        """Release a stream."""
        self._call("cudaStreamDestroy", stream)

    def wait_for(self, stream: int) -> None:
        """Wait until all work of a stream is done; other threads of Python run meanwhile."""
        self._call("cudaStreamSynchronize", stream)

    def copy_to_device(self, device: int, host: int, byte_size: int, stream: int) -> None:
        """Begin to copy from pinned memory."""
        self._call("cudaMemcpyAsync", device, host, byte_size, _HOST_TO_DEVICE, stream)

    def copy_to_host(self, host: int, device: int, byte_size: int, stream: int) -> None:
        """Begin to copy to pinned memory."""
        self._call("cudaMemcpyAsync", host, device, byte_size, _DEVICE_TO_HOST, stream)

    def copy_on_device(self, target: int, source: int, byte_size: int, stream: int) -> None:
        """Begin to copy from device memory to device memory."""
        self._call("cudaMemcpyAsync", target, source, byte_size, _DEVICE_TO_DEVICE, stream)

    def _create(self, name: str, *arguments: object) -> int:
        created = ctypes.c_void_p()
        self._call(name, ctypes.byref(created), *arguments)
        return created.value or 0

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != _SUCCESS:
            text = self._library.cudaGetErrorString(status) or b""
            raise CudaError(f"{name} failed with error {status}: {text.decode('utf-8', 'replace')}")


def load_runtime() -> CudaRuntime:
    """Return the CUDA runtime of this machine. Raises CudaError if there is none, or no GPU."""
    refusal: CudaError | None = None
    for name in _candidates():
        try:
            return CudaRuntime(ctypes.CDLL(name))
        except OSError:
            continue
        except CudaError as error:  # for example one that is newer than the driver; another one may fit
            refusal = refusal or error
    raise refusal or CudaError(
        "libcudart was not found; install the CUDA runtime, or pip install nvidia-cuda-runtime"
    )


def _candidates() -> list[str]:
    found = ctypes.util.find_library("cudart")
    packaged = [
        str(path)
        for root in dict.fromkeys([str(Path(np.__file__).parents[1]), *filter(None, sys.path)])
        for folder in ("cuda_runtime", "cu13")
        for path in sorted(Path(root).glob(f"nvidia/{folder}/lib/libcudart.so.*"), reverse=True)
    ]
    return [*_NAMES, *([found] if found else []), *packaged]


class CudaMapping:
    """An opened allocation of a client, which is closed when neither its region nor a tensor refers to it."""

    def __init__(self, runtime: CudaRuntime, name: str, address: int, device_id: int) -> None:
        self.runtime = runtime
        self.address = address
        self.device_id = device_id
        self._name = name
        self._stream = 0
        self._lock = threading.Lock()

    def read(self, offset: int, byte_size: int) -> Buffer:
        """Return a copy of a part in host memory, on any thread. Raises InferError(INTERNAL)."""
        try:
            with self.runtime.on_device(self.device_id):
                return self.runtime.read(self.address + offset, byte_size, self.device_id)
        except CudaError as error:
            raise self.failed("read", error) from error

    def copy_here(self, offset: int, tensor: DeviceTensor) -> None:
        """Copy a tensor of the same GPU to a part and wait for it, on any thread. Raises InferError(INTERNAL)."""
        runtime = self.runtime
        try:
            with runtime.on_device(self.device_id), self._lock:
                # A stream of its own: the default one would wait for the work of all models.
                self._stream = self._stream or runtime.create_stream()
                source = address_of(tensor.tensor)
                runtime.copy_on_device(self.address + offset, source, len(tensor), self._stream)
                runtime.wait_for(self._stream)
        except (CudaError, BufferError) as error:
            raise self.failed("written", error) from error

    def failed(self, verb: str, error: Exception) -> InferError:
        """Return the error of an access."""
        return internal(f"CUDA shared memory region '{excerpt(self._name)}' could not be {verb}: {error}")

    def __del__(self) -> None:
        try:
            if self._stream:
                with self.runtime.on_device(self.device_id):
                    self.runtime.destroy_stream(self._stream)
            self.runtime.close(self.address, self.device_id)
        except CudaError as error:
            _log.warning("closing CUDA shared memory region '%s' failed: %s", self._name, error)


class RegionTensor:
    """A tensor in a region, for frameworks through DLPack; it keeps the memory mapped."""

    def __init__(self, mapping: CudaMapping, offset: int, shape: Shape, datatype: DataType) -> None:
        self._mapping = mapping
        self._address = mapping.address + offset
        self._datatype = datatype
        self.shape = shape
        self.dtype = datatype.numpy

    def __dlpack__(self, *, dl_device: Device | None = None, **_: Any) -> Any:
        check_device(dl_device, self.__dlpack_device__())
        return export_memory(self, self._address, self.shape, self._datatype, self.__dlpack_device__())

    def __dlpack_device__(self) -> Device:
        return _DLPACK_KIND, self._mapping.device_id


class RegionPlace:
    """Where a client wants an output: a part of a region."""

    def __init__(self, mapping: CudaMapping, offset: int, byte_size: int) -> None:
        self._mapping = mapping
        self._offset = offset
        self.byte_size = byte_size
        self.device: Device = (_DLPACK_KIND, mapping.device_id)

    def take(self, tensor: DeviceTensor) -> None:
        """Copy a tensor of `device` here, completely. Raises InferError(INTERNAL)."""
        self._mapping.copy_here(self._offset, tensor)


class CudaRegion:
    """An opened allocation of a GPU."""

    __slots__ = ("_mapping", "byte_size", "device_id", "is_leaving", "name", "user_count")

    def __init__(self, runtime: CudaRuntime, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Open the allocation behind `handle`. Raises InferError(INVALID_ARG) with Triton's text."""
        try:
            if len(handle) != HANDLE_BYTES:
                raise CudaError(f"raw_handle has {len(handle)} bytes, a cudaIpcMemHandle_t has {HANDLE_BYTES}")
            if not 0 <= device_id < runtime.device_count:
                raise CudaError(f"device_id is {device_id}, but there are {runtime.device_count} GPUs")
            if not byte_size:
                raise CudaError("byte_size is 0")
            address = runtime.open(handle, device_id)
            _check_end(runtime, address, byte_size, device_id)
        except CudaError as error:
            raise invalid_argument(
                f"failed to register CUDA shared memory region '{name}': invalid args: {error}"
            ) from error
        self._mapping: CudaMapping | None = CudaMapping(runtime, name, address, device_id)
        self.name = name
        self.device_id = device_id
        self.byte_size = byte_size
        self.user_count = 0
        self.is_leaving = False

    @property
    def status(self) -> CudaRegionStatus:
        """The status of the region."""
        return CudaRegionStatus(self.name, self.device_id, self.byte_size)

    def check_alive(self) -> None:
        """Do nothing: a mapped allocation does not change."""

    def check_intact(self) -> None:
        """Do nothing: failed accesses raise at once."""

    @property
    def mapping(self) -> CudaMapping:
        """Its memory, until it is closed."""
        assert self._mapping is not None
        return self._mapping

    def read(self, offset: int, byte_size: int) -> Buffer:
        """Return a copy of a part of the region in host memory. Raises InferError(INTERNAL)."""
        mapping = self.mapping
        try:
            return mapping.runtime.read(mapping.address + offset, byte_size, self.device_id)
        except CudaError as error:
            raise mapping.failed("read", error) from error

    def write(self, offset: int, data: Buffer) -> None:
        """Copy `data` to a part of the region. Raises InferError(INTERNAL)."""
        mapping = self.mapping
        try:
            mapping.runtime.write(mapping.address + offset, data, self.device_id)
        except CudaError as error:
            raise mapping.failed("written", error) from error

    def tensor(self, offset: int, spec: TensorSpec) -> DeviceTensor | None:
        """Return a tensor that is a part of the region, without a copy; None where models cannot read it there."""
        mapping, shape = self.mapping, tuple(spec.shape)
        if (mapping.address + offset) % _ALIGNMENT_BYTES or spec.datatype is DataType.BYTES:
            return None
        size = spec.byte_size
        tensor = RegionTensor(mapping, offset, shape, spec.datatype)
        return DeviceTensor(
            tensor,
            device=tensor.__dlpack_device__(),
            shape=shape,
            byte_size=size,
            copy=lambda: mapping.read(offset, size),
        )

    def place(self, offset: int, byte_size: int) -> RegionPlace:
        """Return a part of the region, to which a model's thread can copy an output."""
        return RegionPlace(self.mapping, offset, byte_size)

    def close(self) -> None:
        """Close the allocation, or when the last tensor in it is released."""
        self._mapping = None


def _check_end(runtime: CudaRuntime, address: int, byte_size: int, device_id: int) -> None:
    """Check that the allocation has the given size, by reading its last byte. Raises CudaError."""
    try:
        runtime.read(address + byte_size - 1, 1, device_id)
    except CudaError as error:
        runtime.close(address, device_id)
        raise CudaError(f"byte_size {byte_size} is beyond the allocation ({error})") from error

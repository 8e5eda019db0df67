"""The gRPC calls of shared memory: status, register, unregister, for system and for CUDA regions."""

from collections.abc import Callable, Mapping

from naiad.core.tensor import Buffer
from naiad.frontend.shared_memory import SharedMemoryControl
from naiad.protocol.control_grpc import EMPTY_RESPONSE
from naiad.protocol.shared_memory_grpc import (
    decode_cuda_registration,
    decode_name,
    decode_system_registration,
    encode_cuda_status,
    encode_system_status,
)


class SharedMemoryCalls:
    """The handlers of the calls."""

    def __init__(self, regions: SharedMemoryControl) -> None:
        self._regions = regions

    def handlers(self) -> Mapping[str, Callable[[Buffer], bytes]]:
        """Return the handlers by the names of their methods."""
        return {
            "SystemSharedMemoryStatus": self._system_status,
            "SystemSharedMemoryRegister": self._register_system,
            "SystemSharedMemoryUnregister": self._unregister_system,
            "CudaSharedMemoryStatus": self._cuda_status,
            "CudaSharedMemoryRegister": self._register_cuda,
            "CudaSharedMemoryUnregister": self._unregister_cuda,
        }

    def _system_status(self, message: Buffer) -> bytes:
        return encode_system_status(self._regions.system_status(decode_name(message)))

    def _cuda_status(self, message: Buffer) -> bytes:
        return encode_cuda_status(self._regions.cuda_status(decode_name(message)))

    def _register_system(self, message: Buffer) -> bytes:
        self._regions.register_system(*decode_system_registration(message))
        return EMPTY_RESPONSE

    def _register_cuda(self, message: Buffer) -> bytes:
        self._regions.register_cuda(*decode_cuda_registration(message))
        return EMPTY_RESPONSE

    def _unregister_system(self, message: Buffer) -> bytes:
        self._regions.unregister_system(decode_name(message))
        return EMPTY_RESPONSE

    def _unregister_cuda(self, message: Buffer) -> bytes:
        self._regions.unregister_cuda(decode_name(message))
        return EMPTY_RESPONSE

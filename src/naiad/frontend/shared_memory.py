"""What the shared-memory routes and calls ask of the regions."""

from collections.abc import Sequence
from typing import Protocol

from naiad.core.shared_memory import CudaRegionStatus, SystemRegionStatus


class SharedMemoryControl(Protocol):
    """Registered regions; every method is called on the loop and raises InferError with Triton's texts."""

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a part of a POSIX shared-memory object."""

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Register an allocation of a GPU."""

    def unregister_system(self, name: str = "") -> None:
        """Unregister a system region, or all of them."""

    def unregister_cuda(self, name: str = "") -> None:
        """Unregister a CUDA region, or all of them."""

    def system_status(self, name: str = "") -> Sequence[SystemRegionStatus]:
        """Return one system region or all."""

    def cuda_status(self, name: str = "") -> Sequence[CudaRegionStatus]:
        """Return one CUDA region or all."""

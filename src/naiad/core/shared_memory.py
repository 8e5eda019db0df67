"""The status of registered shared-memory regions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystemRegionStatus:
    """A registered part of a POSIX shared-memory object."""

    name: str
    key: str
    """The object's name as the client sent it."""
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class CudaRegionStatus:
    """A registered allocation of a GPU's memory."""

    name: str
    device_id: int
    byte_size: int

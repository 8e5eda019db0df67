"""Memory of a device that is no framework's, as a DLPack tensor; and where the tensor of a framework is."""

from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.device_tensor import Device
from naiad.core.tensor import Shape
from naiad.worker.api.dlpack import export_array, header_of


def export_memory(owner: object, address: int, shape: Shape, datatype: DataType, device: Device) -> Any:
    """Return a capsule on C-contiguous memory of a device; it keeps `owner` alive until its consumer is done."""
    # numpy makes the capsule, and does not read the memory.
    capsule = export_array(np.asarray(_Memory(owner, address, shape, datatype)), datatype.value)
    place = header_of(capsule).device
    place.kind, place.number = device
    return capsule


def check_device(wanted: Device | None, device: Device) -> None:
    """Refuse a consumer that asks for the tensor on another device. Raises BufferError."""
    if wanted not in (None, device):
        raise BufferError(f"this tensor is on DLPack device {device}, not on {wanted}")


def address_of(tensor: Any, **options: Any) -> int:
    """Return where a C-contiguous tensor is; it has to outlive the use. `__dlpack__` gets the options."""
    capsule = tensor.__dlpack__(**options)
    header = header_of(capsule)
    address: int = (header.data or 0) + header.byte_offset
    return address


class _Memory:
    """The memory of a tensor as an array of the host, which keeps its owner alive."""

    def __init__(self, owner: object, address: int, shape: Shape, datatype: DataType) -> None:
        dtype = np.dtype(np.uint16) if datatype is DataType.BF16 else np.dtype(datatype.numpy)
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "typestr": dtype.str,
        }

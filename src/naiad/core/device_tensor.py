"""Tensors that stay on a device: between the steps of an ensemble, and in the memory of a client there.

Theory of operation. All data of requests and responses is bytes in host memory, with two exceptions. One is an output
of a step that later steps alone read. If the models of all these steps can, it remains a tensor of its framework on
its device, in a `DeviceTensor`, which takes the place of a buffer. The other is CUDA shared memory: see below.

1. The ensemble determines these outputs from its graph, when it is loaded, and marks them in the headers of its steps
   (`RequestedOutput.stays_on_device`, `RequestHeader.is_on_device`).
2. The assembler of the first model wraps what its framework returned for such an output, or a slice of it for each
   request of a batch. Anything that it cannot judge, it copies to the host.
3. The assembler of the next model passes the tensor on if it is on the instance's own device and alone in its batch.
   In all other cases it copies it to the host. Both copies are made by the instance's thread, not by the event loop.

Streams: an instance returns a tensor only when its values are complete, so that any stream of any thread may read it.
The consumer imports it through `__dlpack__`, whose `stream` argument orders the work of the two frameworks where one
is still in progress. The consumer holds the tensor until its own run is complete, and does not write to it, since
other steps may read the same memory. The memory is free when the request of the ensemble has ended.

CUDA shared memory: the engine makes a `DeviceTensor` of an input in a region of a client, and marks outputs that the
client wants in one (`RequestHeader.on_device`), if the model takes tensors of devices. From there on steps 2 and 3
apply. The instance's thread copies such an output to its `DevicePlace`, on the device, before it returns.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, cast

from naiad.core.tensor import Buffer, Shape

Device: TypeAlias = tuple[int, int]
"""Kind and number of a device, as `__dlpack_device__` returns them: (2, 1) is CUDA's GPU 1."""


class DeviceTensor:
    """A tensor of a framework on a device, in place of a buffer; its length is its size in bytes."""

    __slots__ = ("_byte_size", "_copy", "_on_host", "device", "shape", "tensor")

    def __init__(
        self, tensor: Any, *, device: Device, shape: Shape, byte_size: int, copy: Callable[[], Buffer]
    ) -> None:
        """`tensor` has the methods of DLPack and is C-contiguous. `copy` returns its bytes, or raises InferError."""
        self.tensor = tensor
        self.device = device
        self.shape = shape
        """The shape of the tensor itself; the header of a request may have another for the same elements."""
        self._byte_size = byte_size
        self._copy = copy
        self._on_host: Buffer | None = None

    def __len__(self) -> int:
        return self._byte_size

    def to_host(self) -> Buffer:
        """Return the bytes in host memory, copied at the first call. Raises InferError(INTERNAL)."""
        if self._on_host is None:
            # Two threads may both copy at the same time; the bytes are the same.
            self._on_host = self._copy()
        return self._on_host

    def as_buffer(self) -> Buffer:
        """Return itself, typed as the buffer in whose place it is."""
        return cast("Buffer", self)


class DevicePlace(Protocol):
    """Memory of a client on a device, for one output."""

    @property
    def byte_size(self) -> int:
        """Its size."""

    @property
    def device(self) -> Device:
        """Where it is."""

    def take(self, tensor: DeviceTensor) -> None:
        """Copy a tensor of `device` here, completely, on any thread. Raises InferError(INTERNAL)."""


def in_host_memory(data: Buffer | DeviceTensor) -> Buffer:
    """Return the bytes of an input or output. Raises InferError(INTERNAL) if a copy from a device fails."""
    return data.to_host() if isinstance(data, DeviceTensor) else data

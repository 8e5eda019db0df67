"""The outputs of outstanding requests in shared memory: a slot each, in one region."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from naiad.core.request import RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.tensor import Buffer, TensorSpec

if TYPE_CHECKING:
    from naiad.perf.inputs.memory_blocks import MemoryBlock

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

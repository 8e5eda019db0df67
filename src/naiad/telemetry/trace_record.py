"""What is known of one traced request, and its form in Triton's trace files."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.tensor import Shape

if TYPE_CHECKING:
    from naiad.telemetry.trace_context import SpanIds

MAX_ELEMENTS = 1 << 20
"""A larger tensor is traced without its elements."""

Stamp = tuple[str, int]


class TracedTensor:
    """A copy of a tensor as it was at one moment of a request."""

    __slots__ = ("activity", "data", "datatype", "name", "shape")

    def __init__(self, activity: str, name: str, datatype: DataType, shape: Shape, data: bytes) -> None:
        self.activity = activity
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.data = data

    def values(self) -> str:
        """Return the elements, separated by commas; none of a tensor that is too large."""
        if self.datatype is DataType.BYTES:
            return ",".join(_strings(self.data))
        array = np.frombuffer(self.data, self.datatype.numpy)
        return "" if array.size > MAX_ELEMENTS else ",".join([str(value) for value in array.tolist()])


def _strings(data: bytes) -> Iterator[str]:
    position = count = 0
    while position + 4 <= len(data) and count < MAX_ELEMENTS:
        size = int.from_bytes(data[position : position + 4], "little")
        yield data[position + 4 : position + 4 + size].decode("utf-8", "replace")
        position += 4 + size
        count += 1


class TraceRecord:
    """One trace."""

    __slots__ = (
        "failure",
        "id",
        "model_name",
        "model_version",
        "parent_id",
        "request_id",
        "spans",
        "stamps",
        "tensors",
    )

    def __init__(self, number: int, model_name: str, request_id: str, parent_id: int) -> None:
        self.id = number
        self.model_name = model_name
        self.model_version = ""
        self.request_id = request_id
        self.parent_id = parent_id
        """0 for none."""
        self.stamps: list[Stamp] = []
        """Name and monotonic ns."""
        self.tensors: list[TracedTensor] = []
        self.failure = ""
        """Why the request failed; empty when it has not."""
        self.spans: SpanIds | None = None
        """Mode opentelemetry: its spans."""

    def entries(self) -> Sequence[dict[str, Any]]:
        """Return the objects of a trace file: the header, a timestamp each, a tensor each."""
        header: dict[str, Any] = {"id": self.id, "model_name": self.model_name}
        header["model_version"] = int(self.model_version) if self.model_version.isdigit() else -1
        if self.request_id:
            header["request_id"] = self.request_id
        if self.parent_id:
            header["parent_id"] = self.parent_id
        stamps = [{"id": self.id, "timestamps": [{"name": name, "ns": ns}]} for name, ns in self.stamps]
        return [header, *stamps, *map(self._tensor, self.tensors)]

    def _tensor(self, tensor: TracedTensor) -> dict[str, Any]:
        return {
            "id": self.id,
            "activity": tensor.activity,
            "tensor": {
                "name": tensor.name,
                "data": tensor.values(),
                "shape": ",".join(map(str, tensor.shape)),
                "dtype": tensor.datatype.value,
            },
        }

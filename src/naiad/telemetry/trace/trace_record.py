"""The data of one traced request, its form in Triton's trace files, and its W3C Trace Context."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from naiad.core.datatype import DataType
from naiad.core.tensor import Shape

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_MAX_STATE_BYTES = 512
"""W3C Trace Context 3.3.1.5: the minimum length that has to be propagated."""
# Not the global generator, which other code may have seeded.
_random = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of another process, from `traceparent` and `tracestate`."""

    trace_id: int
    span_id: int
    flags: int = 1
    state: str = ""


@dataclass(frozen=True, slots=True)
class SpanIds:
    """The span ids of one traced request, known before any of the spans has ended."""

    trace_id: int
    request: int
    """The span of the model."""
    root: int = 0
    """The span around it; 0 for a step of an ensemble and a call of a model, which have no such span."""
    parent: TraceContext | None = None
    """The parent span of all, if there is one."""


def parse_trace_context(traceparent: bytes, tracestate: bytes = b"") -> TraceContext | None:
    """Return the trace context in two fields of a request; None if they are not valid (W3C Trace Context 3.2.2)."""
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    if not (int(trace_id, 16) and int(span_id, 16)):
        return None
    state = tracestate.decode("latin-1") if len(tracestate) <= _MAX_STATE_BYTES else ""
    return TraceContext(int(trace_id, 16), int(span_id, 16), int(flags, 16), state)


def format_traceparent(trace_id: int, span_id: int) -> str:
    """Return a recorded span as a `traceparent` field."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def new_spans(parent: TraceContext | None) -> SpanIds:
    """Return the spans of a client's request, in the trace of `parent` or in a new one."""
    trace_id = parent.trace_id if parent is not None else new_id(128)
    return SpanIds(trace_id, new_id(64), new_id(64), parent)


def nested_spans(within: SpanIds) -> SpanIds:
    """Return the spans of a request made by another traced request."""
    return SpanIds(within.trace_id, new_id(64), parent=TraceContext(within.trace_id, within.request))


def new_id(bits: int) -> int:
    """Return a random id of a span (64 bits) or of a trace (128)."""
    return _random.getrandbits(bits) or 1


MAX_ELEMENTS = 1 << 20
"""A larger tensor is traced without its elements."""

Stamp = tuple[str, int]


class TracedTensor:
    """A copy of a tensor at one moment of a request."""

    __slots__ = ("activity", "data", "datatype", "name", "shape")

    def __init__(self, activity: str, name: str, datatype: DataType, shape: Shape, data: bytes) -> None:
        self.activity = activity
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.data = data

    def values(self) -> str:
        """Return the elements, separated by commas; nothing for a tensor that is too large."""
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
        """Why the request failed; empty if it succeeded."""
        self.spans: SpanIds | None = None
        """Mode opentelemetry: its spans."""

    def entries(self) -> Sequence[dict[str, Any]]:
        """Return the objects for a trace file: the header, one per timestamp, one per tensor."""
        header: dict[str, Any] = {"id": self.id, "model_name": self.model_name}
        header["model_version"] = int(self.model_version) if self.model_version.isdigit() else -1
        if self.request_id:
            header["request_id"] = self.request_id
        if self.parent_id:
            header["parent_id"] = self.parent_id
        stamps = [{"id": self.id, "timestamps": [{"name": name, "ns": ns}]} for name, ns in self.stamps]
        return [header, *stamps, *map(self._tensor, self.tensors)]

    def encoded(self) -> bytes:
        """Return these objects as they stand in a JSON array."""
        return b",\n".join([encode_json(entry) for entry in self.entries()])

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


def encode_json(value: object) -> bytes:
    """Return a value as JSON."""
    try:
        return orjson.dumps(value)
    except TypeError:
        # Integers of more than 64 bits, and strings that are not Unicode.
        return json.dumps(value).encode()

"""Recording of requests: each becomes a line, with its outcome, when its final response is there.

Steps of ensembles and calls of models by models are not recorded: a replay of the client's request repeats them.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from naiad.core.errors import InferError
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.telemetry.caller import caller_of
from naiad.telemetry.traffic.writer import Payload, TrafficWriter

_now_ns = time.monotonic_ns
OK = "OK"
"""The outcome of a request without an error."""


class Recorder:
    """Records the requests of clients. Used on the event loop only."""

    def __init__(self, writer: TrafficWriter, *, has_payloads: bool = False) -> None:
        self._writer = writer
        self._has_payloads = has_payloads

    def begin(self, request: InferRequest) -> "Recording | None":
        """Record a request before its submission, unless it comes from within the server."""
        caller = caller_of(request.on_response)
        transport: str = getattr(caller, "transport", "")
        if not transport or not self._writer.is_open:
            return None
        recording = Recording(request, caller, transport, self._writer)
        if self._has_payloads:
            recording.payload = _payload(request)
        request.on_response = recording.take
        return recording

    def close(self) -> None:
        """Write what waits to be written, within a time limit."""
        self._writer.close()


class Recording:
    """A request in progress that is recorded. For the tracer it stands for the frontend."""

    __slots__ = (
        "_arrival_ns",
        "_error",
        "_header",
        "_id",
        "_on_response",
        "_writer",
        "payload",
        "protocol",
        "trace_fields",
        "transport",
    )

    def __init__(self, request: InferRequest, caller: object, transport: str, writer: TrafficWriter) -> None:
        self._on_response: Callable[[InferRequest, InferResponse], object] = request.on_response
        self._header = request.header
        self._id = request.id
        self._arrival_ns = request.arrival_ns
        self._error: InferError | None = None
        self._writer = writer
        self.payload: Payload | None = None
        self.transport = transport
        self.protocol: str = getattr(caller, "protocol", "")
        self.trace_fields: Any = getattr(caller, "trace_fields", None)

    def take(self, request: InferRequest, response: InferResponse) -> None:
        """Pass a response on; the final one completes the line."""
        if response.error is not None:
            self._error = response.error
        if response.final:
            self.end(self._error)
        self._on_response(request, response)

    def end(self, error: InferError | None) -> None:
        """Queue the line of a request that was answered or rejected."""
        members = {
            "arrival_ns": self._arrival_ns,
            "duration_ns": _now_ns() - self._arrival_ns,
            "outcome": OK if error is None else error.code.name,
            "transport": self.transport,
            **_members_of(self._header),
        }
        if self._id:
            members["id"] = self._id
        self._writer.put(_encode(members), self.payload)


def _payload(request: InferRequest) -> Payload:
    """Return references to the data of a request, which nothing changes later."""
    elsewhere = request.header.shared_memory
    return [
        None if spec.name in elsewhere else data
        for spec, data in zip(request.header.inputs, request.data, strict=False)
    ]


def _members_of(header: RequestHeader) -> dict[str, Any]:
    """Return the members of a line for a header, without those that have their default."""
    # A forwarded header field is a parameter of the changed copy only.
    parameters: Mapping[str, object] = (header.origin or header).parameters
    members: dict[str, Any] = {
        "model": header.model_name,
        "inputs": [
            {"name": spec.name, "datatype": spec.datatype.value, "shape": spec.shape} for spec in header.inputs
        ],
    }
    more = {
        "version": header.model_version,
        "outputs": [output.name for output in header.outputs],
        "parameters": dict(parameters),
        "sequence_id": header.sequence_id,
        "sequence_start": header.sequence_start,
        "sequence_end": header.sequence_end,
        "priority": header.priority,
        "timeout_us": header.timeout_us,
    }
    members.update((name, value) for name, value in more.items() if value)
    return members


def _encode(members: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(members)
    except TypeError:
        # Integers of more than 64 bits, and strings that are not Unicode.
        return json.dumps(members).encode()

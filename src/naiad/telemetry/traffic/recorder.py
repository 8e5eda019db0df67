"""Recording of requests: each becomes a line, with its outcome, when its final response is there.

Steps of ensembles and calls of models by models are not recorded: a replay of the client's request repeats them.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from naiad.core.bounded_cache import BoundedCache
from naiad.core.errors import InferError
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.telemetry.trace.record import encode_json
from naiad.telemetry.trace.tracer import caller_of
from naiad.telemetry.traffic.writer import Payload, TrafficWriter

_now_ns = time.monotonic_ns
OK = "OK"
"""The outcome of a request without an error."""


class Recorder:
    """Records the requests of clients. Used on the event loop only."""

    def __init__(self, writer: TrafficWriter, *, has_payloads: bool = False) -> None:
        self._writer = writer
        self._has_payloads = has_payloads
        self._members: BoundedCache[RequestHeader, bytes] = BoundedCache(
            max_entries=1024, max_bytes=1 << 20, max_entry_bytes=1 << 12
        )
        """The encoded members of headers that clients repeat."""

    def begin(self, request: InferRequest) -> "Recording | None":
        """Record a request before its submission, unless it comes from within the server."""
        # hot: every request of a server that records
        caller = caller_of(request.on_response)
        transport: str = getattr(caller, "transport", "")
        if not transport or not self._writer.is_open:
            return None
        recording = Recording(request, caller, transport, self)
        if self._has_payloads:
            recording.payload = _payload(request)
        request.on_response = recording.take
        return recording

    def members_of(self, header: RequestHeader) -> bytes:
        """Return the members of a line for a header, encoded and without braces."""
        found = self._members.get(header)
        if found is None:
            found = encode_json(_members_of(header))[1:-1]
            self._members.remember(header, found, len(found))
        return found

    def write(self, line: bytes, payload: Payload | None) -> None:
        """Queue a line."""
        self._writer.put(line, payload)

    def close(self) -> None:
        """Write what waits to be written, within a time limit."""
        self._writer.close()


class Recording:
    """A request in progress that is recorded. For the tracer it stands for the frontend."""

    __slots__ = ("_caller", "_error", "_header", "_on_response", "_recorder", "payload", "transport")

    def __init__(self, request: InferRequest, caller: object, transport: str, recorder: Recorder) -> None:
        self._recorder = recorder
        self._caller = caller
        self._on_response: Callable[[InferRequest, InferResponse], object] = request.on_response
        self._header = request.header
        self._error: InferError | None = None
        self.payload: Payload | None = None
        self.transport = transport

    @property
    def protocol(self) -> str:
        """The protocol of the frontend."""
        return getattr(self._caller, "protocol", "")

    @property
    def trace_fields(self) -> Any:
        """The method of the frontend; None if it has none."""
        return getattr(self._caller, "trace_fields", None)

    def take(self, request: InferRequest, response: InferResponse) -> None:
        """Pass a response on; the final one completes the line."""
        if response.error is not None:
            self._error = response.error
        if response.final:
            self.end(request, self._error)
        self._on_response(request, response)

    def end(self, request: InferRequest, error: InferError | None) -> None:
        """Queue the line of a request that was answered or rejected."""
        line = b'{"arrival_ns":%d,"duration_ns":%d,"outcome":"%b","transport":"%b",%b%b}\n' % (
            request.arrival_ns,
            _now_ns() - request.arrival_ns,
            (OK if error is None else error.code.name).encode(),
            self.transport.encode(),
            self._recorder.members_of(self._header),
            b',"id":' + encode_json(request.id) if request.id else b"",
        )
        self._recorder.write(line, self.payload)


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

"""Tracing: its settings, which requests to trace, and their times.

Without tracing `begin` is not called at all. A traced request has its `on_response` replaced by that of its `Trace`,
which records the times around its response.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from naiad.core.device_tensor import DeviceTensor, in_host_memory
from naiad.core.environment.model_call import ModelCall
from naiad.core.errors import InferError, excerpt, invalid_argument, unsupported
from naiad.core.model import name_of
from naiad.core.request import ExecutionTimes, InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.options.trace import (
    OPENTELEMETRY,
    TENSORS,
    TIMESTAMPS,
    TRITON,
    TraceOptions,
    parse_count,
    parse_level,
    parse_log_frequency,
    parse_rate,
)
from naiad.telemetry.trace.file import TraceFile, TraceSeries, TraceSink, TraceWriter, obstacle
from naiad.telemetry.trace.trace_record import (
    SpanIds,
    TraceContext,
    TracedTensor,
    TraceRecord,
    format_traceparent,
    nested_spans,
    new_spans,
    parse_trace_context,
)

Changes = Mapping[str, Sequence[str] | None]
"""Name of a setting to its new values; None resets it to the initial or the server's value."""

_PARSERS: Mapping[str, tuple[str, Any]] = {
    "trace_level": ("level", lambda values, mode: parse_level(values)),
    "trace_rate": ("rate", lambda values, mode: parse_rate(values[0], mode)),
    "trace_count": ("count", lambda values, mode: parse_count(values[0])),
    "log_frequency": ("log_frequency", lambda values, mode: parse_log_frequency(values[0])),
}


class TraceSettings:
    """The current settings. Used on the event loop only."""

    def __init__(self, start: TraceOptions) -> None:
        self._start = start
        self._server: dict[str, Any] = {}
        self._models: dict[str, dict[str, Any]] = {}

    def of_server(self) -> TraceOptions:
        """Return the settings of models without their own."""
        return replace(self._start, **self._server)

    def of_model(self, model: str) -> TraceOptions:
        """Return the settings of a model."""
        return replace(self._start, **{**self._server, **self._models.get(model, {})})

    def own(self) -> Mapping[str, TraceOptions]:
        """Return the settings of models that have their own."""
        return {model: self.of_model(model) for model in self._models}

    def note_count(self, model: str, left: int) -> None:
        """Note how many traces are left of a count that was set for a model, or for the server with "".

        Triton: other changes keep this number, while a count from the start of the server begins again.
        """
        table = self._models.get(model, {}) if model else self._server
        if "count" in table:
            table["count"] = left

    def change(self, model: str, changes: Changes) -> None:
        """Change settings of a model, or of the server with "". Raises InferError without any change."""
        table = dict(self._models.get(model, {}) if model else self._server)
        for name, values in changes.items():
            if name == "trace_file":
                raise unsupported("trace file location can not be updated through network protocol")
            if name not in _PARSERS:
                continue  # Triton: also trace_mode, which cannot be changed
            field, parse = _PARSERS[name]
            if values is None:
                table.pop(field, None)
            elif values:
                table[field] = _parsed(parse, values, self._start.mode)
        self._check(replace(self._start, **({**self._server, **table} if model else table)))
        if not model:
            self._server = table
        elif table:
            self._models[model] = table
        else:
            self._models.pop(model, None)

    def _check(self, options: TraceOptions) -> None:
        if options.lacks_file:
            raise invalid_argument(
                f"trace_level {options.level[0]} needs a trace file; start the server with --trace-config "
                "triton,file=<path>"
            )


def _parsed(parse: Any, values: Sequence[str], mode: str) -> Any:
    try:
        return parse(values, mode)
    except ValueError as error:
        raise invalid_argument(str(error)) from None


def unknown_model(name: str) -> InferError:
    """Return Triton's error for trace settings of an unknown model."""
    return invalid_argument(f"Request for unknown model : {excerpt(name)}")


_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns
_SAMPLED = 1

OnResponse = Callable[[InferRequest, InferResponse], object]

_ARRIVAL = {"HTTP": ("HTTP_RECV_START", "HTTP_RECV_END"), "GRPC": ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END")}
_SENDING = {"HTTP": ("HTTP_SEND_START", "HTTP_SEND_END"), "GRPC": ("GRPC_SEND_START", "GRPC_SEND_END")}


class _Sampler:
    """Counts the requests for one set of settings."""

    __slots__ = ("_open_count", "left", "options", "seen", "series")

    def __init__(self, options: TraceOptions) -> None:
        self.options = options
        self.seen = 0
        self.left = options.count
        # Triton: compares the traces with all requests, which are as many at rate 1 only.
        self.series = TraceSeries(options.log_frequency, is_counted=options.count > 0 and options.rate == 1)
        self._open_count = 0
        """Number of open traces."""

    @property
    def options_left(self) -> TraceOptions:
        """The settings with the number of traces left of the count."""
        return replace(self.options, count=self.left)

    def begin(self) -> None:
        """Count a new trace, of a sampled request or within one."""
        self._open_count += 1

    def put_back(self) -> None:
        """Sample another request in place of one that was rejected."""
        if self.options.count > 0:
            self.left += 1

    def end(self) -> bool:
        """Count the end of a trace; return whether it is the last one of a count."""
        self._open_count -= 1
        return not self.left and not self._open_count and self.options.count > 0 and self.options.rate == 1

    def takes(self) -> bool:
        """Return whether this request is to be traced."""
        if not self.options.is_on or not self.left or not self.options.rate:
            return False
        self.seen += 1
        if self.seen < self.options.rate:
            return False
        self.seen = 0
        if self.left > 0:
            self.left -= 1
        return True


class Tracer:
    """The traces of a server. Used on the event loop only."""

    def __init__(self, options: TraceOptions, sink: TraceSink | None = None) -> None:
        """`sink` is the destination of traces, by default from the options. Raises InferError if not installed."""
        self.settings = TraceSettings(options)
        self._writer = TraceWriter(sink or _sink_of(options))
        self._makes_spans = options.mode == OPENTELEMETRY
        self._numbers = count(1)
        self._server = _Sampler(options)
        self._models: dict[str, _Sampler] = {}
        self._check_file(options)

    @property
    def is_on(self) -> bool:
        """Whether any request may be traced."""
        return self._server.options.is_on or any(sampler.options.is_on for sampler in self._models.values())

    def change(self, model: str, changes: Changes) -> None:
        """Change settings of a model, or of the server with "". Raises InferError without any change."""
        for name, sampler in {"": self._server, **self._models}.items():
            self.settings.note_count(name, sampler.left)
        self.settings.change(model, changes)
        before = {"": self._server, **self._models}
        if not model:
            self._server = _Sampler(self.settings.of_server())
        self._models = {name: self._sampler(name, options) for name, options in self.settings.own().items()}
        now = {"": self._server, **self._models}
        for name, sampler in before.items():
            if now.get(name) is not sampler:
                self._writer.end(sampler.series, is_complete=False)
        self._check_file(self.settings.of_model(model))

    def _check_file(self, options: TraceOptions) -> None:
        """Log a file that cannot be written, before the first trace is lost."""
        if options.is_on and options.mode == TRITON and (error := obstacle(options.file, options.log_frequency)):
            self._writer.report(error)

    def options_of(self, model: str) -> TraceOptions:
        """Return the settings of a model, or of the server with "", with the number of traces left of the count."""
        return self._models.get(model, self._server).options_left if model else self._server.options_left

    def _sampler(self, model: str, options: TraceOptions) -> _Sampler:
        known = self._models.get(model)
        # Triton: a change starts a new series; a change of another model does not.
        return known if known is not None and known.options_left == options else _Sampler(options)

    def begin(self, request: InferRequest) -> "Trace | None":
        """Trace a request before its submission, if it is selected; `Trace.drop` must follow if it is rejected."""
        caller = caller_of(request.on_response)
        model = name_of(request.header.model_name)
        # Triton: the steps of an ensemble are traced with it, and a call of a model with the request that it names.
        whole = request.traced_with if isinstance(request, ModelCall) else getattr(caller, "request", None)
        parent: Trace | None = None
        client: TraceContext | None = None
        if isinstance(request, ModelCall) or isinstance(whole, InferRequest):
            parent = _trace_of(whole)
            if parent is None:
                return None
            sampler = parent.sampler
        else:
            sampler = self._models.get(model, self._server)
            client = _context_of(caller, request) if self._makes_spans else None
            # Triton: requests of traced clients are traced as well, independent of rate and count.
            is_taken = sampler.options.is_on if client is not None else sampler.takes()
            if not is_taken:
                return None
        number = next(self._numbers)
        record = TraceRecord(number, model, request.id, parent.record.id if parent else 0)
        if self._makes_spans:
            record.spans = new_spans(client) if parent is None else _within(parent)
        trace = Trace(record, sampler, request.on_response, getattr(caller, "protocol", ""), self._writer)
        trace.is_sampled = parent is None and client is None
        trace.start(request)
        return trace

    def close(self) -> None:
        """Write waiting traces."""
        self._writer.close()


def _sink_of(options: TraceOptions) -> TraceSink:
    if options.mode != OPENTELEMETRY:
        return TraceFile(options.file)
    try:
        # Not at the top: it is an extra, and takes a third of a second to import.
        from naiad.telemetry.trace.span_export import SpanExport
    except ImportError as error:
        raise unsupported(
            f"--trace-config mode=opentelemetry needs OpenTelemetry: pip install 'naiad[otel]' ({error})"
        ) from None
    if TENSORS in options.level:
        _log.warning("trace level TENSORS has no effect: mode opentelemetry traces TIMESTAMPS only")
    return SpanExport(options.open_telemetry)


def _context_of(caller: object, request: InferRequest) -> TraceContext | None:
    """Return the span of the client that made a request, if the client sent one and records it."""
    find = getattr(caller, "trace_fields", None)
    if find is None:
        return None
    traceparent, tracestate = find(request)
    context = parse_trace_context(traceparent, tracestate) if traceparent else None
    return context if context is not None and context.flags & _SAMPLED else None


def _within(parent: "Trace") -> SpanIds | None:
    spans = parent.record.spans
    return None if spans is None else nested_spans(spans)


class Trace:
    """One request that is traced."""

    __slots__ = ("_on_response", "_protocol", "_writer", "is_sampled", "options", "record", "sampler")

    def __init__(
        self, record: TraceRecord, sampler: _Sampler, on_response: OnResponse, protocol: str, writer: TraceWriter
    ) -> None:
        self.record = record
        self.sampler = sampler
        self.options = sampler.options
        self._on_response = on_response
        self._protocol = protocol
        self._writer = writer
        self.is_sampled = False
        """Whether it counts: traces of steps, of calls and of requests of traced clients do not."""

    def start(self, request: InferRequest) -> None:
        """Record the arrival, and hook in the recording of the other times."""
        self.sampler.begin()
        if TIMESTAMPS in self.options.level:
            # The transport knows when a request was complete.
            self.record.stamps += [(name, request.arrival_ns) for name in _ARRIVAL.get(self._protocol, ())]
            now_ns = _now_ns()
            self.record.stamps += [("REQUEST_START", now_ns), ("QUEUE_START", now_ns)]
            if request.times is None:
                request.times = ExecutionTimes()
            spans = self.record.spans
            if spans is not None:
                request.times.traceparent = format_traceparent(spans.trace_id, spans.request)
        if TENSORS in self.options.level and self.record.spans is None:
            self.record.tensors += [
                TracedTensor("TENSOR_QUEUE_INPUT", spec.name, spec.datatype, spec.shape, _copy_of(data))
                for spec, data in zip(request.header.inputs, request.data, strict=False)
            ]
        request.on_response = self.take

    def drop(self) -> None:
        """Discard the trace of a request that was rejected at its submission."""
        if self.is_sampled:
            self.sampler.put_back()
        self._end()

    def _end(self) -> None:
        if self.sampler.end():
            self._writer.end(self.sampler.series, is_complete=True)

    def take(self, request: InferRequest, response: InferResponse) -> None:
        """Record a response on its way to the caller."""
        record = self.record
        record.model_version = response.header.model_version
        if response.error is not None:
            record.failure = response.error.message or response.error.code.name
        if TENSORS in self.options.level and record.spans is None:
            record.tensors += [
                TracedTensor("TENSOR_BACKEND_OUTPUT", spec.name, spec.datatype, spec.shape, _copy_of(data))
                for spec, data in zip(response.header.outputs, response.data, strict=False)
            ]
        if TIMESTAMPS not in self.options.level:
            self._on_response(request, response)
        else:
            self._note_response(request, response)
        if response.final:
            self._writer.put(record, self.sampler.series)
            self._end()

    def _note_response(self, request: InferRequest, response: InferResponse) -> None:
        stamps = self.record.stamps
        if response.final:
            self._note_execution(request)
        stamps.append(("INFER_RESPONSE_COMPLETE", _now_ns()))
        sending = _SENDING.get(self._protocol)
        if sending is not None:
            stamps.append((sending[0], _now_ns()))
        self._on_response(request, response)
        if sending is not None:
            stamps.append((sending[1], _now_ns()))
        if response.final:
            stamps.append(("REQUEST_END", _now_ns()))

    def _note_execution(self, request: InferRequest) -> None:
        times = request.times
        if times is None or not times.exec_end_ns:
            return  # never executed: rejected, cached, or an ensemble
        self.record.stamps += [
            ("COMPUTE_START", times.exec_start_ns),
            ("COMPUTE_INPUT_END", times.compute_start_ns),
            ("COMPUTE_OUTPUT_START", times.compute_end_ns),
            ("COMPUTE_END", times.exec_end_ns),
        ]


def _trace_of(request: InferRequest | None) -> Trace | None:
    """Return the trace of a submitted request; other objects may stand between the request and it."""
    taker = getattr(getattr(request, "on_response", None), "__self__", None)
    while taker is not None and not isinstance(taker, Trace):
        taker = getattr(getattr(taker, "on_next", None), "__self__", None)
    return taker


def _copy_of(data: Buffer | DeviceTensor) -> bytes:
    try:
        return bytes(in_host_memory(data))
    except InferError as error:
        # The request itself may not need the copy: it goes on.
        _log.warning("a tensor is traced without its elements: %s", error.message)
        return b""


def caller_of(on_response: Callable[..., object]) -> object:
    """Return the object whose method takes the responses of a request; None if it is not a method.

    Frontends have the attributes `protocol` and `transport`, runs of ensembles have `request`.
    """
    function = on_response.func if isinstance(on_response, partial) else on_response
    return getattr(function, "__self__", None)

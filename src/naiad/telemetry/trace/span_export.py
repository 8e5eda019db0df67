"""Traces as OpenTelemetry spans, sent to a collector over OTLP/HTTP.

Imported only by a server whose trace mode is `opentelemetry`: it needs the extra `naiad[otel]`.

Triton: a request is a span `InferRequest` with the times of its transport, in it a span with the name of the model,
in that a span `compute`. Steps of ensembles and calls of models have the latter two, inside the span of their caller.
"""

import time
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from naiad.core.errors import encodable
from naiad.core.version import __version__
from naiad.options.trace import OpenTelemetryOptions
from naiad.telemetry.trace.file import TraceSeries
from naiad.telemetry.trace.trace_record import Stamp, TraceRecord, new_id

_SERVICE_NAME = "triton-inference-server"
_SCOPE = InstrumentationScope("triton-server", __version__)
_REQUEST_STAMPS = frozenset(("REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE", "REQUEST_END"))
_COMPUTE = "COMPUTE_"


class SpanExport:
    """Converts traces to spans and sends them in batches. Created on one thread, then used by another one."""

    def __init__(self, options: OpenTelemetryOptions) -> None:
        # The environment applies where there is no flag; the SDK reads its other variables (headers, certificates).
        self._resource = (
            Resource({"service.name": _SERVICE_NAME})
            .merge(OTELResourceDetector().detect())
            .merge(Resource(dict(options.resource)))
        )
        exporter = OTLPSpanExporter(endpoint=options.url or None)
        self._processor = BatchSpanProcessor(
            exporter,
            max_queue_size=options.max_queue_size,
            schedule_delay_millis=options.schedule_delay_ms,
            max_export_batch_size=options.max_export_batch_size,
        )
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        """Spans have the time of day."""

    def write(self, record: TraceRecord, series: TraceSeries) -> None:
        """Add the spans of a trace to the batch; `series` is for files. Spans above the queue limit are dropped."""
        for span in self._spans(record):
            self._processor.on_end(span)

    def end(self, series: TraceSeries, *, is_complete: bool) -> None:
        """Do nothing: spans are sent in batches of their own."""

    def close(self) -> None:
        """Send waiting spans; takes as long as the collector, within the SDK's bounds."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]  # the SDK has no type for it

    def _spans(self, record: TraceRecord) -> Sequence[ReadableSpan]:
        ids, stamps = record.spans, record.stamps
        if ids is None or not stamps:
            return ()
        compute = [stamp for stamp in stamps if stamp[0].startswith(_COMPUTE)]
        request = [stamp for stamp in stamps if stamp[0] in _REQUEST_STAMPS]
        state = TraceState.from_header([ids.parent.state]) if ids.parent is not None else None
        parent = None
        if ids.parent is not None:
            parent = _context(ids.parent.trace_id, ids.parent.span_id, state, is_remote=ids.root != 0)
        spans: list[ReadableSpan] = []
        if ids.root:
            around = [stamp for stamp in stamps if stamp not in compute and stamp not in request]
            root = _context(ids.trace_id, ids.root, state)
            spans.append(self._span("InferRequest", root, parent, around, stamps, record.failure))
            parent = root
        own = _context(ids.trace_id, ids.request, state)
        spans.append(
            self._span(
                encodable(record.model_name), own, parent, request, request, record.failure, _attributes(record)
            )
        )
        if compute:
            spans.append(self._span("compute", _context(ids.trace_id, new_id(64), state), own, compute, compute))
        return spans

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        events: Sequence[Stamp],
        lasting: Sequence[Stamp],
        failure: str = "",
        attributes: Mapping[str, str | int] | None = None,
    ) -> ReadableSpan:
        """Return a span from the first to the last time in `lasting`."""
        moments = [ns + self._offset_ns for _, ns in lasting]
        return ReadableSpan(
            name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            events=[Event(event, timestamp=ns + self._offset_ns) for event, ns in events],
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, encodable(failure)) if failure else Status(),
            start_time=min(moments),
            end_time=max(moments),
            instrumentation_scope=_SCOPE,
        )


def _context(trace_id: int, span_id: int, state: TraceState | None, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, TraceFlags(TraceFlags.SAMPLED), state)


def _attributes(record: TraceRecord) -> Mapping[str, str | int]:
    attributes: dict[str, str | int] = {
        # A name that UTF-8 cannot encode would fail the whole batch, with the spans of other models.
        "triton.model_name": encodable(record.model_name),
        "triton.model_version": int(record.model_version) if record.model_version.isdigit() else -1,
        "triton.trace_id": record.id,
        "triton.trace_parent_id": record.parent_id,
    }
    if record.request_id:
        attributes["triton.request_id"] = encodable(record.request_id)
    return attributes

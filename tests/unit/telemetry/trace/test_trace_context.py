"""W3C Trace Context of a request, and the spans derived from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.errors import InferError, internal
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.options.trace import TraceOptions
from naiad.telemetry.trace.trace_record import (
    TraceContext,
    format_traceparent,
    nested_spans,
    new_spans,
    parse_trace_context,
)
from naiad.telemetry.trace.tracer import Tracer

TRACE, SPAN = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
IDS = st.integers(1, 2**64 - 1)


@given(st.integers(1, 2**128 - 1), IDS)
def test_what_is_written_is_read(trace_id: int, span_id: int) -> None:
    text = format_traceparent(trace_id, span_id).encode()
    assert parse_trace_context(text) == TraceContext(trace_id, span_id, 1)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"00",
        b"00-" + TRACE + b"-" + SPAN,
        b"00-" + b"0" * 32 + b"-" + SPAN + b"-01",  # W3C Trace Context 3.2.2.3
        b"00-" + TRACE + b"-" + b"0" * 16 + b"-01",  # 3.2.2.4
        b"ff-" + TRACE + b"-" + SPAN + b"-01",  # 3.2.2.1
        b"00-" + TRACE.upper() + b"-" + SPAN + b"-01",  # 3.2.2.3: lower case
        b"00-" + TRACE + b"-" + SPAN + b"-01-more",  # 3.2.2.2: version 00 has four parts
        b"00-" + TRACE + b"-" + SPAN + b"-1",
    ],
)
def test_invalid_context_is_ignored(text: bytes) -> None:
    assert parse_trace_context(text) is None


@given(st.binary())
def test_anything_may_come(text: bytes) -> None:
    assert parse_trace_context(text) is None


def test_later_versions_are_read_partially() -> None:
    found = parse_trace_context(b" cc-" + TRACE + b"-" + SPAN + b"-03-what comes ", b"vendor=x")
    assert found == TraceContext(int(TRACE, 16), int(SPAN, 16), 3, "vendor=x")


def test_a_long_state_is_dropped() -> None:
    found = parse_trace_context(b"00-" + TRACE + b"-" + SPAN + b"-01", b"a=" + b"x" * 600)
    assert found is not None
    assert found.state == ""


def test_spans_of_a_request_and_within_it() -> None:
    alone, child = new_spans(None), new_spans(TraceContext(5, 6))
    assert len({alone.trace_id, alone.root, alone.request, child.root, child.request}) == 5
    assert (child.trace_id, child.parent) == (5, TraceContext(5, 6))
    step = nested_spans(child)
    assert (step.trace_id, step.root) == (5, 0)
    assert step.parent == TraceContext(5, child.request)


# --- the tracer -----------------------------------------------------------------------------------------------------


class Frontend:
    protocol = "HTTP"

    def __init__(self, traceparent: bytes = b"") -> None:
        self.traceparent = traceparent

    def trace_fields(self, request):
        return self.traceparent, b""

    def take(self, request, response):
        pass


class Sink:
    def __init__(self) -> None:
        self.records = []

    def write(self, record, frequency):
        self.records.append(record)

    def close(self):
        pass


def traced(frontend, requests: int = 1, error: InferError | None = None, **options):
    """Return the records of some completed requests."""
    sink = Sink()
    settings = {"level": ("TIMESTAMPS", "TENSORS"), "rate": 1, "mode": "opentelemetry", **options}
    tracer = Tracer(TraceOptions(**settings), sink)
    for _ in range(requests):
        request = InferRequest(RequestHeader(model_name="m"), (), frontend.take)
        if tracer.is_on:
            tracer.begin(request)
        request.on_response(request, InferResponse(ResponseHeader("m", "1", ()), error=error))
    tracer.close()
    return sink.records


CLIENT = b"00-" + TRACE + b"-" + SPAN + b"-01"


def test_traced_clients_ignore_rate_and_count() -> None:
    assert [record.spans.trace_id for record in traced(Frontend(CLIENT), 5, rate=0)] == [int(TRACE, 16)] * 5
    assert len(traced(Frontend(CLIENT), 5, rate=1000, count=1)) == 5


def test_other_clients_are_sampled() -> None:
    assert traced(Frontend(), 5, rate=0) == []
    assert len(traced(Frontend(), 6, rate=2)) == 3
    assert len(traced(Frontend(CLIENT[:-1] + b"0"), 6, rate=3)) == 2
    assert len(traced(Frontend(b"nonsense"), 6, rate=3)) == 2


def test_nothing_is_traced_when_it_is_off() -> None:
    assert traced(Frontend(CLIENT), 5, level=("OFF",)) == []


def test_mode_triton_knows_no_context(tmp_path) -> None:
    (record,) = traced(Frontend(CLIENT), 2, rate=2, mode="triton", file=str(tmp_path / "t"))
    assert record.spans is None


def test_tensors_are_left_out_and_failures_kept() -> None:
    (record,) = traced(Frontend(CLIENT), error=internal("no luck"))
    assert record.tensors == []
    assert record.failure == "no luck"

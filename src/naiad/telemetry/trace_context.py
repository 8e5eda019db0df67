"""W3C Trace Context: which trace a request belongs to, and which span of it asked."""

import random
import re
from dataclasses import dataclass

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_MAX_STATE_BYTES = 512
"""W3C Trace Context 3.3.1.5: what has to be passed on at least."""
# Not the generator that others may have seeded.
_random = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of somebody else, as `traceparent` and `tracestate` tell."""

    trace_id: int
    span_id: int
    flags: int = 1
    state: str = ""


@dataclass(frozen=True, slots=True)
class SpanIds:
    """The spans of one traced request, known before any of them has ended."""

    trace_id: int
    request: int
    """The span of the model."""
    root: int = 0
    """The span around it; 0 for a step of an ensemble and a call of a model, which have none of their own."""
    parent: TraceContext | None = None
    """The span that all of them lie in, if there is one."""


def parse_trace_context(traceparent: bytes, tracestate: bytes = b"") -> TraceContext | None:
    """Return what two fields of a request say; None when that is nothing valid (W3C Trace Context 3.2.2)."""
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
    """Return a span that is recorded as a `traceparent` field."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def new_spans(parent: TraceContext | None) -> SpanIds:
    """Return the spans of a request of a client, in the trace of `parent` or in one of their own."""
    trace_id = parent.trace_id if parent is not None else new_id(128)
    return SpanIds(trace_id, new_id(64), new_id(64), parent)


def nested_spans(within: SpanIds) -> SpanIds:
    """Return the spans of a request that another traced request has made."""
    return SpanIds(within.trace_id, new_id(64), parent=TraceContext(within.trace_id, within.request))


def new_id(bits: int) -> int:
    """Return a number of a span (64 bits) or of a trace (128)."""
    return _random.getrandbits(bits) or 1

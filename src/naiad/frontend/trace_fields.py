"""The W3C Trace Context that a request came with, as a tracer that makes spans asks for it."""

from naiad.frontend.exchange import GrpcCall, HttpExchange

TraceFields = tuple[bytes, bytes]
"""`traceparent` and `tracestate`; empty for none."""

_PARENT, _STATE = b"traceparent", b"tracestate"


def fields_of_exchange(exchange: HttpExchange) -> TraceFields:
    """Return what an HTTP request says."""
    return exchange.headers.get(_PARENT, b""), exchange.headers.get(_STATE, b"")


def fields_of_call(call: GrpcCall) -> TraceFields:
    """Return what a gRPC call says, for all requests of a stream."""
    parent = state = b""
    for name, value in call.metadata:
        if name == _PARENT:
            parent = value
        elif name == _STATE:
            state = value
    return parent, state

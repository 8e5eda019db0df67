"""Header fields with a meaning for inference: forwarded fields and the W3C Trace Context.

Fields that match --http-header-forward-pattern (or gRPC's flag) become parameters of the inference request.
"""

import copy
import re
from collections.abc import Iterable

from naiad.core.errors import excerpt, invalid_argument
from naiad.core.limits.bounded_cache import BoundedCache
from naiad.core.request import RequestHeader
from naiad.frontend.context import GrpcCall, HttpContext

Parameters = tuple[tuple[str, str], ...]

_RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
GRPC_FIELDS = frozenset(
    (b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding")
)
"""Fields that gRPC consumes itself; a gRPC service in Triton never sees them."""


class HeaderForwarding:
    """Adds the fields whose name matches `pattern` to the parameters of requests."""

    def __init__(self, pattern: re.Pattern[str], hidden: frozenset[bytes] = frozenset()) -> None:
        self._pattern = pattern
        self._hidden = hidden
        """Fields that are never forwarded."""
        self._names: BoundedCache[bytes, str] = BoundedCache(
            max_entries=1024, max_bytes=64 * 1024, max_entry_bytes=256
        )
        """Field name to parameter name; empty if it is not forwarded."""
        self._derived: BoundedCache[tuple[RequestHeader, Parameters], RequestHeader] = BoundedCache(
            max_entries=512, max_bytes=256 * 1024, max_entry_bytes=1024
        )

    def apply(self, header: RequestHeader, fields: Iterable[tuple[bytes, bytes]]) -> RequestHeader:
        """Return a header with the forwarded fields; `header` itself is shared by requests and stays unchanged.

        Requests with equal headers and equal forwarded fields get the same object. Raises InferError(INVALID_ARG) if
        a field has the name of a reserved parameter.
        """
        parameters = self._parameters(fields)
        if not parameters:
            return header
        key = (header, parameters)
        derived = self._derived.get(key)
        if derived is None:
            derived = _with_parameters(header, parameters)
            if header.admission is not None:
                # Do not cache fields of rejected requests: they would only use memory.
                self._derived.remember(key, derived, sum(len(value) for _, value in parameters))
        return derived

    def _parameters(self, fields: Iterable[tuple[bytes, bytes]]) -> Parameters:
        known = self._names.get
        parameters: list[tuple[str, str]] = []
        for field, value in fields:
            name = known(field)
            if name is None:
                name = self._name(field)
            if name:
                parameters.append((name, value.decode("utf-8", "replace")))
        return tuple(parameters)

    def _name(self, field: bytes) -> str:
        name = field.decode("latin-1")
        if field in self._hidden or not self._pattern.search(name):
            name = ""
        elif name in _RESERVED or name.startswith("triton_"):
            raise invalid_argument(f"Header '{excerpt(name)}' is reserved for Triton usage and cannot be forwarded.")
        self._names.remember(field, name, len(field))
        return name


def _with_parameters(header: RequestHeader, parameters: Parameters) -> RequestHeader:
    derived = copy.copy(header)
    # Triton lists both if a parameter has the name of a field; a mapping keeps the field.
    derived.parameters = {**header.parameters, **dict(parameters)}
    derived.admission = None
    derived.origin = header.origin or header
    return derived


TraceFields = tuple[bytes, bytes]
"""Values of `traceparent` and `tracestate`; empty for none."""

_PARENT, _STATE = b"traceparent", b"tracestate"


def fields_of_context(context: HttpContext) -> TraceFields:
    """Return the trace context of an HTTP request."""
    return context.headers.get(_PARENT, b""), context.headers.get(_STATE, b"")


def fields_of_call(call: GrpcCall) -> TraceFields:
    """Return the trace context of a gRPC call, which holds for all requests of a stream."""
    parent = state = b""
    for name, value in call.metadata:
        if name == _PARENT:
            parent = value
        elif name == _STATE:
            state = value
    return parent, state

"""Header fields that become parameters of the inference request (--http-header-forward-pattern and gRPC's)."""

import copy
import re
from collections.abc import Iterable

from naiad.core.errors import invalid_argument
from naiad.core.request import RequestHeader

Parameters = tuple[tuple[str, str], ...]

_RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
GRPC_FIELDS = frozenset(
    (b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding")
)
"""What gRPC keeps to itself; a service of Triton's never sees these."""
_CACHED_NAMES = 1024
_CACHED_HEADERS = 512
_CACHED_VALUE_CHARACTERS = 1024


class HeaderForwarding:
    """Adds fields whose name has a match of `pattern` to the parameters of requests."""

    def __init__(self, pattern: re.Pattern[str], hidden: frozenset[bytes] = frozenset()) -> None:
        self._pattern = pattern
        self._hidden = hidden
        """Fields that are never forwarded."""
        self._names: dict[bytes, str] = {}
        """Field name to parameter name; empty when it is not forwarded."""
        self._derived: dict[tuple[RequestHeader, Parameters], RequestHeader] = {}

    def apply(self, header: RequestHeader, fields: Iterable[tuple[bytes, bytes]]) -> RequestHeader:
        """Return a header with the forwarded fields added; `header`, which other requests share, stays as it is.

        Requests with equal headers and equal forwarded fields get the same object. Raises InferError(INVALID_ARG)
        when a field is called like a reserved parameter.
        """
        parameters = self._parameters(fields)
        if not parameters:
            return header
        key = (header, parameters)
        derived = self._derived.get(key)
        if derived is None:
            derived = _with_parameters(header, parameters)
            if sum(len(value) for _, value in parameters) <= _CACHED_VALUE_CHARACTERS:
                if len(self._derived) >= _CACHED_HEADERS:
                    del self._derived[next(iter(self._derived))]
                self._derived[key] = derived
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
            raise invalid_argument(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
        if len(self._names) >= _CACHED_NAMES:
            self._names.clear()
        self._names[field] = name
        return name


def _with_parameters(header: RequestHeader, parameters: Parameters) -> RequestHeader:
    derived = copy.copy(header)
    # Triton lists both when a parameter has the name of a field; a mapping keeps the field.
    derived.parameters = {**header.parameters, **dict(parameters)}
    derived.admission = None
    return derived

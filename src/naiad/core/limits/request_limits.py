"""Limits of requests: the budget of request bytes in flight, and the number of parts of a request.

The budget is shared by all connections and protocols of a server process. Before the body of a request is buffered
its bytes are reserved here; decompressed bytes are reserved too. They are released when the request or call ends, for
any reason: response, rejection, reset, disconnect. If `reserve` returns False the caller rejects the request, with
503 over HTTP and RESOURCE_EXHAUSTED over gRPC. Bodies up to UNCOUNTED_BYTES that arrive in one piece are not counted:
they cost no more than the objects of their request, and the limits of connections, pipelined requests and streams
bound them. All methods run on the event loop, so there is no lock.

The number of parts is checked while a request is decoded, before Python objects are created.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from naiad.core.errors import excerpt, invalid_argument

MAX_PARAMETERS = 1024
"""Of a request, of an input, of an output."""
MAX_DIMS = 64
"""Dimensions of a tensor; the limit of numpy is not higher."""
MAX_NAME_CHARACTERS = 1024
"""Of the name of a tensor or a parameter."""
MAX_MEMBERS = 1024
"""Members of a JSON object."""
_SPARE_TENSORS = 16
"""Number of tensors decoded above the limit, so that the error can name them as Triton does."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Number of inputs and outputs of a model; a request cannot have more."""

    model_name: str
    inputs: int
    outputs: int

    def check_inputs(self, count: int) -> None:
        """Raise InferError(INVALID_ARG) for far more inputs than the model has."""
        if count > self.inputs + _SPARE_TENSORS:
            # Triton's words.
            raise invalid_argument(
                f"expected {self.inputs} inputs but got {count} inputs for model '{self.model_name}'"
            )

    def check_outputs(self, count: int) -> None:
        """Raise InferError(INVALID_ARG) for far more requested outputs than the model has."""
        if count > self.outputs + _SPARE_TENSORS:
            raise invalid_argument(
                f"the request asks for {count} outputs; model '{self.model_name}' has {self.outputs}"
            )

    @property
    def most_tensors(self) -> int:
        """Maximum number of decoded inputs and outputs together."""
        return self.inputs + self.outputs + 2 * _SPARE_TENSORS


def unlimited(model_name: str, model_version: str) -> RequestLimits:
    """Return limits for decoders without models."""
    return RequestLimits(model_name, 1 << 20, 1 << 20)


LimitsOf: TypeAlias = Callable[[str, str], RequestLimits]
"""Name and version of a model to its limits. Raises InferError for an unknown model."""


def check_parameters(count: int) -> None:
    """Raise InferError(INVALID_ARG) for more parameters than a request may have."""
    if count > MAX_PARAMETERS:
        raise invalid_argument(f"{count} parameters in one place are too many; the maximum is {MAX_PARAMETERS}")


def check_name(kind: str, name: str) -> None:
    """Raise InferError(INVALID_ARG) for a name that is too long."""
    if len(name) > MAX_NAME_CHARACTERS:
        raise invalid_argument(
            f"the name of {kind} has {len(name)} characters; the maximum is {MAX_NAME_CHARACTERS}: '{excerpt(name)}'"
        )


def check_dims(name: str, count: int) -> None:
    """Raise InferError(INVALID_ARG) for a shape with too many dimensions."""
    if count > MAX_DIMS:
        raise invalid_argument(
            f"the shape of input '{excerpt(name)}' has {count} dimensions; the maximum is {MAX_DIMS}"
        )


UNCOUNTED_BYTES = 4096
"""Bodies and messages up to this size are not reserved if they arrive in one piece."""
_UNLIMITED_BYTES = 1 << 62


class RequestBudget:
    """Counts reserved bytes against a limit."""

    __slots__ = ("limit_bytes", "peak_bytes", "rejected_count", "used_bytes")

    def __init__(self, limit_bytes: int = _UNLIMITED_BYTES) -> None:
        """Raises ValueError for a limit below 1."""
        if limit_bytes < 1:
            raise ValueError(f"the limit of request bytes in flight is {limit_bytes}; it must be at least 1")
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        """The maximum of reserved bytes so far."""
        self.rejected_count = 0
        """Number of rejections for lack of room."""

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes; return False, without a reservation, if that exceeds the limit."""
        used_bytes = self.used_bytes + size
        if used_bytes > self.limit_bytes:
            self.rejected_count += 1
            return False
        self.used_bytes = used_bytes
        if used_bytes > self.peak_bytes:
            self.peak_bytes = used_bytes
        return True

    def has_room(self, size: int) -> bool:
        """Return whether `size` bytes would fit now, without reserving them; False counts as a rejection."""
        if self.used_bytes + size <= self.limit_bytes:
            return True
        self.rejected_count += 1
        return False

    def release(self, size: int) -> None:
        """Release `size` reserved bytes. Raises ValueError if that is more than is reserved."""
        if size > self.used_bytes:
            raise ValueError(f"{size} request bytes are released, but only {self.used_bytes} are reserved")
        self.used_bytes -= size

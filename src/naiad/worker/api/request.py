"""Requests in model code: received ones, and requests to other models."""

from __future__ import annotations

import threading
from typing import Any, Mapping, Protocol, Sequence

from naiad.worker.api.arguments import (
    UINT32,
    UINT64,
    NativeEnum,
    flag,
    instance,
    integer,
    sequence,
    text,
)
from naiad.worker.api.failure import TritonModelException
from naiad.worker.api.response import (
    Cancellation,
    InferenceResponseSender,
    ResponseStream,
    SingleResponse,
    SingleSender,
    parameters_json,
)
from naiad.worker.api.tensor import Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

_senders_lock = threading.Lock()


class MemoryType(NativeEnum):
    """The kind of memory of a tensor."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """Preferred memory of the outputs of a called model."""

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        what = "PreferredMemory: expected preferred_"
        self.memory_type = instance(preferred_memory_type, MemoryType, what + "memory_type")
        self.device_id = integer(preferred_device_id, what + "device_id")


class InferenceTrace:
    """The trace of a request; empty when it is not traced."""

    def __init__(self, context: str | None = None, place: int = -1) -> None:
        """`place` identifies the request for the server."""
        self._context = context
        self._place = place

    def get_context(self) -> str | None:
        """Return the context for further spans as JSON, or None."""
        return self._context


_ANY_MEMORY = PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU)
_NO_TRACE = InferenceTrace()
_REQUIRED: Any = object()
"""Marks an argument of `InferenceRequest` without a default; Triton's order has some after those with one."""


class RequestPlan:
    """Shared part of the requests with the same header."""

    __slots__ = ("correlation_id", "flags", "output_names", "parameters", "timeout_us")

    def __init__(
        self,
        *,
        correlation_id: int | str = 0,
        flags: int = 0,
        timeout_us: int = 0,
        parameters: str = "",
        output_names: frozenset[str] = frozenset(),
    ) -> None:
        self.correlation_id = correlation_id
        self.flags = flags
        self.timeout_us = timeout_us
        self.parameters = parameters
        """A JSON object, or "" for none."""
        self.output_names = output_names


def _never_cancelled(position: int) -> bool:
    return False


class InferenceRequest:
    """A request: one that a model executes, or one that it sends to another model."""

    __slots__ = (
        "_cancellation",
        "_flags",
        "_id",
        "_inputs",
        "_is_rescheduled",
        "_plan",
        "_position",
        "_sender",
        "_trace",
        "model_name",
        "model_version",
        "preferred_memory",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - Triton's signature
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = _REQUIRED,
        requested_output_names: Sequence[str] = _REQUIRED,
        model_name: str = _REQUIRED,
        model_version: int | str = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = _ANY_MEMORY,
        trace: InferenceTrace = _NO_TRACE,
        parameters: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        what = "InferenceRequest: expected "
        missing = [
            name
            for name, value in (
                ("inputs", inputs),
                ("requested_output_names", requested_output_names),
                ("model_name", model_name),
            )
            if value is _REQUIRED
        ]
        if missing:
            raise TypeError(f"InferenceRequest: missing {' and '.join(missing)}")
        request_id = text(request_id, what + "request_id")
        self.model_name = text(model_name, what + "model_name")
        wanted = sequence(requested_output_names, what + "requested_output_names")
        plan = RequestPlan(
            correlation_id=_correlation_id(correlation_id),
            timeout_us=integer(timeout, what + "timeout", UINT64),
            parameters=parameters_json(parameters),
            output_names=frozenset([text(name, what + "each requested_output_name") for name in wanted]),
        )
        tensors = list(sequence(inputs, what + "inputs"))
        which = f"request with id '{request_id}' and model name '{self.model_name}' should not be empty."
        for tensor in tensors:
            if tensor is None:
                raise TritonModelException(f"Input tensor for {which}")
            instance(tensor, Tensor, what + "each of inputs")
        if "" in plan.output_names:
            raise TritonModelException(f"Requested output name for {which}")
        self._adopt(plan, request_id, tensors, _never_cancelled, 0)
        self._flags = integer(flags, what + "flags", UINT32)
        # naiad: also a name of a version.
        is_name = isinstance(model_version, (str, bytes, bytearray))
        version = what + "model_version"
        self.model_version: int | str = text(model_version, version) if is_name else integer(model_version, version)
        self.preferred_memory = instance(preferred_memory, PreferredMemory, what + "preferred_memory")
        self._trace = instance(trace, InferenceTrace, what + "trace")

    def _adopt(
        self, plan: RequestPlan, request_id: str, inputs: list[Tensor], cancellation: Cancellation, position: int
    ) -> None:
        # hot: bench/micro_worker.py
        self._plan = plan
        self._id = request_id
        self._inputs = inputs
        self._flags = plan.flags
        self._cancellation = cancellation
        self._position = position
        self._sender: Any = None

    def inputs(self) -> list[Tensor]:
        """Return the input tensors, without missing optional inputs."""
        return self._inputs

    def request_id(self) -> str:
        """Return the id of the request."""
        return self._id

    def correlation_id(self) -> int | str:
        """Return the id of the sequence, 0 for none."""
        return self._plan.correlation_id

    def flags(self) -> int:
        """Return the sequence flags."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set the sequence flags."""
        self._flags = integer(flags, "set_flags: expected flags", UINT32)

    def timeout(self) -> int:
        """Return the timeout in microseconds, 0 for none."""
        return self._plan.timeout_us

    def parameters(self) -> str:
        """Return the parameters as a JSON object."""
        return self._plan.parameters or "{}"

    def trace(self) -> InferenceTrace:
        """Return the trace of the request."""
        return self._trace

    def requested_output_names(self) -> set[str]:
        """Return the names of the requested outputs."""
        return set(self._plan.output_names)

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the response sender of this request, which replaces a returned response."""
        self._late_answer().fault = ""
        sender: InferenceResponseSender = self._sender
        return sender

    def _late_answer(self, fault: str = "") -> SingleResponse:
        """Return the destination of the sender's response; worker and model may call it at the same time.

        `fault` is kept if the model has not got the sender yet.
        """
        with _senders_lock:
            if self._sender is None:
                self._sender = SingleSender(SingleResponse(self._cancellation, self._position))
                self._sender.answer.fault = fault
            answer: SingleResponse = self._sender.answer
        return answer

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request; costs less than a microsecond."""
        return self._cancellation(self._position)

    def set_release_flags(self, flags: int) -> None:
        """Set the effect of the end of `execute`: the request is completed, or is executed again.

        Raises TritonModelException for the latter unless the model has iterative sequences, and for other flags.
        """
        flags = integer(flags, "set_release_flags: expected flags", UINT32)
        if flags not in (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(
                f"request release flags: expected TRITONSERVER_REQUEST_RELEASE_ALL or _RESCHEDULE, found {flags!r}"
            )
        if flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE and not _may_reschedule:
            raise TritonModelException(
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured "
                "to handle such a flag: it needs 'sequence_batching { iterative_sequence: true }'"
            )
        self._is_rescheduled = flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

    def exec(self, decoupled: bool = False, execution_timeout: int = 0) -> Any:
        """Execute the request by another model, and wait for its response.

        With `decoupled` return at once, an iterator of responses; decoupled models require it. After
        `execution_timeout` microseconds the request is cancelled, with an error as its response; 0 for no limit.
        Failures are errors in the response. Raises TritonModelException for a request that cannot be sent.
        """
        timeout_us = integer(execution_timeout, "exec: expected execution_timeout", UINT64)
        return _find_caller(self).exec(self, flag(decoupled, "exec: expected decoupled"), timeout_us)

    def async_exec(self, decoupled: bool = False, execution_timeout: int = 0) -> Any:
        """Do so without waiting, in a coroutine: returns an awaitable; cancelling it cancels the request."""
        timeout_us = integer(execution_timeout, "async_exec: expected execution_timeout", UINT64)
        return _find_caller(self).async_exec(self, flag(decoupled, "async_exec: expected decoupled"), timeout_us)


def _correlation_id(given: Any) -> int | str:
    """Return the id of a sequence. Raises TypeError, TritonModelException (Triton's text)."""
    what = "InferenceRequest: expected correlation_id"
    if isinstance(given, (str, bytes, bytearray)):
        return text(given, what)
    if given is not None and not hasattr(type(given), "__index__"):
        raise TritonModelException(f"Correlation ID must be integer or string, found {type(given).__name__}")
    return integer(given, what, UINT64)


class Caller(Protocol):
    """Executes requests of a model for other models, and commands about them."""

    def exec(self, request: InferenceRequest, decoupled: bool, execution_timeout: int) -> Any:
        """Return the response, or an iterator of responses."""

    def async_exec(self, request: InferenceRequest, decoupled: bool, execution_timeout: int) -> Any:
        """Return an awaitable of them."""

    def command(self, notes: Mapping[str, Any], parts: Sequence[bytes] = ()) -> str:
        """Load or unload a model, or query it; return the result, a JSON object. Raises TritonModelException."""


_caller: Caller | None = None
_may_reschedule = False


def set_rescheduling(is_allowed: bool) -> None:
    """Set whether requests may be executed again: the model has iterative sequences."""
    global _may_reschedule  # noqa: PLW0603 - a process has one model
    _may_reschedule = is_allowed


def is_rescheduled(request: InferenceRequest) -> bool:
    """Return whether the model wants to execute a request again."""
    # Few models do, so requests have the field only if it is set.
    return _may_reschedule and getattr(request, "_is_rescheduled", False)


def set_caller(caller: Caller | None) -> None:
    """Set the executor of the model's requests and commands; without one they are rejected."""
    global _caller  # noqa: PLW0603 - a process has one model
    _caller = caller


def current_caller() -> Caller | None:
    """Return the executor of the model's requests and commands."""
    return _caller


def _find_caller(request: InferenceRequest) -> Caller:
    if not hasattr(request, "model_name"):
        raise TritonModelException(
            "a request that came to be executed cannot be sent to a model; make an InferenceRequest with its inputs"
        )
    if _caller is None:
        raise TritonModelException(f"no server executes this model, so it cannot call model '{request.model_name}'")
    return _caller


class ReceivedRequest(InferenceRequest):
    """A received request of an ordinary model."""

    __slots__ = ()

    def __init__(
        self, plan: RequestPlan, request_id: str, inputs: list[Tensor], cancellation: Cancellation, position: int
    ) -> None:
        self._adopt(plan, request_id, inputs, cancellation, position)

    def trace(self) -> InferenceTrace:
        """Return the trace of the request; it also traces the requests to other models."""
        # Set only where there is a context.
        trace: InferenceTrace = getattr(self, "_trace", None) or InferenceTrace(place=self._position)
        return trace


class StreamedRequest(ReceivedRequest):
    """A received request of a decoupled model."""

    __slots__ = ("_stream",)

    def __init__(
        self, plan: RequestPlan, request_id: str, inputs: list[Tensor], stream: ResponseStream, slot: int = 0
    ) -> None:
        self._adopt(plan, request_id, inputs, _never_cancelled, slot)
        self._stream = stream

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender of this request's responses."""
        sender: InferenceResponseSender | None = self._sender
        if sender is None:
            sender = self._sender = InferenceResponseSender(self._stream)
        return sender

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request; costs less than a microsecond."""
        return self._stream.is_cancelled()

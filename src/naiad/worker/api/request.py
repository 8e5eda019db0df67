"""Requests in model code: received ones, and requests to other models."""

from __future__ import annotations

import enum
import threading
from typing import Any, Mapping, Protocol, Sequence

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


class MemoryType(enum.IntEnum):
    """The kind of memory of a tensor."""

    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_GPU = 2


class PreferredMemory:
    """Preferred memory of the outputs of a called model."""

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self.memory_type = MemoryType(preferred_memory_type)
        self.device_id = preferred_device_id


class InferenceTrace:
    """The trace of a request; empty when it is not traced."""

    def __init__(self, context: str | None = None, place: int = -1) -> None:
        """`place` identifies the request for the server."""
        self._context = context
        self._place = place

    def get_context(self) -> str | None:
        """Return the context for further spans as JSON, or None."""
        return self._context


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
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int | str = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        for tensor in inputs:
            if not isinstance(tensor, Tensor):
                raise TritonModelException(
                    f"Input tensor for request with id '{request_id}' and model name '{model_name}' should not be "
                    "empty."
                )
        if not isinstance(request_id, str):
            raise TypeError(f"InferenceRequest: expected request_id to be str, found {type(request_id).__name__}")
        if not isinstance(correlation_id, (int, str)):
            raise TypeError(
                f"InferenceRequest: expected correlation_id to be int or str, found {type(correlation_id).__name__}"
            )
        plan = RequestPlan(
            correlation_id=correlation_id,
            timeout_us=timeout,
            parameters=parameters_json(parameters),
            output_names=frozenset(requested_output_names),
        )
        self._adopt(plan, request_id, list(inputs), _never_cancelled, 0)
        self._flags = flags
        self.model_name = model_name
        self.model_version = model_version
        self.preferred_memory = preferred_memory
        self._trace = trace

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
        self._flags = flags

    def timeout(self) -> int:
        """Return the timeout in microseconds, 0 for none."""
        return self._plan.timeout_us

    def parameters(self) -> str:
        """Return the parameters as a JSON object; Triton: "" for a request of a model without any."""
        return self._plan.parameters

    def trace(self) -> InferenceTrace:
        """Return the trace of the request."""
        return self._trace or InferenceTrace()

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
        return _find_caller(self).exec(self, decoupled, execution_timeout)

    def async_exec(self, decoupled: bool = False, execution_timeout: int = 0) -> Any:
        """Do so without waiting, in a coroutine: returns an awaitable; cancelling it cancels the request."""
        return _find_caller(self).async_exec(self, decoupled, execution_timeout)


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

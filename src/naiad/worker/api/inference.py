"""Requests and responses in model code."""

from __future__ import annotations

import enum
import gc
import json
import queue
import threading
from typing import Any, Callable, Mapping, Protocol, Sequence

from naiad.worker.api.failure import TritonError, TritonModelException
from naiad.worker.api.tensor import Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2


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


def _parameters_json(parameters: Mapping[str, Any] | None) -> str:
    if parameters is None:
        return ""
    if not isinstance(parameters, dict):
        raise TypeError(f"parameters: expected a dict, found {type(parameters).__name__}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (str, int, float, bool)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/float/str, found type {type(value)}"
            )
    return json.dumps(parameters)


class InferenceResponse:
    """The response to one request: output tensors or an error."""

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        # hot: bench/micro_worker.py
        for tensor in output_tensors:
            if not isinstance(tensor, Tensor):
                raise _not_a_tensor(tensor)
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse: expected error to be a TritonError, found {type(error).__name__}")
        self._tensors = output_tensors
        self._error = error
        self._parameters = "" if parameters is None else _parameters_json(parameters)

    def output_tensors(self) -> list[Tensor]:
        """Return the output tensors."""
        return list(self._tensors)

    def has_error(self) -> bool:
        """Return whether this is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error, or None."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters as a JSON object, or ""."""
        return self._parameters


def _not_a_tensor(value: object) -> Exception:
    if value is None:
        return TritonModelException("Output tensor for inference response should not be empty.")
    return TypeError(f"InferenceResponse: expected output tensors to be Tensor objects, found {type(value).__name__}")


Cancellation = Callable[[int], bool]
"""Returns whether the request at a position of its batch was cancelled."""


class ResponseStream(Protocol):
    """The destination of the responses of one request."""

    def send(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Accept a response, or only the end of the responses. Raises TritonModelException."""

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request."""


_FIRST_COLLECTION_S = 1.0
_LONGEST_COLLECTION_S = 60.0
_senders_lock = threading.Lock()


class SingleResponse:
    """The single response of a request to an ordinary model through a response sender."""

    __slots__ = ("_arrived", "_cancellation", "_is_closed", "_stream", "fault", "position", "response")

    def __init__(self, cancellation: Cancellation, position: int) -> None:
        self._cancellation = cancellation
        self.position = position
        """Source of its cancellation."""
        self._is_closed = False
        self._stream: ResponseStream | None = None
        # A SimpleQueue, because a finalizer may put into it during garbage collection.
        self._arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.fault = ""
        """The model's fault if the response does not arrive; "" once it has got the sender."""
        self.response: InferenceResponse | None = None

    def send(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Accept the response. Raises TritonModelException, with Triton's texts and order."""
        if response is not None and self.response is not None:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )
        if response is None and self.response is None:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )
        if self._is_closed:
            raise closed_sender()
        self._is_closed = is_final
        if response is not None:
            self.response = response
            self._arrived.put(None)
            self._forward()

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request."""
        return self._cancellation(self.position)

    @property
    def has_arrived(self) -> bool:
        """Whether `wait` would return at once."""
        return not self._arrived.empty()

    def divert(self, stream: ResponseStream) -> None:
        """Send the response through `stream` instead of waiting for it. Raises the errors of `stream.send`."""
        self._stream = stream
        self._forward()

    def _forward(self) -> None:
        """Send the response through the stream once both exist; the second of both threads does it."""
        stream = self._stream
        if stream is None:
            return
        try:
            self._arrived.get_nowait()
        except queue.Empty:
            return
        if self.response is None:
            return
        try:
            stream.send(self.response, is_final=True)
        except BaseException:
            # It was not sent: the model may send another one.
            self.response, self._is_closed = None, False
            raise

    def abort(self) -> None:
        """Note that no sender is left."""
        self._arrived.put(None)

    def close(self) -> None:
        """Reject responses from now on."""
        self._is_closed = True

    def wait(self) -> InferenceResponse | None:
        """Return the response when it arrives, None if no sender is left."""
        wait_s = _FIRST_COLLECTION_S
        while self.response is None:
            try:
                self._arrived.get(timeout=wait_s)
                break
            except queue.Empty:
                # Only the garbage collector finds a sender in a reference cycle, and nothing else starts it here.
                gc.collect()
                wait_s = min(_LONGEST_COLLECTION_S, 2 * wait_s)
        return self.response


def closed_sender() -> TritonModelException:
    """Return the exception for the use of a sender after its final response."""
    return TritonModelException("Unable to send response. Response sender has been closed.")


class InferenceResponseSender:
    """Sends the responses of one request: any number for a decoupled model, otherwise exactly one."""

    __slots__ = ("_stream",)

    # It has no reference to its request: a cycle would keep the inputs in memory until garbage collection.
    def __init__(self, stream: ResponseStream) -> None:
        self._stream = stream

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, the last one with `flags` TRITONSERVER_RESPONSE_COMPLETE_FINAL; callable from any thread.

        The final response of a decoupled model may be None: then the flag alone ends the request. Waits while the
        client is much slower than the model. Raises TritonModelException for misuse, TypeError for other objects.
        """
        # hot: bench/micro_emission.py
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            if not isinstance(flags, int):
                raise TypeError(f"send: expected flags to be an int, found {type(flags).__name__}")
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if type(response) is not InferenceResponse:
            if response is None:
                if flags == 0:
                    raise TritonModelException(
                        "Inference Response object must be provided when the response flags is set to zero."
                    )
            elif not isinstance(response, InferenceResponse):
                raise TypeError(f"send: expected an InferenceResponse, found {type(response).__name__}")
        self._stream.send(response, is_final=flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request."""
        return self._stream.is_cancelled()


class SingleSender(InferenceResponseSender):
    """A sender that signals its own destruction, so that no thread waits for its response any more."""

    __slots__ = ("answer",)

    def __init__(self, answer: SingleResponse) -> None:
        super().__init__(answer)
        self.answer = answer

    def __del__(self) -> None:
        self.answer.abort()


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
        model_version: int = -1,
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
            parameters=_parameters_json(parameters),
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
    """Executes requests of a model for other models."""

    def exec(self, request: InferenceRequest, decoupled: bool, execution_timeout: int) -> Any:
        """Return the response, or an iterator of responses."""

    def async_exec(self, request: InferenceRequest, decoupled: bool, execution_timeout: int) -> Any:
        """Return an awaitable of them."""


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
    """Set the executor of the model's requests; without one they are rejected."""
    global _caller  # noqa: PLW0603 - a process has one model
    _caller = caller


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


class StreamedRequest(InferenceRequest):
    """A received request of a decoupled model."""

    __slots__ = ("_stream",)

    def __init__(
        self, plan: RequestPlan, request_id: str, inputs: list[Tensor], stream: ResponseStream, slot: int = 0
    ) -> None:
        self._adopt(plan, request_id, inputs, _never_cancelled, slot)
        self._stream = stream

    def trace(self) -> InferenceTrace:
        """Return the trace of the request; it also traces the requests to other models."""
        # Set only where there is a context.
        trace: InferenceTrace = getattr(self, "_trace", None) or InferenceTrace(place=self._position)
        return trace

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender of this request's responses."""
        sender: InferenceResponseSender | None = self._sender
        if sender is None:
            sender = self._sender = InferenceResponseSender(self._stream)
        return sender

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request; costs less than a microsecond."""
        return self._stream.is_cancelled()

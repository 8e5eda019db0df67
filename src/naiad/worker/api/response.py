"""Responses in model code: the response of `execute`, and the senders of responses."""

from __future__ import annotations

import gc
import json
import queue
from typing import Any, Callable, Mapping, Protocol, Sequence

from naiad.worker.api.arguments import UINT32, instance, integer, sequence
from naiad.worker.api.failure import TritonError, TritonModelException
from naiad.worker.api.tensor import Tensor

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


def parameters_json(parameters: Mapping[str, Any] | None) -> str:
    """Return parameters as a JSON object, "" for None. Raises TritonModelException."""
    if parameters is None:
        return ""
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)} as parameters")
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
        if type(output_tensors) is not list:
            output_tensors = sequence(output_tensors, "InferenceResponse: expected output_tensors")
        for tensor in output_tensors:
            if not isinstance(tensor, Tensor):
                raise _not_a_tensor(tensor)
        if error is not None:
            instance(error, TritonError, "InferenceResponse: expected error")
        self._tensors = output_tensors
        self._error = error
        self._parameters = "" if parameters is None else parameters_json(parameters)

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
            flags = integer(flags, "send: expected flags", UINT32)
            if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
                raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if type(response) is not InferenceResponse:
            if response is None:
                if flags == 0:
                    raise TritonModelException(
                        "Inference Response object must be provided when the response flags is set to zero."
                    )
            elif not isinstance(response, InferenceResponse):
                raise TypeError(
                    f"send: expected response to be an InferenceResponse, found {type(response).__name__}"
                )
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

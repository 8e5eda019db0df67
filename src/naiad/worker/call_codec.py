"""Calls of other models to frames, and frames to their answers."""

from __future__ import annotations

import json
from typing import Any, Sequence

from naiad.worker.api.failure import ErrorCode, TritonError
from naiad.worker.api.inference import InferenceRequest, InferenceResponse
from naiad.worker.api.tensor import ReceivedStrings, ReceivedTensor, Tensor, TensorPlan, encode_strings
from naiad.worker.channel.frame import ALIGNMENT, PADDING, ChannelError, Frame

MOST_HEADERS = 1024
"""Headers that are remembered; then both sides begin anew."""

# Flags of a call:
DECOUPLED = 1
"""Any number of responses is expected."""
HOLDS = 2
"""The thread that executes the batch makes the call."""
TRACED = 8
"""A number follows that tells for which of the caller's requests: it is traced if that is."""
# Flags of an answer:
FINAL = 1
HAS_RESPONSE = 2


class _CallHeader:
    __slots__ = ("are_text", "has_sizes", "number")

    def __init__(self, number: int, inputs: Sequence[Tensor]) -> None:
        self.number = number
        self.are_text = [tensor._datatype == "BYTES" for tensor in inputs]
        self.has_sizes = any(self.are_text)


class CallEncoder:
    """Makes the variable part of call frames; headers travel once."""

    def __init__(self) -> None:
        self._headers: dict[Any, _CallHeader] = {}
        self._restarts = False

    def restart(self) -> None:
        """Begin anew: a call that was encoded will not be sent, and with it the header that it tells of."""
        self._headers.clear()
        self._restarts = True

    def encode(self, request: InferenceRequest) -> tuple[list[int], dict[str, Any] | None, list[Any], int]:
        """Return the number of the header and sizes, JSON, payload parts and payload bytes."""
        plan, inputs = request._plan, request._inputs
        key: list[Any] = [
            request.model_name,
            request.model_version,
            plan.correlation_id,
            request._flags,
            plan.timeout_us,
            plan.parameters,
            plan.output_names,
        ]
        for tensor in inputs:
            key += (tensor._name, tensor._datatype, tensor._array.shape)
        extra: dict[str, Any] | None = None
        if self._restarts or len(self._headers) > MOST_HEADERS:
            self._headers.clear()
            self._restarts = False
            extra = {"reset": True}
        header = self._headers.get(tuple(key))
        if header is None:
            header = _CallHeader(len(self._headers) + 1, inputs)
            extra = dict(extra or {}, header=[header.number, _describe(request)])
            self._headers[tuple(key)] = header
        words = [header.number]
        parts: list[Any] = []
        payload_bytes = 0
        for tensor, is_text in zip(inputs, header.are_text):
            part: Any = encode_strings(tensor._array) if is_text else tensor._array
            size = len(part) if is_text else part.nbytes
            if header.has_sizes:
                words.append(size)
            parts.append(part)
            padding = -size % ALIGNMENT
            if padding:
                parts.append(PADDING[padding])
            payload_bytes += size + padding
        return words, extra, parts, payload_bytes


def _describe(request: InferenceRequest) -> dict[str, Any]:
    plan = request._plan
    for name, value, kind in (
        ("model_name", request.model_name, str),
        ("model_version", request.model_version, int),
        ("timeout", plan.timeout_us, int),
        ("flags", request._flags, int),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"InferenceRequest: expected {name} to be {kind.__name__}, found {type(value).__name__}")
    return {
        "model": request.model_name,
        "version": request.model_version,
        "inputs": [(tensor._name, tensor._datatype, tensor._array.shape) for tensor in request._inputs],
        "outputs": sorted(plan.output_names),
        "parameters": json.loads(plan.parameters or "{}"),
        "sequence": plan.correlation_id,
        "flags": request._flags,
        "timeout_us": max(0, plan.timeout_us),
    }


class CallResponseDecoder:
    """Makes responses of answers."""

    def __init__(self) -> None:
        self._headers: dict[int, list[TensorPlan]] = {}

    def response(self, frame: Frame) -> InferenceResponse | None:
        """Return the response, None for the end of the responses alone. Raises ChannelError for nonsense.

        Its tensors are views on the payload and may be written to.
        """
        extra = frame.extra
        try:
            if extra:
                self._learn(extra)
            if not frame.words[1] & HAS_RESPONSE:
                return None
            if "error" in extra:
                code, message = extra["error"]
                return InferenceResponse((), TritonError(message, ErrorCode(code)))
            tensors = self._tensors(frame, self._headers[frame.words[2]], frame.words[3:])
        except (LookupError, ValueError, TypeError) as error:
            raise ChannelError(f"unreadable answer: {error!r}") from None
        response = InferenceResponse(tensors)
        if "parameters" in extra:
            response._parameters = json.dumps(extra["parameters"])
        return response

    def _learn(self, extra: dict[str, Any]) -> None:
        if extra.get("reset"):
            self._headers.clear()
        if "header" in extra:
            number, outputs = extra["header"]
            self._headers[number] = [TensorPlan(name, datatype, shape) for name, datatype, shape in outputs]

    def _tensors(self, frame: Frame, plans: Sequence[TensorPlan], sizes: Sequence[int]) -> list[Tensor]:
        tensors: list[Tensor] = []
        position = 0
        for index, plan in enumerate(plans):
            size = sizes[index] if sizes else plan.size_bytes
            tensors.append(
                ReceivedStrings(plan, frame.payload, position, size)
                if plan.is_text
                else ReceivedTensor(plan, frame.payload, position)
            )
            position += size + -size % ALIGNMENT
        if position != frame.payload_bytes:
            raise ChannelError(f"an answer of {frame.payload_bytes} bytes where {position} were announced")
        return tensors

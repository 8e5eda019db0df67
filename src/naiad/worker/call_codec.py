"""Calls of other models to frames, and frames to their responses."""

from __future__ import annotations

import json
from typing import Any, Sequence

from naiad.worker.api.failure import ErrorCode, TritonError
from naiad.worker.api.request import InferenceRequest
from naiad.worker.api.response import InferenceResponse
from naiad.worker.api.tensor import TensorPlan
from naiad.worker.channel.frame import ChannelError, Frame
from naiad.worker.channel.layout import ReceivedHeaders, SentHeaders, TensorLayout
from naiad.worker.execution.request_decoder import layout_of, received_tensors
from naiad.worker.execution.response_encoder import pack_arrays

# Flags of a call:
DECOUPLED = 1
"""The call expects any number of responses."""
HOLDS = 2
"""The thread that executes the batch makes the call."""
TRACED = 8
"""A number follows that identifies the caller's request: the call is traced if that is."""
# Flags of a response:
FINAL = 1
HAS_RESPONSE = 2


class CallEncoder:
    """Encodes the variable part of call frames; headers are sent once."""

    def __init__(self) -> None:
        self._headers: SentHeaders[Any, TensorLayout] = SentHeaders()
        self.restart = self._headers.restart

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
        if self._headers.begin():
            extra = {"reset": True}
        layout = self._headers.known.get(tuple(key))
        if layout is None:
            sizes = [None if tensor._datatype == "BYTES" else tensor._array.nbytes for tensor in inputs]
            layout = TensorLayout(sizes, self._headers.next_number())
            extra = dict(extra or {}, headers=[(layout.number, _describe(request))])
            self._headers.known[tuple(key)] = layout
        words = [layout.number]
        parts: list[Any] = []
        payload_bytes = pack_arrays(layout, [tensor._array for tensor in inputs], words, parts)
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
    """Decodes responses of calls."""

    def __init__(self) -> None:
        self._headers = ReceivedHeaders(_plans_and_layout)

    def response(self, frame: Frame) -> InferenceResponse | None:
        """Return the response, None for the end of the responses alone. Raises ChannelError if malformed.

        Its tensors are views on the payload and may be written to.
        """
        extra = frame.extra
        try:
            if extra:
                self._headers.learn(extra)
            if not frame.words[1] & HAS_RESPONSE:
                return None
            if "error" in extra:
                code, message = extra["error"]
                return InferenceResponse((), TritonError(message, ErrorCode(code)))
            plans, layout = self._headers.by_number[frame.words[2]]
            spans, size = layout.read(iter(frame.words[3:]))
        except (LookupError, ValueError, TypeError, StopIteration) as error:
            raise ChannelError(f"unreadable answer: {error!r}") from None
        if size != frame.payload_bytes:
            raise ChannelError(f"an answer of {frame.payload_bytes} bytes where {size} were announced")
        tensors = received_tensors(plans, spans, frame.payload, 0)
        response = InferenceResponse(tensors)
        if "parameters" in extra:
            response._parameters = json.dumps(extra["parameters"])
        return response


def _plans_and_layout(outputs: Sequence[Any]) -> tuple[list[TensorPlan], TensorLayout]:
    plans = [TensorPlan(name, datatype, shape) for name, datatype, shape in outputs]
    return plans, layout_of(plans)

"""Intake: from an execute frame to the requests that a model sees."""

from __future__ import annotations

import json
from typing import Any

from naiad.worker.api.inference import Cancellation, InferenceTrace, ReceivedRequest, RequestPlan, StreamedRequest
from naiad.worker.api.tensor import ReceivedStrings, ReceivedTensor, Tensor, TensorPlan
from naiad.worker.channel.frame import ALIGNMENT, ChannelError, Frame
from naiad.worker.response_sender import ResponseSender, Stream


class _Header:
    """What a number in the table stands for."""

    __slots__ = ("has_sizes", "payload_bytes", "plan", "tensors")

    def __init__(self, notes: dict[str, Any], all_outputs: frozenset[str]) -> None:
        outputs = notes.get("outputs")
        self.plan = RequestPlan(
            correlation_id=notes.get("sequence", 0),
            flags=notes.get("flags", 0),
            timeout_us=notes.get("timeout_us", 0),
            # Triton: a request without any has an empty object, which json.loads takes.
            parameters=notes.get("parameters") or "{}",
            output_names=frozenset(outputs) if outputs else all_outputs,
        )
        self.tensors = [TensorPlan(name, datatype, shape) for name, datatype, shape in notes["inputs"]]
        self.has_sizes = any(tensor.is_text for tensor in self.tensors)
        """Whether the table tells the size of every tensor, because one has strings."""
        self.payload_bytes = 0
        for tensor in self.tensors:
            tensor.offset = self.payload_bytes
            self.payload_bytes += aligned(tensor.size_bytes)


def aligned(size_bytes: int) -> int:
    """Return the space that a tensor takes in a payload."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def _unused(position: int) -> bool:
    return False


class RequestDecoder:
    """Remembers headers by their numbers."""

    def __init__(self, all_outputs: frozenset[str]) -> None:
        self._all_outputs = all_outputs
        self._headers: dict[int, _Header] = {}

    def requests(self, frame: Frame, cancellation: Cancellation) -> list[ReceivedRequest]:
        """Return the requests of a batch; their inputs are views on the payload. Raises ChannelError."""
        # hot: bench/micro_worker.py
        if frame.extra:
            self._learn(frame.extra)
        payload = frame.payload
        headers = self._headers
        requests: list[ReceivedRequest] = []
        ids = frame.text.split("\0")
        words = iter(frame.words)
        position = 0
        for number in words:
            header = headers[number]
            if header.has_sizes:
                inputs: list[Tensor] = []
                for tensor in header.tensors:
                    size = next(words)
                    inputs.append(
                        ReceivedStrings(tensor, payload, position, size)
                        if tensor.is_text
                        else ReceivedTensor(tensor, payload, position)
                    )
                    position += aligned(size)
            else:
                inputs = [ReceivedTensor(tensor, payload, position + tensor.offset) for tensor in header.tensors]
                position += header.payload_bytes
            index = len(requests)
            requests.append(ReceivedRequest(header.plan, ids[index], inputs, cancellation, index))
        for index, traceparent in frame.extra.get("traces", ()):
            # Triton: the form in which a propagator takes it.
            context = json.dumps({"traceparent": traceparent})
            requests[index]._trace = InferenceTrace(context, requests[index]._position)
        if position != frame.payload_bytes:
            raise ChannelError(f"a payload of {frame.payload_bytes} bytes where {position} were announced")
        return requests

    def streamed_requests(
        self, frame: Frame, response_sender: ResponseSender
    ) -> tuple[list[StreamedRequest], list[Stream]]:
        """Return the requests of a batch of a decoupled model, and where their responses go. Raises ChannelError.

        The table begins with the slots of the requests.
        """
        count = frame.text.count("\0") + 1
        slots, frame.words = frame.words[:count], frame.words[count:]
        received = self.requests(frame, _unused)
        streams = [
            Stream(response_sender, slot, request._plan.output_names) for slot, request in zip(slots, received)
        ]
        requests = [
            StreamedRequest(request._plan, request._id, request._inputs, stream, stream.slot)
            for request, stream in zip(received, streams)
        ]
        for index, traced in enumerate(received):
            context = traced.trace().get_context()
            if context is not None:
                requests[index]._trace = InferenceTrace(context, slots[index])
        return requests, streams

    def _learn(self, extra: dict[str, Any]) -> None:
        if extra.get("reset"):
            self._headers.clear()
        for number, notes in extra.get("headers", ()):
            self._headers[number] = _Header(notes, self._all_outputs)

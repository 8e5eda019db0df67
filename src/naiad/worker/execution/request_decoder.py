"""The request decoder: from an execute frame to the requests of a model."""

from __future__ import annotations

import json
from typing import Any, Sequence

from naiad.worker.api.request import InferenceTrace, ReceivedRequest, RequestPlan, StreamedRequest
from naiad.worker.api.response import Cancellation
from naiad.worker.api.tensor import ReceivedStrings, ReceivedTensor, Tensor, TensorPlan
from naiad.worker.channel.frame import ChannelError, Frame
from naiad.worker.channel.layout import ReceivedHeaders, Spans, TensorLayout
from naiad.worker.execution.response_sender import ResponseSender, Stream


class _Header:
    """The header of a number in the table."""

    __slots__ = ("layout", "plan", "tensors")

    def __init__(self, notes: dict[str, Any], all_outputs: frozenset[str]) -> None:
        outputs = notes.get("outputs")
        self.plan = RequestPlan(
            correlation_id=notes.get("sequence", 0),
            flags=notes.get("flags", 0),
            timeout_us=notes.get("timeout_us", 0),
            # Triton: without parameters the text is an empty object, which json.loads accepts.
            parameters=notes.get("parameters") or "{}",
            output_names=frozenset(outputs) if outputs else all_outputs,
        )
        self.tensors = [TensorPlan(name, datatype, shape) for name, datatype, shape in notes["inputs"]]
        self.layout = layout_of(self.tensors)
        for tensor, (begin, _) in zip(self.tensors, self.layout.spans):
            tensor.offset = begin


def layout_of(tensors: Sequence[TensorPlan]) -> TensorLayout:
    """Return the positions of tensors in a payload."""
    return TensorLayout([None if tensor.is_text else tensor.size_bytes for tensor in tensors])


def received_tensors(tensors: Sequence[TensorPlan], spans: Spans, payload: Any, position: int) -> list[Tensor]:
    """Return tensors, some of which are strings, as views on the payload from `position` on."""
    return [
        ReceivedStrings(tensor, payload, position + begin, end - begin)
        if tensor.is_text
        else ReceivedTensor(tensor, payload, position + begin)
        for tensor, (begin, end) in zip(tensors, spans)
    ]


class RequestDecoder:
    """Keeps headers by their numbers."""

    def __init__(self, all_outputs: frozenset[str]) -> None:
        self._all_outputs = all_outputs
        self._headers = ReceivedHeaders(self._header)

    def requests(self, frame: Frame, cancellation: Cancellation) -> list[ReceivedRequest]:
        """Return the requests of a batch; their inputs are views on the payload. Raises ChannelError."""
        # hot: bench/micro_worker.py
        if frame.extra:
            self._headers.learn(frame.extra)
        payload = frame.payload
        headers = self._headers.by_number
        requests: list[ReceivedRequest] = []
        ids = frame.text.split("\0")
        words = iter(frame.words)
        position = 0
        for number in words:
            header = headers[number]
            layout = header.layout
            if layout.has_sizes:
                spans, size = layout.read(words)
                inputs = received_tensors(header.tensors, spans, payload, position)
                position += size
            else:
                inputs = [ReceivedTensor(tensor, payload, position + tensor.offset) for tensor in header.tensors]
                position += layout.payload_bytes
            index = len(requests)
            requests.append(ReceivedRequest(header.plan, ids[index], inputs, cancellation, index))
        for index, traceparent in frame.extra.get("traces", ()):
            # Triton: the form that propagators accept.
            context = json.dumps({"traceparent": traceparent})
            requests[index]._trace = InferenceTrace(context, requests[index]._position)
        if position != frame.payload_bytes:
            raise ChannelError(f"a payload of {frame.payload_bytes} bytes where {position} were announced")
        return requests

    def streamed_requests(
        self, frame: Frame, response_sender: ResponseSender
    ) -> tuple[list[StreamedRequest], list[Stream]]:
        """Return the requests of a batch of a decoupled model, and the streams of their responses. Raises
        ChannelError.

        The table begins with the slots of the requests.
        """
        count = frame.text.count("\0") + 1
        slots, frame.words = frame.words[:count], frame.words[count:]
        received = self.requests(frame, lambda position: False)
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

    def _header(self, notes: dict[str, Any]) -> _Header:
        return _Header(notes, self._all_outputs)

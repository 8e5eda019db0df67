"""Batches to frames and frames to responses: the server's half of `worker.intake` and `worker.reply`."""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from naiad.backend.python.tensors import TensorRules
from naiad.core.datatype import BY_NAME, DataType
from naiad.core.errors import ErrorCode, InferError, internal
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import RESCHEDULE, InferResponse, ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec
from naiad.worker.api.inference import (
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
)
from naiad.worker.channel.frame import ALIGNMENT, PADDING, ChannelError, Frame

MOST_HEADERS = 1024
"""Request headers that are remembered; then both sides begin anew."""


class _RequestShape:
    __slots__ = ("has_sizes", "is_dense", "number", "payload_bytes")

    def __init__(self, number: int, header: RequestHeader) -> None:
        sizes = [spec.byte_size for spec in header.inputs]
        self.number = number
        self.has_sizes = any(spec.datatype is DataType.BYTES for spec in header.inputs)
        self.is_dense = not self.has_sizes and not any(size % ALIGNMENT for size in sizes)
        """Whether the inputs can follow each other without padding."""
        self.payload_bytes = sum(sizes)


class BatchEncoder:
    """Makes execute frames for one worker; headers travel once."""

    def __init__(self, rules: TensorRules) -> None:
        self._rules = rules
        self._shapes: dict[RequestHeader, _RequestShape] = {}
        self._restarts = False

    def restart(self) -> None:
        """Begin anew: a frame that was encoded will not be sent, and with it the headers that it tells of."""
        self._shapes.clear()
        self._restarts = True

    def encode(self, requests: Sequence[InferRequest]) -> tuple[list[int], dict[str, Any] | None, list[Buffer], int]:
        """Return table, JSON, payload parts and payload bytes of a batch."""
        # hot: bench/micro_worker.py
        extra: dict[str, Any] | None = None
        if self._restarts or len(self._shapes) > MOST_HEADERS:
            self._shapes.clear()
            self._restarts = False
            extra = {"reset": True, "headers": []}
        shapes = self._shapes
        words: list[int] = []
        parts: list[Buffer] = []
        payload_bytes = 0
        for request in requests:
            if request.times is not None and request.times.traceparent:
                extra = _note_trace(extra, requests, request)
            shape = shapes.get(request.header)
            if shape is None:
                if extra is None:
                    extra = {}
                shape = self._define(request.header, extra.setdefault("headers", []))
            words.append(shape.number)
            if shape.is_dense:
                parts += request.data
                payload_bytes += shape.payload_bytes
            else:
                payload_bytes += append_padded(request.data, shape.has_sizes, words, parts)
        return words, extra, parts, payload_bytes

    def _define(self, header: RequestHeader, notes: list[Any]) -> _RequestShape:
        shape = self._shapes[header] = _RequestShape(len(self._shapes) + 1, header)
        notes.append((shape.number, describe_header(header, self._rules)))
        return shape


def _note_trace(
    extra: dict[str, Any] | None, requests: Sequence[InferRequest], request: InferRequest
) -> dict[str, Any]:
    """Tell which span a request belongs to, so that the model can go on with the trace."""
    extra = {} if extra is None else extra
    position = next(index for index, each in enumerate(requests) if each is request)
    extra.setdefault("traces", []).append((position, request.times.traceparent if request.times else ""))
    return extra


def append_padded(tensors: Sequence[Buffer], has_sizes: bool, words: list[int], parts: list[Buffer]) -> int:
    """Append tensors to a payload, and their sizes to the table if it has them; return the bytes that they take."""
    payload_bytes = 0
    for data in tensors:
        size = len(data)
        if has_sizes:
            words.append(size)
        parts.append(data)
        padding = -size % ALIGNMENT
        if padding:
            parts.append(PADDING[padding])
        payload_bytes += size + padding
    return payload_bytes


def join_ids(requests: Sequence[InferRequest]) -> str:
    """Return the ids of a batch with NUL between them."""
    text = "\0".join([request.id for request in requests])
    if text.count("\0") != len(requests) - 1:  # JSON can spell a NUL in an id
        text = "\0".join([request.id.replace("\0", "\ufffd") for request in requests])
    return text


def describe_header(header: RequestHeader, rules: TensorRules) -> dict[str, Any]:
    """Return what a worker needs to know of a header, as JSON values."""
    flags = TRITONSERVER_REQUEST_FLAG_SEQUENCE_START if header.sequence_start else 0
    flags |= TRITONSERVER_REQUEST_FLAG_SEQUENCE_END if header.sequence_end else 0
    notes: dict[str, Any] = {
        "inputs": [(spec.name, spec.datatype.value, rules.model_shape(spec)) for spec in header.inputs],
        "outputs": [output.name for output in header.outputs],
        "sequence": header.sequence_id,
        "flags": flags,
        "timeout_us": header.timeout_us,
    }
    if header.parameters:
        # Triton: compact.
        notes["parameters"] = json.dumps(dict(header.parameters), separators=(",", ":"))
    return notes


class ResponseShape:
    """What a number in the table of a reply stands for."""

    __slots__ = ("has_sizes", "header", "is_sound", "payload_bytes", "problem", "rows", "spans")

    def __init__(
        self, model: str, version: str, specs: Sequence[TensorSpec], rules: TensorRules, *, may_vary: bool
    ) -> None:
        """`may_vary`: outputs may be missing and have any shape."""
        self.header = ResponseHeader(model, version, rules.client_specs(specs))
        self.problem = rules.problem_of(specs, is_decoupled=may_vary)
        self.is_sound = not self.problem and (may_vary or rules.is_complete(specs))
        self.rows = rules.rows_of(specs)
        self.has_sizes = any(spec.datatype is DataType.BYTES for spec in specs)
        self.spans: list[tuple[int, int]] = []
        """Begin and end of each output behind the first, when no output has strings."""
        self.payload_bytes = 0
        for spec in specs:
            size = spec.byte_size
            self.spans.append((self.payload_bytes, self.payload_bytes + size))
            self.payload_bytes += size + -size % ALIGNMENT


class ResponseDecoder:
    """Makes responses of the executed frames of one worker."""

    may_vary: ClassVar[bool] = False
    """Whether responses need not have all outputs nor the shapes of the configuration."""

    def __init__(self, model: str, version: str, rules: TensorRules) -> None:
        self._model = model
        self._rules = rules
        self._version = version
        self._shapes: dict[int, ResponseShape] = {}
        self.failed_header = ResponseHeader(model, version, ())
        """Of responses without outputs."""
        self._failed = InferResponse(self.failed_header)

    def decode(self, frame: Frame, requests: Sequence[InferRequest]) -> list[InferResponse]:
        """Return a response for each request; their data are views on the frame's payload. Raises ChannelError."""
        # hot: bench/micro_worker.py
        extra = frame.extra
        if extra:
            self._learn(extra)
        view = memoryview(frame.payload)
        shapes = self._shapes
        responses: list[InferResponse] = []
        position = 0
        count = len(requests)
        words = iter(frame.words)
        try:
            for number in words:
                if not number:
                    responses.append(self._failed)
                    continue
                shape = shapes[number]
                data: list[Buffer]
                if shape.has_sizes:
                    data = []
                    for _ in shape.spans:
                        size = next(words)
                        data.append(view[position : position + size])
                        position += size + -size % ALIGNMENT
                else:
                    data = [view[position + begin : position + end] for begin, end in shape.spans]
                    position += shape.payload_bytes
                request = requests[len(responses)]
                if shape.is_sound and shape.rows in (0, request.batch_size):
                    responses.append(InferResponse(shape.header, data))
                else:
                    responses.append(self._checked(shape, request, data))
        except (LookupError, StopIteration) as error:
            raise ChannelError(f"unreadable table: {error!r}") from None
        if len(responses) != count or position != len(view):
            raise ChannelError(f"{len(responses)} responses in {position} bytes, not {count} in {len(view)}")
        if extra or self._failed in responses:
            self._amend(responses, extra)
        return responses

    def _checked(self, shape: ResponseShape, request: InferRequest, data: list[Buffer]) -> InferResponse:
        """Return the response with this data, or the error that stands for it."""
        specs = shape.header.outputs
        error = internal(shape.problem) if shape.problem else self._rules.missing(request, specs)
        if error is None and shape.rows not in (0, request.batch_size):
            error = self._rules.wrong_rows(request, specs)
        if error is None:
            return InferResponse(shape.header, data)
        return InferResponse(self.failed_header, error=error)

    def _learn(self, extra: dict[str, Any]) -> None:
        try:
            if extra.get("reset"):
                self._shapes.clear()
            for number, tensors in extra.get("headers", ()):
                specs = [
                    TensorSpec(str(name), BY_NAME[kind], tuple(map(int, shape))) for name, kind, shape in tensors
                ]
                self._shapes[number] = ResponseShape(
                    self._model, self._version, specs, self._rules, may_vary=self.may_vary
                )
        except (LookupError, TypeError, ValueError) as error:
            raise ChannelError(f"unreadable headers: {error!r}") from None

    def _amend(self, responses: list[InferResponse], extra: dict[str, Any]) -> None:
        try:
            for index in extra.get("rescheduled", ()):
                responses[index] = RESCHEDULE
            for index, code, message in extra.get("errors", ()):
                error = InferError(ErrorCode(code), str(message))
                responses[index] = InferResponse(self.failed_header, error=error)
            for index, parameters in extra.get("parameters", ()):
                responses[index].parameters = parameters
        except (LookupError, TypeError, ValueError) as error:
            raise ChannelError(f"unreadable errors or parameters: {error!r}") from None
        if any(response is self._failed for response in responses):
            raise ChannelError("a failed response without its error")

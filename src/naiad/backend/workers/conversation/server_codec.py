"""Batches to frames and frames to responses; frames to calls of other models, and their responses to frames.

The worker's part is `worker.execution.codec`; `worker.channel.layout` has what all of them share.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from naiad.backend.workers.conversation.tensor_rules import ANY_ROWS, TensorRules
from naiad.core.datatype import BY_NAME, DataType
from naiad.core.errors import ErrorCode, InferError, internal
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import RESCHEDULE, InferResponse, ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec
from naiad.worker.api.request import TRITONSERVER_REQUEST_FLAG_SEQUENCE_END, TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
from naiad.worker.channel.frame import ChannelError, Frame
from naiad.worker.channel.layout import ReceivedHeaders, SentHeaders, TensorLayout
from naiad.worker.execution.codec import HAS_RESPONSE


def sizes_of(specs: Sequence[TensorSpec]) -> list[int | None]:
    """Return the bytes of tensors in a payload, None for BYTES."""
    return [None if spec.datatype is DataType.BYTES else spec.byte_size for spec in specs]


class BatchEncoder:
    """Encodes execute frames for one worker; headers are sent once."""

    def __init__(self, rules: TensorRules) -> None:
        self._rules = rules
        self._headers: SentHeaders[RequestHeader] = SentHeaders()
        self._layouts = self._headers.known
        self.restart = self._headers.restart

    def encode(self, requests: Sequence[InferRequest]) -> tuple[list[int], dict[str, Any] | None, list[Buffer], int]:
        """Return table, JSON, payload parts and payload bytes of a batch."""
        # hot: bench/micro_worker.py
        extra: dict[str, Any] | None = None
        if self._headers.begin():
            extra = {"reset": True, "headers": []}
        layouts = self._layouts
        words: list[int] = []
        parts: list[Buffer] = []
        payload_bytes = 0
        for request in requests:
            if request.times is not None and request.times.traceparent:
                extra = _note_trace(extra, requests, request)
            layout = layouts.get(request.header)
            if layout is None:
                if extra is None:
                    extra = {}
                layout = self._define(request.header, extra.setdefault("headers", []))
            words.append(layout.number)
            if layout.is_dense:
                parts += request.data
                payload_bytes += layout.payload_bytes
            else:
                payload_bytes += layout.pack(request.data, map(len, request.data), words, parts)
        return words, extra, parts, payload_bytes

    def _define(self, header: RequestHeader, notes: list[Any]) -> TensorLayout:
        layout = self._headers.define(header, sizes_of(header.inputs))
        notes.append((layout.number, describe_header(header, self._rules)))
        return layout


def _note_trace(
    extra: dict[str, Any] | None, requests: Sequence[InferRequest], request: InferRequest
) -> dict[str, Any]:
    """Add the span of a request, so that the model can continue the trace."""
    extra = {} if extra is None else extra
    position = next(index for index, each in enumerate(requests) if each is request)
    extra.setdefault("traces", []).append((position, request.times.traceparent if request.times else ""))
    return extra


def read_specs(tensors: Sequence[tuple[Any, Any, Any]]) -> list[TensorSpec]:
    """Return the specs in a worker's description. Raises LookupError, TypeError and ValueError."""
    return [TensorSpec(str(name), BY_NAME[kind], tuple(map(int, shape))) for name, kind, shape in tensors]


def join_ids(requests: Sequence[InferRequest]) -> str:
    """Return the ids of a batch with NUL between them."""
    text = "\0".join([request.id for request in requests])
    if text.count("\0") != len(requests) - 1:  # a JSON string may contain a NUL
        text = "\0".join([request.id.replace("\0", "\ufffd") for request in requests])
    return text


def describe_header(header: RequestHeader, rules: TensorRules) -> dict[str, Any]:
    """Return the description of a header for a worker, as JSON values."""
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
    """The shape of a response: the meaning of a number in the table of an executed frame."""

    __slots__ = ("header", "is_sound", "layout", "problem", "rows")

    def __init__(
        self, model: str, version: str, specs: Sequence[TensorSpec], rules: TensorRules, *, may_vary: bool
    ) -> None:
        """`may_vary`: outputs may be missing and have any shape."""
        self.header = ResponseHeader(model, version, rules.client_specs(specs))
        self.problem = rules.problem_of(specs, is_decoupled=may_vary)
        self.is_sound = not self.problem and (may_vary or rules.is_complete(specs))
        self.rows = rules.rows_of(specs)
        self.layout = TensorLayout(sizes_of(specs))


class BatchResponseDecoder:
    """Decodes the executed frames of one worker."""

    may_vary: ClassVar[bool] = False
    """Whether responses may lack outputs, or have other shapes than the configuration."""

    def __init__(self, model: str, version: str, rules: TensorRules) -> None:
        self._model = model
        self._rules = rules
        self._version = version
        self._headers = ReceivedHeaders(self._shape)
        self._shapes = self._headers.by_number
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
                layout = shape.layout
                spans, size = layout.read(words) if layout.has_sizes else (layout.spans, layout.payload_bytes)
                data: list[Buffer] = [view[position + begin : position + end] for begin, end in spans]
                position += size
                request = requests[len(responses)]
                if shape.is_sound and shape.rows in (ANY_ROWS, request.batch_size):
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
        """Return the response with this data, or the error for it."""
        specs = shape.header.outputs
        error = internal(shape.problem) if shape.problem else self._rules.missing(request, specs)
        if error is None and shape.rows not in (ANY_ROWS, request.batch_size):
            error = self._rules.wrong_rows(request, specs)
        if error is None:
            return InferResponse(shape.header, data)
        return InferResponse(self.failed_header, error=error)

    def _learn(self, extra: dict[str, Any]) -> None:
        try:
            self._headers.learn(extra)
        except (LookupError, TypeError, ValueError) as error:
            raise ChannelError(f"unreadable headers: {error!r}") from None

    def _shape(self, tensors: Sequence[tuple[Any, Any, Any]]) -> ResponseShape:
        return ResponseShape(self._model, self._version, read_specs(tensors), self._rules, may_vary=self.may_vary)

    def _amend(self, responses: list[InferResponse], extra: dict[str, Any]) -> None:
        try:
            for index in extra.get("rescheduled", ()):
                responses[index] = RESCHEDULE
            for index, code, message in extra.get("errors", ()):
                error = InferError(ErrorCode(code), str(message))
                error.rejection = None  # the model has executed the request
                responses[index] = InferResponse(self.failed_header, error=error)
            for index, parameters in extra.get("parameters", ()):
                responses[index].parameters = parameters
        except (LookupError, TypeError, ValueError) as error:
            raise ChannelError(f"unreadable errors or parameters: {error!r}") from None
        if any(response is self._failed for response in responses):
            raise ChannelError("a failed response without its error")


# --- calls of other models ------------------------------------------------------------------------------------------


class CallDecoder:
    """Keeps the headers of one worker's calls by their numbers."""

    def __init__(self) -> None:
        self._headers = ReceivedHeaders(_read_call)

    def decode(self, frame: Frame, words: Iterator[int]) -> tuple[RequestHeader, list[Buffer]]:
        """Return header and input data of a call; the data are views on the payload.

        `words` is the rest of the table. Raises ChannelError.
        """
        # hot: once a call
        try:
            if frame.extra:
                self._headers.learn(frame.extra)
            header, layout = self._headers.by_number[next(words)]
            view = memoryview(frame.payload)
            spans, size = layout.read(words)
            data: list[Buffer] = [view[begin:end] for begin, end in spans]
        except (LookupError, TypeError, ValueError, StopIteration) as error:
            raise ChannelError(f"unreadable call: {error!r}") from None
        if size != len(view):
            raise ChannelError(f"{len(data)} inputs of {size} bytes in {len(view)}")
        return header, data


def _read_call(notes: Mapping[str, Any]) -> tuple[RequestHeader, TensorLayout]:
    flags = int(notes["flags"])
    sequence = notes["sequence"]
    version = notes["version"]
    parameters = dict(notes["parameters"])
    priority = parameters.get("priority")
    header = RequestHeader(
        model_name=str(notes["model"]),
        model_version="" if isinstance(version, int) and version < 0 else str(version),
        inputs=read_specs(notes["inputs"]),
        outputs=[RequestedOutput(str(name)) for name in notes["outputs"]],
        parameters=parameters,
        # An extension: Triton has no priority of calls.
        priority=priority if type(priority) is int and priority >= 0 else 0,
        timeout_us=int(notes["timeout_us"]),
        sequence_id=sequence if isinstance(sequence, str) else int(sequence),
        sequence_start=bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
        sequence_end=bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
    )
    return header, TensorLayout(sizes_of(header.inputs))


class CallResponseEncoder:
    """Encodes the variable part of responses to one worker; headers are sent once."""

    def __init__(self) -> None:
        self._headers: SentHeaders[ResponseHeader] = SentHeaders()
        self.restart = self._headers.restart

    def encode(
        self, number: int, flags: int, response: InferResponse
    ) -> tuple[list[int], dict[str, Any] | None, list[Buffer], int]:
        """Return table, JSON, payload parts and payload bytes of the response to call `number`."""
        # hot: once a response
        error = response.error
        if error is not None:
            return [number, flags | HAS_RESPONSE], {"error": [error.code.value, error.message]}, [], 0
        if response.empty_final:
            return [number, flags], None, [], 0
        extra: dict[str, Any] = {}
        layout = self._headers.known.get(response.header) or self._define(response.header, extra)
        if response.parameters:
            extra["parameters"] = dict(response.parameters)
        words = [number, flags | HAS_RESPONSE, layout.number]
        parts: list[Buffer] = []
        payload_bytes = layout.pack(response.data, map(len, response.data), words, parts)
        return words, extra, parts, payload_bytes

    def _define(self, header: ResponseHeader, extra: dict[str, Any]) -> TensorLayout:
        if self._headers.begin():
            extra["reset"] = True
        layout = self._headers.define(header, sizes_of(header.outputs))
        outputs = [(spec.name, spec.datatype.value, spec.shape) for spec in header.outputs]
        extra["headers"] = [(layout.number, outputs)]
        return layout

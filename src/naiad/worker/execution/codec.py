"""Frames to requests of a model, and its responses to frames; its calls of other models, and their responses.

The server's part is `backend.workers.conversation.server_codec`; `channel.layout` has what all of them share.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from naiad.worker.api.failure import ErrorCode, TritonError, TritonModelException, shortened
from naiad.worker.api.request import InferenceRequest, InferenceTrace, ReceivedRequest, RequestPlan
from naiad.worker.api.response import Cancellation, InferenceResponse
from naiad.worker.api.tensor import ReceivedStrings, ReceivedTensor, Tensor, TensorPlan, encode_strings
from naiad.worker.channel import channel as channel_module
from naiad.worker.channel.frame import ChannelError, Frame
from naiad.worker.channel.layout import ReceivedHeaders, SentHeaders, Spans, TensorLayout

_MODEL = [""]
"""The name of the model of this process, for errors."""


def set_model_name(name: str) -> None:
    """Set the name of the model of this process."""
    _MODEL[0] = name


class _TextError(TritonModelException):
    """A tensor has text that UTF-8 does not have."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"tensor '{name}' {problem}")
        self.name = name
        self.problem = problem


# --- requests -------------------------------------------------------------------------------------------------------


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

    def _header(self, notes: dict[str, Any]) -> _Header:
        return _Header(notes, self._all_outputs)


# --- responses ------------------------------------------------------------------------------------------------------

_MANY_WORDS = 2048


class EncodedResponse:
    """One executed frame under construction."""

    __slots__ = ("errors", "headers", "parameters", "parts", "payload_bytes", "reset", "words")

    def __init__(self) -> None:
        self.words: list[int] = []
        self.parts: list[Any] = []
        self.payload_bytes = 0
        self.headers: list[tuple[int, list[tuple[str, str, Sequence[int]]]]] = []
        self.errors: list[tuple[int, int, str]] = []
        self.parameters: list[tuple[int, Any]] = []
        self.reset = False

    @property
    def is_large(self) -> bool:
        """Whether it should not grow any more."""
        return self.payload_bytes > channel_module.INLINE_BYTES or len(self.words) > _MANY_WORDS

    def mark(self) -> tuple[int, int, int]:
        """Return the state for `rewind`."""
        return len(self.words), len(self.parts), self.payload_bytes

    def rewind(self, mark: tuple[int, int, int], index: int) -> None:
        """Remove the responses from number `index` on, which were added since `mark`."""
        del self.words[mark[0] :], self.parts[mark[1] :]
        self.payload_bytes = mark[2]
        self.errors = [each for each in self.errors if each[0] < index]
        self.parameters = [each for each in self.parameters if each[0] < index]

    def extra(self) -> dict[str, Any] | None:
        """Return the JSON of the frame, None without any."""
        if not (self.headers or self.errors or self.parameters or self.reset):
            return None
        return {"reset": self.reset, "headers": self.headers, "errors": self.errors, "parameters": self.parameters}


class ResponseEncoder:
    """Keeps the headers that the server knows already."""

    def __init__(self) -> None:
        self._headers: SentHeaders[Any] = SentHeaders()
        self._layouts = self._headers.known
        self.restart = self._headers.restart

    def begin(self) -> EncodedResponse:
        """Return an empty frame, the only one under construction."""
        reply = EncodedResponse()
        reply.reset = self._headers.begin()
        return reply

    def encode(self, requests: Sequence[InferenceRequest], responses: Sequence[InferenceResponse]) -> EncodedResponse:
        """Return the frame of a batch; outputs that were not requested are dropped."""
        # hot: bench/micro_worker.py
        reply = self.begin()
        add = self.add
        for index, (request, response) in enumerate(zip(requests, responses)):
            try:
                add(reply, index, request._plan.output_names, response)
            except TritonModelException as error:
                # Only this response fails; of its words there is the first.
                reply.words[-1] = 0
                reply.parameters = [each for each in reply.parameters if each[0] != index]
                reply.errors.append((index, int(TritonError.INTERNAL), str(error)))
        return reply

    def add(self, reply: EncodedResponse, index: int, wanted: frozenset[str], response: InferenceResponse) -> None:
        """Add response number `index`; its arrays are read when the frame is sent.

        Raises TritonModelException for text that UTF-8 does not have.
        """
        # hot: bench/micro_worker.py
        if response._error is not None:
            error = response._error
            reply.errors.append((index, int(error.code()), shortened(error.message())))
            reply.words.append(0)
            return
        parts = reply.parts
        key: list[Any] = []
        begin = len(parts)
        for tensor in response._tensors:
            if tensor._name in wanted:
                array = tensor._array
                parts.append(array)
                key += (tensor._name, tensor._datatype, array.shape)
        layout = self._layouts.get(tuple(key))
        if layout is None:
            layout = self._define(tuple(key), parts[begin:], reply)
        if response._parameters:
            reply.parameters.append((index, json.loads(response._parameters)))
        reply.words.append(layout.number)
        if layout.is_dense:
            reply.payload_bytes += layout.payload_bytes
        else:
            arrays = parts[begin:]
            del parts[begin:]
            try:
                reply.payload_bytes += pack_arrays(layout, arrays, key[::3], reply.words, parts)
            except _TextError as error:
                text = f"output '{error.name}' of model '{_MODEL[0]}' {error.problem}"
                raise TritonModelException(text) from None

    def _define(self, key: tuple[Any, ...], arrays: Sequence[Any], reply: EncodedResponse) -> TensorLayout:
        outputs = [(key[at], key[at + 1], key[at + 2]) for at in range(0, len(key), 3)]
        sizes = [None if output[1] == "BYTES" else array.nbytes for output, array in zip(outputs, arrays)]
        layout = self._headers.define(key, sizes)
        reply.headers.append((layout.number, outputs))
        return layout


def pack_arrays(
    layout: TensorLayout, arrays: Sequence[Any], names: Sequence[str], words: list[int], parts: list[Any]
) -> int:
    """Append arrays to a payload, strings encoded, as `TensorLayout.pack` does. Raises TritonModelException."""
    try:
        tensors: list[Any] = [encode_strings(array) if array.dtype.kind in "OSU" else array for array in arrays]
    except UnicodeEncodeError:
        raise _text_error(arrays, names) from None
    sizes = [len(tensor) if type(tensor) is bytes else tensor.nbytes for tensor in tensors]
    return layout.pack(tensors, sizes, words, parts)


def _text_error(arrays: Sequence[Any], names: Sequence[str]) -> _TextError:
    """Return the error of the first array with text that cannot be encoded."""
    for array, name in zip(arrays, names):
        for index, element in enumerate(array.ravel().tolist() if array.dtype.kind in "OSU" else ()):
            try:
                str(element).encode("utf-8", "surrogateescape")
            except UnicodeEncodeError as error:
                half = f"U+{ord(error.object[error.start]):04X}"
                problem = (
                    f"has half of a surrogate pair ({half}, at character {error.start} of element {index}), which "
                    "UTF-8 does not have; encode the text with text.encode('utf-8', 'replace')"
                )
                return _TextError(name, problem)
    return _TextError("", "has text that UTF-8 does not have")


# --- calls of other models ------------------------------------------------------------------------------------------

# Flags of a call:
DECOUPLED = 1
"""The call expects any number of responses."""
HOLDS = 2
"""The thread that executes the batch makes the call."""
TRACED = 8
"""A number follows that identifies the caller's request: the call is traced if that is."""
# Flags of a response, of a call and of a model with open requests:
FINAL = 1
HAS_RESPONSE = 2
RESCHEDULED = 4
"""The request is to be executed again; its slot is free."""
SLOT_SHIFT = 3
"""A word of an emitted frame is the slot of a request, shifted, and these flags."""


class CallEncoder:
    """Encodes the variable part of call frames; headers are sent once."""

    def __init__(self) -> None:
        self._headers: SentHeaders[Any] = SentHeaders()
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
            description = _describe(request)
            layout = self._headers.define(tuple(key), sizes)
            extra = dict(extra or {}, headers=[(layout.number, description)])
        words = [layout.number]
        parts: list[Any] = []
        names = [tensor._name for tensor in inputs]
        try:
            payload_bytes = pack_arrays(layout, [tensor._array for tensor in inputs], names, words, parts)
        except _TextError as error:
            text = f"input '{error.name}' of the call of model '{request.model_name}' {error.problem}"
            raise TritonModelException(text) from None
        return words, extra, parts, payload_bytes


def _describe(request: InferenceRequest) -> dict[str, Any]:
    plan = request._plan
    return {
        "model": request.model_name,
        "version": request.model_version,
        "inputs": [(tensor._name, tensor._datatype, tensor._array.shape) for tensor in request._inputs],
        "outputs": sorted(plan.output_names),
        "parameters": json.loads(plan.parameters or "{}"),
        "sequence": plan.correlation_id,
        "flags": request._flags,
        "timeout_us": plan.timeout_us,
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
            response._parameters = json.dumps(extra["parameters"], separators=(",", ":"))
        return response


def _plans_and_layout(outputs: Sequence[Any]) -> tuple[list[TensorPlan], TensorLayout]:
    plans = [TensorPlan(name, datatype, shape) for name, datatype, shape in outputs]
    return plans, layout_of(plans)

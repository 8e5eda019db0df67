"""Frames to calls of other models and responses to frames: the server's half of `worker.call_wire`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from naiad.backend.python.codec import append_padded
from naiad.core.datatype import BY_NAME, DataType
from naiad.core.request import RequestedOutput, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec
from naiad.worker.api.inference import (
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
)
from naiad.worker.call_codec import HAS_RESPONSE, MOST_HEADERS
from naiad.worker.channel.frame import ALIGNMENT, ChannelError, Frame


class _CallHeader:
    __slots__ = ("has_sizes", "header", "sizes")

    def __init__(self, header: RequestHeader) -> None:
        self.header = header
        self.has_sizes = any(spec.datatype is DataType.BYTES for spec in header.inputs)
        self.sizes = [spec.byte_size for spec in header.inputs]


class CallDecoder:
    """Remembers the headers of one worker's calls by their numbers."""

    def __init__(self) -> None:
        self._headers: dict[int, _CallHeader] = {}

    def decode(self, frame: Frame, words: Iterator[int]) -> tuple[RequestHeader, list[Buffer]]:
        """Return header and input data of a call, whose data are views on the payload.

        `words` are what is left of the table. Raises ChannelError.
        """
        # hot: once a call
        try:
            if frame.extra:
                self._learn(frame.extra)
            known = self._headers[next(words)]
            view = memoryview(frame.payload)
            data: list[Buffer] = []
            position = 0
            for size in words if known.has_sizes else known.sizes:
                data.append(view[position : position + size])
                position += size + -size % ALIGNMENT
        except (LookupError, TypeError, ValueError, StopIteration) as error:
            raise ChannelError(f"unreadable call: {error!r}") from None
        if position != len(view) or len(data) != len(known.sizes):
            raise ChannelError(f"{len(data)} inputs of {position} bytes in {len(view)}")
        return known.header, data

    def _learn(self, extra: Mapping[str, Any]) -> None:
        if extra.get("reset"):
            self._headers.clear()
        if "header" in extra:
            number, notes = extra["header"]
            if len(self._headers) > 2 * MOST_HEADERS:
                raise ValueError(f"{len(self._headers)} headers without a reset")
            self._headers[number] = _CallHeader(_header_from(notes))


def _header_from(notes: Mapping[str, Any]) -> RequestHeader:
    flags = int(notes["flags"])
    sequence = notes["sequence"]
    version = int(notes["version"])
    parameters = dict(notes["parameters"])
    priority = parameters.get("priority")
    return RequestHeader(
        model_name=str(notes["model"]),
        model_version="" if version < 0 else str(version),
        inputs=[
            TensorSpec(str(name), BY_NAME[kind], tuple(map(int, shape))) for name, kind, shape in notes["inputs"]
        ],
        outputs=[RequestedOutput(str(name)) for name in notes["outputs"]],
        parameters=parameters,
        # Beyond Triton, which has no way to give a call a priority.
        priority=priority if type(priority) is int and priority >= 0 else 0,
        timeout_us=int(notes["timeout_us"]),
        sequence_id=sequence if isinstance(sequence, str) else int(sequence),
        sequence_start=bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
        sequence_end=bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
    )


class _AnswerHeader:
    __slots__ = ("has_sizes", "number")

    def __init__(self, number: int, header: ResponseHeader) -> None:
        self.number = number
        self.has_sizes = any(spec.datatype is DataType.BYTES for spec in header.outputs)


class CallResponseEncoder:
    """Makes the variable part of answers to one worker; headers travel once."""

    def __init__(self) -> None:
        self._headers: dict[ResponseHeader, _AnswerHeader] = {}
        self._restarts = False

    def restart(self) -> None:
        """Begin anew: an answer that was encoded will not be sent, and with it the header that it tells of."""
        self._headers.clear()
        self._restarts = True

    def encode(
        self, number: int, flags: int, response: InferResponse
    ) -> tuple[list[int], dict[str, Any] | None, list[Buffer], int]:
        """Return table, JSON, payload parts and payload bytes of the answer to call `number`."""
        # hot: once a response
        error = response.error
        if error is not None:
            return [number, flags | HAS_RESPONSE], {"error": [error.code.value, error.message]}, [], 0
        if response.empty_final:
            return [number, flags], None, [], 0
        extra: dict[str, Any] = {}
        header = self._headers.get(response.header) or self._define(response.header, extra)
        if response.parameters:
            extra["parameters"] = dict(response.parameters)
        words = [number, flags | HAS_RESPONSE, header.number]
        parts: list[Buffer] = []
        payload_bytes = append_padded(response.data, header.has_sizes, words, parts)
        return words, extra, parts, payload_bytes

    def _define(self, header: ResponseHeader, extra: dict[str, Any]) -> _AnswerHeader:
        if self._restarts or len(self._headers) > MOST_HEADERS:
            self._headers.clear()
            self._restarts = False
            extra["reset"] = True
        made = self._headers[header] = _AnswerHeader(len(self._headers) + 1, header)
        extra["header"] = [made.number, describe_outputs(header.outputs)]
        return made


def describe_outputs(outputs: Sequence[TensorSpec]) -> list[tuple[str, str, Sequence[int]]]:
    """Return what a worker is told of outputs, as JSON values."""
    return [(spec.name, spec.datatype.value, spec.shape) for spec in outputs]

"""Frames to calls of other models and responses to frames: the server's part of `worker.call_codec`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from naiad.backend.python.conversation.codec import layout_of, read_specs
from naiad.core.request import RequestedOutput, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec
from naiad.worker.api.request import TRITONSERVER_REQUEST_FLAG_SEQUENCE_END, TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
from naiad.worker.call_codec import HAS_RESPONSE
from naiad.worker.channel.frame import ChannelError, Frame
from naiad.worker.channel.layout import ReceivedHeaders, SentHeaders, TensorLayout


class CallDecoder:
    """Keeps the headers of one worker's calls by their numbers."""

    def __init__(self) -> None:
        self._headers = ReceivedHeaders(_header_and_layout)

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


def _header_and_layout(notes: Mapping[str, Any]) -> tuple[RequestHeader, TensorLayout]:
    header = _header_from(notes)
    return header, layout_of(header.inputs)


def _header_from(notes: Mapping[str, Any]) -> RequestHeader:
    flags = int(notes["flags"])
    sequence = notes["sequence"]
    version = int(notes["version"])
    parameters = dict(notes["parameters"])
    priority = parameters.get("priority")
    return RequestHeader(
        model_name=str(notes["model"]),
        model_version="" if version < 0 else str(version),
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


class CallResponseEncoder:
    """Encodes the variable part of responses to one worker; headers are sent once."""

    def __init__(self) -> None:
        self._headers: SentHeaders[ResponseHeader, TensorLayout] = SentHeaders()
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
        layout = self._headers.known[header] = layout_of(header.outputs, self._headers.next_number())
        extra["headers"] = [(layout.number, describe_outputs(header.outputs))]
        return layout


def describe_outputs(outputs: Sequence[TensorSpec]) -> list[tuple[str, str, Sequence[int]]]:
    """Return the description of outputs for a worker, as JSON values."""
    return [(spec.name, spec.datatype.value, spec.shape) for spec in outputs]

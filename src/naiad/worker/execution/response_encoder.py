"""The response encoder: from the responses of a model to the table and the payload of an executed frame."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from naiad.worker.api.request import InferenceRequest
from naiad.worker.api.response import InferenceResponse
from naiad.worker.api.tensor import encode_strings
from naiad.worker.channel import channel as channel_module
from naiad.worker.channel.layout import SentHeaders, TensorLayout

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
        self._headers: SentHeaders[Any, TensorLayout] = SentHeaders()
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
            add(reply, index, request._plan.output_names, response)
        return reply

    def add(self, reply: EncodedResponse, index: int, wanted: frozenset[str], response: InferenceResponse) -> None:
        """Add response number `index`; its arrays are read when the frame is sent."""
        # hot: bench/micro_worker.py
        if response._error is not None:
            error = response._error
            reply.errors.append((index, int(error.code()), error.message()))
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
            reply.payload_bytes += pack_arrays(layout, arrays, reply.words, parts)

    def _define(self, key: tuple[Any, ...], arrays: Sequence[Any], reply: EncodedResponse) -> TensorLayout:
        outputs = [(key[at], key[at + 1], key[at + 2]) for at in range(0, len(key), 3)]
        sizes = [None if output[1] == "BYTES" else array.nbytes for output, array in zip(outputs, arrays)]
        layout = self._headers.known[key] = TensorLayout(sizes, self._headers.next_number())
        reply.headers.append((layout.number, outputs))
        return layout


def pack_arrays(layout: TensorLayout, arrays: Sequence[Any], words: list[int], parts: list[Any]) -> int:
    """Append arrays to a payload, strings encoded, as `TensorLayout.pack` does."""
    tensors: list[Any] = [encode_strings(array) if array.dtype.kind in "OSU" else array for array in arrays]
    sizes = [len(tensor) if type(tensor) is bytes else tensor.nbytes for tensor in tensors]
    return layout.pack(tensors, sizes, words, parts)

"""Replies: from the responses of a model to the table and the payload of an executed frame."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from naiad.worker.api.inference import InferenceRequest, InferenceResponse
from naiad.worker.api.tensor import encode_strings
from naiad.worker.channel import channel as channel_module
from naiad.worker.channel.frame import ALIGNMENT, PADDING

MOST_HEADERS = 1024
"""Headers that are remembered; then both sides begin anew."""
_MANY_WORDS = 2048


class _Header:
    __slots__ = ("are_text", "has_sizes", "is_dense", "number", "payload_bytes")

    def __init__(self, number: int, outputs: Sequence[tuple[str, str, Sequence[int]]], arrays: Sequence[Any]) -> None:
        self.number = number
        self.are_text = [datatype == "BYTES" for _, datatype, _ in outputs]
        self.has_sizes = any(self.are_text)
        sizes = [0 if self.has_sizes else array.nbytes for array in arrays]
        self.is_dense = not self.has_sizes and not any(size % ALIGNMENT for size in sizes)
        """Whether the tensors can follow each other without padding."""
        self.payload_bytes = sum(sizes)


class EncodedResponse:
    """One executed frame in the making."""

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
        """Return what `rewind` needs to come back to this point."""
        return len(self.words), len(self.parts), self.payload_bytes

    def rewind(self, mark: tuple[int, int, int], index: int) -> None:
        """Forget responses from number `index` on, which were added since `mark`."""
        del self.words[mark[0] :], self.parts[mark[1] :]
        self.payload_bytes = mark[2]
        self.errors = [each for each in self.errors if each[0] < index]
        self.parameters = [each for each in self.parameters if each[0] < index]

    def extra(self) -> dict[str, Any] | None:
        """Return what the frame carries as JSON, None when there is nothing."""
        if not (self.headers or self.errors or self.parameters or self.reset):
            return None
        return {
            "reset": self.reset,
            "headers": self.headers,
            "errors": self.errors,
            "parameters": self.parameters,
        }


class ResponseEncoder:
    """Remembers which headers the server knows already."""

    def __init__(self) -> None:
        self._headers: dict[Any, _Header] = {}
        self._restarts = False

    def restart(self) -> None:
        """Begin anew: a reply that was encoded will not be sent, and with it the headers that it tells of."""
        self._headers.clear()
        self._restarts = True

    def begin(self) -> EncodedResponse:
        """Return an empty reply, the only one in the making."""
        reply = EncodedResponse()
        if self._restarts or len(self._headers) > MOST_HEADERS:
            self._headers.clear()
            self._restarts = False
            reply.reset = True
        return reply

    def encode(self, requests: Sequence[InferenceRequest], responses: Sequence[InferenceResponse]) -> EncodedResponse:
        """Return the reply to a batch; outputs that were not asked for are dropped."""
        # hot: bench/micro_worker.py
        reply = self.begin()
        add = self.add
        for index, (request, response) in enumerate(zip(requests, responses)):
            add(reply, index, request._plan.output_names, response)
        return reply

    def add(self, reply: EncodedResponse, index: int, wanted: frozenset[str], response: InferenceResponse) -> None:
        """Add response number `index`; its arrays are read when the reply is sent."""
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
        header = self._headers.get(tuple(key))
        if header is None:
            header = self._define(tuple(key), parts[begin:], reply)
        if response._parameters:
            reply.parameters.append((index, json.loads(response._parameters)))
        reply.words.append(header.number)
        if header.is_dense:
            reply.payload_bytes += header.payload_bytes
        else:
            _pad(reply, header, begin)

    def _define(self, key: tuple[Any, ...], arrays: Sequence[Any], reply: EncodedResponse) -> _Header:
        outputs = [(key[at], key[at + 1], key[at + 2]) for at in range(0, len(key), 3)]
        header = self._headers[key] = _Header(len(self._headers) + 1, outputs, arrays)
        reply.headers.append((header.number, outputs))
        return header


def _pad(reply: EncodedResponse, header: _Header, begin: int) -> None:
    """Encode the strings among the parts from `begin` on, and put padding between all."""
    arrays = reply.parts[begin:]
    del reply.parts[begin:]
    for array, is_text in zip(arrays, header.are_text):
        part: Any = encode_strings(array) if is_text else array
        size = len(part) if is_text else part.nbytes
        if header.has_sizes:
            reply.words.append(size)
        padding = -size % ALIGNMENT
        reply.parts.append(part)
        if padding:
            reply.parts.append(PADDING[padding])
        reply.payload_bytes += size + padding

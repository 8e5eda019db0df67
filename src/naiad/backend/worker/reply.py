"""Replies: from the responses of a model to the table and the payload of an executed frame."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from naiad.backend.worker.exchange import InferenceRequest, InferenceResponse
from naiad.backend.worker.frame import ALIGNMENT, PADDING
from naiad.backend.worker.tensor import encode_strings

MOST_HEADERS = 1024
"""Headers that are remembered; then both sides begin anew."""


class _Header:
    __slots__ = ("has_sizes", "is_dense", "number", "payload_bytes")

    def __init__(self, number: int, tensors: Sequence[Any]) -> None:
        self.number = number
        self.has_sizes = any(tensor._datatype == "BYTES" for tensor in tensors)
        sizes = [0 if self.has_sizes else tensor._elements().nbytes for tensor in tensors]
        self.is_dense = not self.has_sizes and not any(size % ALIGNMENT for size in sizes)
        """Whether the tensors can follow each other without padding."""
        self.payload_bytes = sum(sizes)


class Reply:
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


class ReplyEncoder:
    """Remembers which headers the server knows already."""

    def __init__(self) -> None:
        self._headers: dict[Any, _Header] = {}
        self._restarts = False

    def restart(self) -> None:
        """Begin anew: a reply that was encoded will not be sent, and with it the headers that it tells of."""
        self._headers.clear()
        self._restarts = True

    def encode(self, requests: Sequence[InferenceRequest], responses: Sequence[InferenceResponse]) -> Reply:
        """Return the reply; outputs that were not asked for are dropped."""
        # hot: bench/micro_worker.py
        reply = Reply()
        if self._restarts or len(self._headers) > MOST_HEADERS:
            self._headers.clear()
            self._restarts = False
            reply.reset = True
        headers = self._headers
        for request, response in zip(requests, responses):
            if response._error is not None:
                error = response._error
                reply.errors.append((len(reply.words), int(error.code()), error.message()))
                reply.words.append(0)
                continue
            wanted = request._plan.output_names
            tensors = [tensor for tensor in response._tensors if tensor._name in wanted]
            key = tuple([(tensor._name, tensor._datatype, tensor._elements().shape) for tensor in tensors])
            header = headers.get(key)
            if header is None:
                header = self._define(key, tensors, reply)
            if response._parameters:
                reply.parameters.append((len(reply.words), json.loads(response._parameters)))
            reply.words.append(header.number)
            if header.is_dense:
                reply.parts += [tensor._array for tensor in tensors]
                reply.payload_bytes += header.payload_bytes
            else:
                _append_padded(reply, header, tensors)
        return reply

    def _define(self, key: Any, tensors: Sequence[Any], reply: Reply) -> _Header:
        header = self._headers[key] = _Header(len(self._headers) + 1, tensors)
        reply.headers.append((header.number, list(key)))
        return header


def _append_padded(reply: Reply, header: _Header, tensors: Sequence[Any]) -> None:
    for tensor in tensors:
        part = tensor._elements()
        if tensor._datatype == "BYTES":
            part = encode_strings(part)
            size = len(part)
        else:
            size = part.nbytes
        if header.has_sizes:
            reply.words.append(size)
        padding = -size % ALIGNMENT
        reply.parts.append(part)
        if padding:
            reply.parts.append(PADDING[padding])
        reply.payload_bytes += size + padding

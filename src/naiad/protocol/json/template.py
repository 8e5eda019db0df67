"""JSON requests that differ only in their data: the text around the data identifies them and is not parsed again.

A document is cut at every `"data":` and after the `]` that follows. If the text around is that of a decoded document,
and the pieces cut out are arrays, the documents differ only in those arrays. This is safe because the text around has
no backslash: each of its quotes begins or ends a string, and therefore each `"data":` is the name of a member.
"""

from collections.abc import Sequence

import orjson

from naiad.core.errors import InferError
from naiad.core.request import RequestHeader
from naiad.core.tensor import Buffer, TensorSpec
from naiad.protocol.json.header import JsonRequest
from naiad.protocol.json.tensor import decode_data

_NAME = b'"data"'
_MARK = _NAME + b":"
_CUT = b"\0"
"""A byte that no JSON document contains."""
_LIMIT_BYTES = 8192
"""Limit of the text around the data."""


def cut(text: bytes) -> tuple[bytes, list[bytes]]:
    """Return the text around the data of a document, and each piece of data, which may not be an array."""
    first, *rest = text.split(_MARK)
    around = [first]
    data: list[bytes] = []
    for part in rest:
        end = part.find(b"]") + 1
        data.append(part[:end])
        around.append(part[end:])
    return _CUT.join(around), data


class JsonTemplate:
    """Shared part of the requests with the same text around their data."""

    __slots__ = ("_piece_count", "_specs", "header", "request_id")

    def __init__(self, header: RequestHeader, request_id: str, specs: Sequence[TensorSpec | None]) -> None:
        self.header = header
        self.request_id = request_id
        self._specs = specs
        """One per input; None for an input without data of its own."""
        self._piece_count = len(specs) - specs.count(None)

    def fill(self, pieces: Sequence[bytes]) -> list[Buffer] | None:
        """Return one buffer per input; None if the whole document must be parsed."""
        if len(pieces) != self._piece_count:
            # The document contains the byte that marks cuts: it is not JSON.
            return None
        data: list[Buffer] = []
        following = iter(pieces)
        try:
            for spec in self._specs:
                data.append(b"" if spec is None else decode_data(spec, orjson.loads(next(following))))
        except (ValueError, InferError):
            return None
        return data


def learn(request: JsonRequest, header: RequestHeader, around: bytes, piece_count: int) -> JsonTemplate | None:
    """Return the template of a decoded and cut document; None if a template would be unsafe or without benefit."""
    if len(around) > _LIMIT_BYTES or b"\\" in around or _NAME in around or around.count(_CUT) != piece_count:
        return None
    if any(source.is_encoded for source in request.data):
        return None
    specs = [
        None if source.inline is None else spec for spec, source in zip(header.inputs, request.data, strict=True)
    ]
    if len(specs) - specs.count(None) != piece_count:
        return None
    return JsonTemplate(header, request.id, specs)

"""JSON requests that repeat but for their data: known by what stands around it, so that nothing else is parsed.

A document is cut at every `"data":` and behind the `]` that follows. Where what remains is the same as in a document
that was decoded, and what was cut out are arrays, the two mean the same but for those arrays: what remains holds no
backslash, so that each of its quotes begins or ends a string, and therefore each `"data":` is the name of a member.
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
"""No JSON document has this byte."""
_LIMIT_BYTES = 8192
"""What stands around the data may be this long."""


def cut(text: bytes) -> tuple[bytes, list[bytes]]:
    """Return what stands around the data of a document, and each piece of data, which may be no array at all."""
    first, *rest = text.split(_MARK)
    around = [first]
    data: list[bytes] = []
    for part in rest:
        end = part.find(b"]") + 1
        data.append(part[:end])
        around.append(part[end:])
    return _CUT.join(around), data


class JsonTemplate:
    """What the requests with the same text around their data share."""

    __slots__ = ("_piece_count", "_specs", "header", "request_id")

    def __init__(self, header: RequestHeader, request_id: str, specs: Sequence[TensorSpec | None]) -> None:
        self.header = header
        self.request_id = request_id
        self._specs = specs
        """One an input; None for those that have no data of their own."""
        self._piece_count = len(specs) - specs.count(None)

    def fill(self, pieces: Sequence[bytes]) -> list[Buffer] | None:
        """Return one buffer an input; None where the whole document has to be looked at."""
        if len(pieces) != self._piece_count:
            # A document with the byte that marks cuts, which is no JSON.
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
    """Return the template of a document that was decoded and cut; None where that would not be safe, or not pay."""
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

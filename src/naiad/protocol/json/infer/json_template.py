"""JSON requests that differ only in their data: the text around the data identifies them and is not parsed again.

A document is cut at every `"data":` and behind the array that follows, which ends with as many `]` as it begins with
`[`. If the text around is that of a decoded document, and the pieces cut out of both are arrays, the documents
differ only in those arrays. This is safe because the text around has no backslash: each quote begins or ends a
string, and so each `"data":` is the name of a member. A document with a piece that is no array has no template: such
a piece may have members of the document in it, and all documents with the same text around would get them.
"""

import re
import struct
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import orjson

from naiad.core.errors import InferError
from naiad.core.request import RequestHeader
from naiad.core.tensor import Buffer, TensorSpec
from naiad.protocol.json.infer.header import JsonRequest
from naiad.protocol.json.tensor import decode_data, number_struct
from naiad.protocol.json.tree import MAX_DATA_DEPTH

_NAME = b'"data"'
_MARK = _NAME + b":"
_CUT = b"\0"
"""A byte that no JSON document contains."""
_OPEN = re.compile(rb"\[+")
_NESTED = (b"[[", b" [[")
_OF_NUMBERS = b"0123456789+-.eE,[] \t\r\n"
"""What is in an array, also a nested one, that has only numbers."""
_LIMIT_BYTES = 8192
"""Limit of the text around the data."""
_loads = orjson.loads


def cut(text: bytes) -> tuple[bytes, list[bytes]]:
    """Return the text around the data of a document, and each piece of data, which may not be an array."""
    first, *rest = text.split(_MARK)
    around = [first]
    data: list[bytes] = []
    for part in rest:
        end = _array_end(part, 0) if part.startswith(_NESTED) else part.find(b"]") + 1
        data.append(part[:end])
        around.append(part[end:])
    return _CUT.join(around), data


def _array_end(text: bytes, start: int) -> int:
    """Return the position behind an array of arrays without space between its last brackets; 0 if it has no end."""
    begin = text.find(b"[", start)
    depth = len(_OPEN.match(text, begin)[0])  # type: ignore[index]  # it begins with a bracket
    end = text.find(b"]" * depth, begin)
    return 0 if end < 0 else end + depth


def _elements(values: list[Any]) -> list[Any]:
    """Return the elements of regular arrays of arrays. Raises TypeError, ValueError or IndexError for others."""
    for _ in range(MAX_DATA_DEPTH):
        if type(values[0]) is not list:
            return values
        values = [*chain.from_iterable(values)]
    raise ValueError


class JsonTemplate:
    """Shared part of the requests with the same text around their data."""

    __slots__ = ("_around", "_first", "_inputs", "_piece_count", "_specs", "header", "request_id")

    def __init__(
        self, header: RequestHeader, request_id: str, specs: Sequence[TensorSpec | None], around: bytes
    ) -> None:
        self.header = header
        self.request_id = request_id
        self._specs = specs
        """One per input; None for an input without data of its own."""
        self._piece_count = len(specs) - specs.count(None)
        self._around = around
        self._first = b""
        """The text up to the data of the first input."""
        self._inputs: list[tuple[Callable[..., bytes], bytes, int]] | None = None
        """Packs the numbers of an input, and the text after them with its length; empty if an input has no numbers,
        or many; None before the first use, which most templates never have."""

    def _prepare(self) -> list[tuple[Callable[..., bytes], bytes, int]]:
        self._first, *rest = self._around.replace(_CUT, _MARK + _CUT).split(_CUT)
        layouts = [None if spec is None else number_struct(spec) for spec in self._specs]
        packs = [layout.pack for layout in layouts if layout is not None]
        self._inputs = list(zip(packs, rest, map(len, rest), strict=True)) if len(packs) == len(layouts) else []
        return self._inputs

    def read(self, text: bytes) -> list[bytes] | None:
        """Return one buffer per input of a document that has this text around a few numbers.

        None for any other document, and for data that only `fill` can judge.
        """
        # hot: bench/micro_http1.py
        inputs = self._inputs
        if inputs is None:
            inputs = self._prepare()
        first = self._first
        if not inputs or not text.startswith(first):
            return None
        at = len(first)
        data: list[bytes] = []
        try:
            for pack, after, size in inputs:
                is_nested = text.startswith(_NESTED, at)
                end = _array_end(text, at) if is_nested else text.find(b"]", at) + 1
                piece = text[at:end]
                # True and false would be packed as numbers, and an empty text or object would vanish among arrays.
                if piece.translate(None, _OF_NUMBERS) or not text.startswith(after, end):
                    return None
                values = _loads(piece)
                data.append(pack(*(_elements(values) if is_nested else values)))
                at = end + size
        except (ValueError, TypeError, IndexError, OverflowError, struct.error):
            # What is no number, too many or too few of them, or one out of range.
            return None
        return data if at == len(text) else None

    def fill(self, pieces: Sequence[bytes]) -> list[Buffer] | None:
        """Return one buffer per input; None if the whole document must be parsed."""
        if len(pieces) != self._piece_count:
            # The document contains the byte that marks cuts: it is not JSON.
            return None
        data: list[Buffer] = []
        following = iter(pieces)
        try:
            for spec in self._specs:
                if spec is None:
                    data.append(b"")
                else:
                    values = _loads(next(following))
                    data.append(decode_data(spec, values, nan_is_null=self.header.nan_is_null))
        except (ValueError, InferError):
            return None
        return data


def learn(
    request: JsonRequest, header: RequestHeader, around: bytes, pieces: Sequence[bytes], *, has_cut_id: bool = False
) -> JsonTemplate | None:
    """Return the template of a decoded and cut document; None if a template would be unsafe or without benefit.

    `has_cut_id`: the id of the request is not in the text around, so the template has none.
    """
    count = len(pieces)
    if len(around) > _LIMIT_BYTES or b"\\" in around or _NAME in around or around.count(_CUT) != count:
        return None
    if any(source.is_encoded for source in request.data):
        return None
    specs = [
        None if source.inline is None else spec for spec, source in zip(header.inputs, request.data, strict=True)
    ]
    if len(specs) - specs.count(None) != count or not all(map(_is_array, pieces)):
        return None
    return JsonTemplate(header, "" if has_cut_id else request.id, specs, around)


def _is_array(piece: bytes) -> bool:
    try:
        return type(_loads(piece)) is list
    except ValueError:
        return False

"""Long arrays and strings of JSON documents to raw tensor data, piece by piece.

The brackets that are open at its start and end make a piece of an array a document of its own. Therefore a nested
array can be cut anywhere between two values, and each piece is parsed like a short array.
"""

import binascii
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import simdjson

from naiad.core.datatype import DataType
from naiad.core.errors import excerpt, invalid_argument
from naiad.core.slices import SLICE_BYTES, Slices
from naiad.core.tensor import Buffer, Shape, TensorSpec, encode_bytes_elements
from naiad.protocol.json.document import LongArray, LongString
from naiad.protocol.json.tensor import (
    checked_base64,
    decode_others,
    flatten,
    narrowed,
    nested_shape,
    not_one_string,
    number_kind,
    numbers,
    wrong_count,
)
from naiad.protocol.json.tree import mismatch, parse_array, syntax_error

_LONGEST_UNIT = 14
"""The cut of a string may split a character or an escape of at most this length: a pair of \\u escapes has 12."""
_WHITE = b" \t\r\n"
_NO_VALUE_BEGINS = re.compile(rb"[ \t\r\n]*(?:[\],]|\Z)")
_TAIL_BYTES = 16
_MAX_NESTED_BYTES = 16 << 20
"""Limit of a nested list, which is parsed at once for its shape."""
_SLICE_LISTS = 64
_BASE64_BYTES = 384 * 1024
"""Base64 text that is decoded at once; a multiple of 4."""


def decode_long_array(spec: TensorSpec, array: LongArray, *, nan_is_null: bool = False) -> Slices[Buffer]:
    """Return the raw bytes of an input's `data`. Raises InferError as `decode_data` does."""
    if array.has_objects:
        words = "object as the element of a tensor"
        raise mismatch("data", {}, words, "numbers, booleans or strings: remove the objects")
    # An element takes at least two bytes of text with its comma, so the text bounds the memory that a shape requests.
    if spec.element_count > array.size_bytes:
        raise wrong_count(spec, "fewer")
    kind = number_kind(spec.datatype)
    if kind is None:
        return (yield from _decode_others(spec, array))
    target = np.empty(spec.element_count, spec.datatype.numpy)
    filled = 0
    for piece in _pieces(array):
        part = narrowed(spec.datatype, numbers(kind, parse_array(piece), nan_is_null=nan_is_null))
        if filled + part.size > target.size:
            raise wrong_count(spec, "more")
        target[filled : filled + part.size] = part
        filled += part.size
        yield
    if filled != target.size:
        raise wrong_count(spec, filled)
    return memoryview(target.data).cast("B") if filled else b""


def shape_of_text(array: LongArray) -> Slices[Shape | None]:
    """Return the shape of a nested array, None if it is irregular. Raises InferError for one that is too long."""
    start, end = array.pieces[0][0], array.pieces[-1][1]
    if end - start > _MAX_NESTED_BYTES:
        raise invalid_argument(
            f"nested lists have at most {_MAX_NESTED_BYTES} bytes, got {end - start}: send a flat list, or tensors "
            "with a shape (infer)"
        )
    nested = parse_array(bytes(array.document[start:end]))
    shape: Shape | None = None
    for number, each in enumerate(nested):
        listed = each.as_list() if isinstance(each, simdjson.Array) else each
        found = nested_shape(listed)
        if found is None or (number and found != shape):
            return None
        shape = found
        if number % _SLICE_LISTS == 0:
            yield
    return None if shape is None else (array.length, *shape)


def _decode_others(spec: TensorSpec, array: LongArray) -> Slices[Buffer]:
    """Return the raw bytes of strings or booleans."""
    data = bytearray()
    count = 0
    for value in _values(array):
        if isinstance(value, LongString):
            if spec.datatype is not DataType.BYTES:
                words = "string as the element of a tensor"
                raise mismatch("data", value, words, "true or false: change the value or 'datatype'")
            start = len(data)
            data += bytes(4)
            yield from append_long_string(data, value)
            data[start : start + 4] = (len(data) - start - 4).to_bytes(4, "little")
            count += 1
        else:
            data += decode_others(spec, value)
            count += len(value)
        if count > spec.element_count:
            raise wrong_count(spec, "more")
        yield
    if count != spec.element_count:
        raise wrong_count(spec, count)
    return memoryview(data)


def _values(array: LongArray) -> Iterator[Any]:
    """Return the values of an array: each piece as a flat list, a long string by itself."""
    for number, (start, end, before, after) in enumerate(array.pieces):
        if end - start <= 2 * SLICE_BYTES:
            yield flatten(parse_array(_piece(array, number)))
            continue
        # A piece is longer than a window if one value in it is.
        text = array.document[start:end]
        first, last = bytes(text[:SLICE_BYTES]).find(b'"'), bytes(text[-SLICE_BYTES:]).rfind(b'"')
        if first < 0 or last < 0:
            raise syntax_error("a value of an array is too long", start)
        close = end - start - min(SLICE_BYTES, end - start) + last
        parse_array(b"[" * before + bytes(text[:first]) + b'""' + bytes(text[close + 1 :]) + b"]" * after)
        yield LongString(array.document, start + first + 1, start + close)


def _pieces(array: LongArray) -> Iterator[bytes]:
    """Return the pieces of an array of numbers as documents."""
    for number, (start, end, _, _) in enumerate(array.pieces):
        if end - start > 2 * SLICE_BYTES:
            raise syntax_error("a value of an array is too long", start)
        yield _piece(array, number)


def _piece(array: LongArray, number: int) -> bytes:
    start, end, before, after = array.pieces[number]
    text = b"".join((b"[" * before, array.document[start:end], b"]" * after))
    # Added brackets must not hide a missing value next to a comma.
    if number and _NO_VALUE_BEGINS.match(text, before):
        raise syntax_error("Expecting value", start)
    if number + 1 < len(array.pieces) and _last_of(text, before, len(text) - after) in b"[,":
        raise syntax_error("Expecting value", end)
    return text


def _last_of(text: bytes, start: int, end: int) -> bytes:
    """Return the last byte that is not white space; empty if there is none."""
    tail = text[max(start, end - _TAIL_BYTES) : end].rstrip(_WHITE) or text[start:end].rstrip(_WHITE)
    return tail[-1:]


def decode_long_string(string: LongString) -> Slices[bytearray]:
    """Return a string as UTF-8. Raises InferError for an invalid JSON string."""
    text = bytearray()
    yield from append_long_string(text, string)
    return text


def append_long_string(data: bytearray, string: LongString) -> Slices[None]:
    """Append a string as UTF-8 to `data`. Raises InferError for an invalid JSON string."""
    at = string.start
    while at < string.end:
        stop = min(at + SLICE_BYTES, string.end)
        # If the cut split a character or an escape, a shorter piece is complete.
        shortest = stop if stop == string.end else max(stop - _LONGEST_UNIT, at + 1)
        for cut in range(stop, shortest - 1, -1):
            part = _string_part(string.document[at:cut])
            if part is not None:
                break
        else:
            raise syntax_error("Invalid string", at)
        data += part
        at = cut
        yield


def _string_part(text: memoryview) -> bytes | None:
    try:
        return str(orjson.loads(b'"%s"' % bytes(text))).encode()
    except ValueError:
        return None


def decode_long_base64(spec: TensorSpec, data: Any) -> Slices[Buffer]:
    """Return the raw bytes of an input with base64 `data`. Raises InferError as `decode_base64` does."""
    if spec.datatype is DataType.BYTES:
        return (yield from _decode_base64_elements(spec, data))
    if not isinstance(data, LongString):
        raise not_one_string(spec)
    text = yield from decode_long_string(data)
    decoded = yield from decode_base64_text(f"'data' of input '{excerpt(spec.name)}'", text)
    return checked_base64(spec, decoded)


def _decode_base64_elements(spec: TensorSpec, data: Any) -> Slices[Buffer]:
    if not isinstance(data, LongArray):
        raise invalid_argument(
            f"base64 'data' of BYTES input '{excerpt(spec.name)}' must be an array of strings, one an element"
        )
    what = f"'data' of input '{excerpt(spec.name)}'"
    decoded = bytearray()
    count = 0
    for value in _values(data):
        texts = [(yield from decode_long_string(value))] if isinstance(value, LongString) else value
        if not all(isinstance(text, str | bytearray) for text in texts):
            raise invalid_argument(
                f"base64 'data' of BYTES input '{excerpt(spec.name)}' must be an array of strings, one an element"
            )
        elements: list[bytes] = []
        for text in texts:
            encoded = text if isinstance(text, bytearray) else text.encode()
            elements.append((yield from decode_base64_text(what, encoded)))
        decoded += encode_bytes_elements(elements)
        count += len(elements)
        yield
    if count != spec.element_count:
        raise invalid_argument(
            f"base64 'data' of input '{excerpt(spec.name)}' has {count} elements; its shape has {spec.element_count}"
        )
    return memoryview(decoded)


def decode_base64_text(what: str, text: bytes | bytearray) -> Slices[bytes]:
    """Return decoded base64 text. Raises InferError(INVALID_ARG), whose text names `what`."""
    if not text:
        return b""
    parts: list[bytes] = []
    for start in range(0, len(text), _BASE64_BYTES):
        part = text[start : start + _BASE64_BYTES]
        try:
            decoded = binascii.a2b_base64(part, strict_mode=True)
        except (binascii.Error, ValueError) as error:
            raise invalid_argument(f"{what} is not base64: {error}") from None
        if start + _BASE64_BYTES < len(text) and len(decoded) != _BASE64_BYTES // 4 * 3:
            raise invalid_argument(f"{what} is not base64: padding before its end")
        parts.append(decoded)
        if len(text) > _BASE64_BYTES:
            yield
    return b"".join(parts)

"""Tensor data as JSON: arrays of numbers, booleans or strings, nested or flat, to raw bytes and back."""

import codecs
import json
import math
import struct
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import orjson
import simdjson

from naiad.core.datatype import DataType
from naiad.core.errors import InferError, excerpt, invalid_argument, wrong_request
from naiad.core.slices import SLICE_BYTES, Slices
from naiad.core.tensor import Array, Buffer, Shape, TensorSpec, decode_bytes_elements, encode_bytes_elements
from naiad.protocol.json.tree import MAX_DATA_DEPTH, data_too_deep, half_surrogate, mismatch, shown, unparsable

_COPY_LIMIT_BYTES = 16384
"""Up to this size a copy to `bytes` is cheaper than a view for all later steps."""


_SHORT = 1024
"""Up to this count `struct` is faster than numpy, where every call costs a microsecond or more."""


_LONG_STRING_BYTES = 2 * SLICE_BYTES
_ENCODED_ELEMENTS = 8192
"""Elements of a large output that are written in one slice."""


NAN_PARAMETER = "json_nan"
"""Request parameter: `null` for null in place of NaN in both directions, `bare` for Triton's bare NaN."""
NULL_HINT = f', or send NaN, or set the request parameter "{NAN_PARAMETER}" to "null" if null is to mean NaN'


class _Kind:
    """One of the three readings of JSON numbers: doubles, signed, unsigned."""

    __slots__ = ("code", "expected", "types", "wide", "words")

    def __init__(self, code: Literal["d", "i", "u"], wide: Any, types: set[type], words: str, expected: str) -> None:
        self.code: Literal["d", "i", "u"] = code
        self.wide = np.dtype(wide)
        self.types = types
        self.words = words
        self.expected = f"{expected}: change the value or 'datatype'"

    def mismatch(self, data: Any) -> InferError:
        """Return the error for an array with an element of another type."""
        wrong = next((element for element in flatten(data) if type(element) not in self.types), data)
        hint = NULL_HINT if wrong is None and self.code == "d" else ""
        return mismatch("data", wrong, self.words, self.expected + hint)

    def out_of_range(self, data: Any) -> InferError:
        """Return the error for an array with a number that does not fit into 64 bits."""
        low, high = (0, 1 << 64) if self.code == "u" else (-(1 << 63), 1 << 63)
        found = (element for element in flatten(data) if type(element) is int and not low <= element < high)
        words = f"a number is out of range; attempt to access JSON {self.words}"
        return unparsable("data", f"{words}; got {shown(next(found, data))}, expected {self.expected}")


_DOUBLE = _Kind("d", np.float64, {int, float}, "non-number as double", "a number without quotes")
_SIGNED = _Kind("i", np.int64, {int}, "non-signed-integer as signed-integer", "an integer without quotes")
_UNSIGNED = _Kind("u", np.uint64, {int}, "non-unsigned-integer as unsigned-integer", "an integer from 0 on")
_KINDS = {"f": _DOUBLE, "i": _SIGNED, "u": _UNSIGNED}
_NUMBERS: dict[DataType, _Kind] = {
    datatype: _KINDS[datatype.numpy.kind]
    for datatype in DataType
    if datatype not in (DataType.FP16, DataType.BF16) and datatype.numpy.kind in _KINDS
}

_CODES = {datatype: np.dtype(datatype.numpy).char.replace("l", "q").replace("L", "Q") for datatype in _NUMBERS}
"""Codes of `struct`, where "l" has four bytes."""


def decode_data(spec: TensorSpec, data: Any, *, nan_is_null: bool = False) -> Buffer:
    """Return the raw bytes of an input's `data`, which may be nested in any way.

    With `nan_is_null` a null among floating-point numbers is NaN.

    Raises InferError(INVALID_ARG) for FP16 and BF16, and for elements of a wrong type or number.
    """
    datatype = spec.datatype
    if not isinstance(data, (list, simdjson.Array)):
        raise mismatch("data", data, "non-array as array", "an array in brackets")
    kind = _NUMBERS.get(datatype)
    if kind is None:
        flat = flatten(data)
        raw = decode_others(spec, flat)
        if len(flat) != spec.element_count:
            raise wrong_count(spec, len(flat))
        return raw
    if len(data) <= _SHORT:
        few = _listed(data)
        packed = None if few is None else _pack(spec, kind, few)
        if packed is not None:
            return packed
    wide = numbers(kind, data, nan_is_null=nan_is_null)
    if wide.size != spec.element_count:
        raise wrong_count(spec, wide.size)
    narrow = narrowed(datatype, wide)
    if narrow.nbytes <= _COPY_LIMIT_BYTES:
        return narrow.tobytes()
    return memoryview(narrow.data).cast("B")


def _listed(data: Any) -> list[Any] | None:
    """Return a short array as a list; None for one that simdjson has parsed if it begins with an array."""
    if type(data) is list:
        return data
    first: Any = data[0] if len(data) else None
    listed: list[Any] | None = None if isinstance(first, simdjson.Array) else data.as_list()
    return listed


def _pack(spec: TensorSpec, kind: _Kind, data: list[Any]) -> bytes | None:
    """Return the raw bytes of a few numbers; None if their count is wrong or one is out of range."""
    flat = flatten(data)
    if not kind.types.issuperset(map(type, flat)) or len(flat) != spec.element_count:
        return None
    try:
        return struct.pack(f"<{len(flat)}{_CODES[spec.datatype]}", *flat)
    except (struct.error, OverflowError):
        return None


def number_struct(spec: TensorSpec) -> struct.Struct | None:
    """Return the layout of the raw bytes of a tensor with a few numbers; None for many, or for other elements."""
    count, code = spec.element_count, _CODES.get(spec.datatype)
    return struct.Struct(f"<{count}{code}") if code is not None and count <= _SHORT else None


def number_kind(datatype: DataType) -> _Kind | None:
    """Return the reading of the JSON numbers of a datatype; None for a datatype without numbers in JSON."""
    return _NUMBERS.get(datatype)


def wrong_count(spec: TensorSpec, count: int | str) -> InferError:
    """Return the error for data of `count` elements, which differs from its shape."""
    shape = list(spec.shape)
    return unparsable(
        "data",
        f"Shape does not match true shape of 'data' field; got {count} elements, expected {spec.element_count} for "
        f"'shape' {shape}: correct one of the two",
    )


def numbers(kind: _Kind, data: Any, *, nan_is_null: bool = False) -> Array:
    """Return numbers, nested in any way, as an array of 64-bit elements. Raises InferError."""
    try:
        if nan_is_null and kind is _DOUBLE and None in (flat := flatten(data)):
            if not {int, float, type(None)}.issuperset(map(type, flat)):
                raise kind.mismatch([element for element in flat if element is not None])
            return np.array(flat, np.float64)
        if isinstance(data, simdjson.Array):
            _check_depth(data)
            return np.frombuffer(data.as_buffer(of_type=kind.code), kind.wide)
        flat = flatten(data)
        if not kind.types.issuperset(map(type, flat)):
            raise TypeError
        return np.array(flat, kind.wide)
    except TypeError:
        raise kind.mismatch(data) from None
    except (ValueError, OverflowError):
        raise kind.out_of_range(data) from None


def _check_depth(data: Any) -> None:
    """Raise InferError for too many arrays around the first element."""
    depth = 0
    while isinstance(data, simdjson.Array) and len(data):
        depth += 1
        if depth > MAX_DATA_DEPTH:
            raise data_too_deep()
        data = data[0]


def narrowed(datatype: DataType, wide: Array) -> Array:
    """Return numbers in their datatype. Raises InferError for a number out of range."""
    if wide.dtype == datatype.numpy:
        return wide
    if datatype is DataType.FP32:
        try:
            with np.errstate(over="raise"):
                return wide.astype(np.float32)
        except FloatingPointError:
            with np.errstate(over="ignore"):
                wrong = np.isinf(wide.astype(np.float32)) & np.isfinite(wide)
            raise _too_wide(datatype, "a number", wide[wrong][0], np.finfo(np.float32)) from None
    narrow = wide.astype(datatype.numpy)
    wrong = narrow != wide
    if wrong.any():
        raise _too_wide(datatype, "an integer", wide[wrong][0], np.iinfo(datatype.numpy))
    return narrow


def _too_wide(datatype: DataType, what: str, number: Any, limits: Any) -> InferError:
    expected = f"a value from {limits.min} to {limits.max}: change the value or 'datatype'"
    return unparsable("data", f"{what} is out of range for {datatype.value}; got {number}, expected {expected}")


def flatten(data: Any) -> list[Any]:
    """Return the elements of an array that may be nested in any way, but not too deeply. Raises InferError."""
    nested: list[Any] = data.as_list() if isinstance(data, simdjson.Array) else data
    if list not in set(map(type, nested)):
        return nested
    flat: list[Any] = []
    stack = [iter(nested)]
    while stack:
        for element in stack[-1]:
            if type(element) is list:
                stack.append(iter(element))
                if len(stack) > MAX_DATA_DEPTH:
                    raise data_too_deep()
                break
            flat.append(element)
        else:
            stack.pop()
    return flat


def nested_shape(value: Any) -> Shape | None:
    """Return the shape of nested lists, () for a single value; None if they are irregular."""
    if type(value) is not list:
        return ()
    if list not in set(map(type, value)):
        return (len(value),)
    shapes = {nested_shape(each) for each in value}
    inner = shapes.pop()
    return None if shapes or inner is None else (len(value), *inner)


def decode_others(spec: TensorSpec, flat: list[Any]) -> bytes:
    """Return strings or booleans as raw bytes. Raises InferError for elements or a datatype of another kind."""
    kinds = set(map(type, flat))
    if spec.datatype is DataType.BYTES:
        if not kinds <= {str}:
            wrong = next(element for element in flat if type(element) is not str)
            raise wrong_request(
                "Unable to parse JSON bytes array: attempt to access JSON non-string as string; 'data': got "
                f"{shown(wrong)}, expected a string in quotes: change the value or 'datatype'"
            )
    elif spec.datatype is not DataType.BOOL:
        raise invalid_argument(
            f"receiving {spec.datatype.value} data via JSON is not supported. "
            f"Please use the binary data format for input {excerpt(spec.name)}"
        )
    elif not kinds <= {bool}:
        wrong = next(element for element in flat if type(element) is not bool)
        raise mismatch("data", wrong, "non-boolean as boolean", "true or false: change the value or 'datatype'")
    if spec.datatype is DataType.BYTES:
        try:
            return encode_bytes_elements([element.encode() for element in flat])
        except UnicodeEncodeError:
            raise half_surrogate() from None
    return bytes(flat)


def encode_data(spec: TensorSpec, data: Buffer, *, nan_is_null: bool = False) -> bytes:
    """Return the JSON array of an output's elements, always flat.

    FP32 is widened to double, as Triton prints it; NaN and the infinities are written bare, or as null. Raises
    InferError(INVALID_ARG) for FP16 and BF16, and for a string that is not UTF-8.
    """
    datatype = spec.datatype
    if datatype is DataType.BYTES:
        return _encode_strings(spec, data)
    if datatype in (DataType.FP16, DataType.BF16):
        raise invalid_argument(
            f"sending {datatype.value} data via JSON is not supported. "
            f"Please use the binary data format for output {excerpt(spec.name)}"
        )
    if 0 < len(data) <= _SHORT * datatype.numpy.itemsize:
        count = len(data) // datatype.numpy.itemsize
        values = struct.unpack(f"<{count}{_CODES.get(datatype, '?')}", data)
        # orjson writes null for values that are not finite. A sum that overflows leaves the decision to numpy.
        if datatype.numpy.kind != "f" or nan_is_null or math.isfinite(sum(values)):
            return orjson.dumps(values)
    array: Array = np.frombuffer(data, datatype.numpy)
    if array.dtype.kind == "f":
        if not nan_is_null and not np.isfinite(array).all():
            return json.dumps(array.tolist(), separators=(",", ":")).encode()
        array = array.astype(np.float64)
    elif not array.flags.aligned:
        array = array.copy()
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)


def encode_long_data(spec: TensorSpec, data: Buffer, *, nan_is_null: bool = False) -> Slices[list[bytes]]:
    """Return the JSON array of an output's elements in parts, in slices. Raises InferError as `encode_data` does."""
    parts: list[bytes] = []
    for piece in _encoding_pieces(spec, data):
        if spec.datatype is DataType.BYTES and len(piece) > _LONG_STRING_BYTES:
            parts += yield from _encode_long_string(spec, memoryview(piece)[4:])
        else:
            parts.append(encode_data(spec, piece, nan_is_null=nan_is_null)[1:-1])
        yield
        parts.append(b",")
    parts[-1:] = [b"]"]
    return [b"[", *parts]


def _encode_long_string(spec: TensorSpec, text: memoryview) -> Slices[list[bytes]]:
    """Return one string of JSON in parts."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    parts = [b'"']
    try:
        for start in range(0, len(text), SLICE_BYTES):
            part = decoder.decode(text[start : start + SLICE_BYTES], start + SLICE_BYTES >= len(text))
            parts.append(orjson.dumps(part)[1:-1])
            yield
    except UnicodeDecodeError:
        raise _not_utf8(spec) from None
    return [*parts, b'"']


def _encoding_pieces(spec: TensorSpec, data: Buffer) -> Iterator[Buffer]:
    """Return parts of tensor data, each ending with an element."""
    view = memoryview(data)
    if spec.datatype is not DataType.BYTES:
        step = _ENCODED_ELEMENTS * spec.datatype.item_bytes
        for start in range(0, len(view), step):
            yield view[start : start + step]
        return
    start = position = count = 0
    while position <= len(view) - 4:
        size = 4 + int.from_bytes(view[position : position + 4], "little")
        if size > _LONG_STRING_BYTES and start < position:
            # A long string is a piece of its own.
            yield view[start:position]
            start = position
        position += size
        count += 1
        if count % _ENCODED_ELEMENTS == 0 or position - start > SLICE_BYTES:
            yield view[start:position]
            start = position
    if start < len(view):
        yield view[start:]


def _encode_strings(spec: TensorSpec, data: Buffer) -> bytes:
    elements = decode_bytes_elements(data)
    try:
        return orjson.dumps([element.decode() for element in elements])
    except UnicodeDecodeError:
        raise _not_utf8(spec) from None


def _not_utf8(spec: TensorSpec) -> InferError:
    return wrong_request(
        f"output '{excerpt(spec.name)}' holds bytes that are not UTF-8, which JSON cannot carry; ask for it as "
        "binary "
        f'data ("parameters": {{"binary_data": true}})'
    )


def not_one_string(spec: TensorSpec) -> InferError:
    """Return the error for base64 `data` of a datatype of fixed size that is no string."""
    return invalid_argument(
        f"base64 'data' of {spec.datatype.value} input '{excerpt(spec.name)}' must be one string, of all its bytes"
    )


def checked_base64(spec: TensorSpec, decoded: Buffer) -> Buffer:
    """Return the bytes of a tensor of a datatype of fixed size. Raises InferError(INVALID_ARG) for a wrong length."""
    expected_bytes = spec.element_count * spec.datatype.item_bytes
    if len(decoded) != expected_bytes:
        raise invalid_argument(
            f"base64 'data' of input '{excerpt(spec.name)}' holds {len(decoded)} bytes; its shape and datatype need "
            f"{expected_bytes}"
        )
    return decoded

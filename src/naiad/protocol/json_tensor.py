"""Tensor data as JSON: arrays of numbers, booleans or strings, nested or flat, to raw bytes and back."""

import json
import math
import struct
from typing import Any, Literal

import numpy as np
import orjson
import simdjson

from naiad.core.datatype import DataType
from naiad.core.errors import InferError, internal, invalid_argument
from naiad.core.tensor import Array, Buffer, TensorSpec, decode_bytes_elements, encode_bytes_elements
from naiad.protocol.json_tree import half_surrogate, unparsable

_COPY_LIMIT_BYTES = 16384
"""Up to this size a copy to `bytes` is cheaper for everyone downstream than a view."""


_SHORT = 1024
"""Up to this many numbers `struct` is quicker than numpy, for which every call costs a microsecond or more."""


class _Kind:
    """One of the three ways in which JSON numbers are read: doubles, signed, unsigned."""

    __slots__ = ("code", "mismatch", "types", "wide")

    def __init__(self, code: Literal["d", "i", "u"], wide: Any, types: set[type], mismatch: str) -> None:
        self.code: Literal["d", "i", "u"] = code
        self.wide = np.dtype(wide)
        self.types = types
        self.mismatch = f"attempt to access JSON {mismatch}"


_DOUBLE = _Kind("d", np.float64, {int, float}, "non-number as double")
_SIGNED = _Kind("i", np.int64, {int}, "non-signed-integer as signed-integer")
_UNSIGNED = _Kind("u", np.uint64, {int}, "non-unsigned-integer as unsigned-integer")
_KINDS = {"f": _DOUBLE, "i": _SIGNED, "u": _UNSIGNED}
_NUMBERS: dict[DataType, _Kind] = {
    datatype: _KINDS[datatype.numpy.kind]
    for datatype in DataType
    if datatype.numpy.kind in _KINDS and datatype not in (DataType.FP16, DataType.BF16)
}

_CODES = {datatype: np.dtype(datatype.numpy).char.replace("l", "q").replace("L", "Q") for datatype in _NUMBERS}
"""What `struct` calls them; its "l" has four bytes."""


def decode_data(spec: TensorSpec, data: Any) -> Buffer:
    """Return the raw bytes of an input's `data`, which may be nested in any way.

    Raises InferError: INVALID_ARG for FP16 and BF16, INTERNAL (Triton: a 500) for elements of a wrong type or
    number.
    """
    datatype = spec.datatype
    if not isinstance(data, (list, simdjson.Array)):
        raise unparsable("data", "attempt to access JSON non-array as array")
    kind = _NUMBERS.get(datatype)
    if kind is None:
        return _decode_others(spec, _flatten(data))
    if type(data) is list and len(data) <= _SHORT:
        packed = _pack(spec, kind, data)
        if packed is not None:
            return packed
    wide = _numbers(kind, data)
    if wide.size != spec.element_count:
        raise _wrong_count()
    narrow = _narrow(datatype, wide)
    if narrow.nbytes <= _COPY_LIMIT_BYTES:
        return narrow.tobytes()
    return memoryview(narrow.data).cast("B")


def _pack(spec: TensorSpec, kind: _Kind, data: list[Any]) -> bytes | None:
    """Return the raw bytes of a few numbers; None unless they are as many as there should be, and all in range."""
    flat = _flatten(data)
    if not kind.types.issuperset(map(type, flat)) or len(flat) != spec.element_count:
        return None
    try:
        return struct.pack(f"<{len(flat)}{_CODES[spec.datatype]}", *flat)
    except (struct.error, OverflowError):
        return None


def _wrong_count() -> InferError:
    return unparsable("data", "Shape does not match true shape of 'data' field")


def _numbers(kind: _Kind, data: Any) -> Array:
    try:
        if isinstance(data, simdjson.Array):
            return np.frombuffer(data.as_buffer(of_type=kind.code), kind.wide)
        flat = _flatten(data)
        if not kind.types.issuperset(map(type, flat)):
            raise TypeError
        return np.array(flat, kind.wide)
    except TypeError:
        raise unparsable("data", kind.mismatch) from None
    except (ValueError, OverflowError):
        raise unparsable("data", f"a number is out of range; {kind.mismatch}") from None


def _narrow(datatype: DataType, wide: Array) -> Array:
    if wide.dtype == datatype.numpy:
        return wide
    if datatype is DataType.FP32:
        try:
            with np.errstate(over="raise"):
                return wide.astype(np.float32)
        except FloatingPointError:
            raise unparsable("data", "a number is out of range for FP32") from None
    narrow = wide.astype(datatype.numpy)
    if (narrow != wide).any():
        raise unparsable("data", f"an integer is out of range for {datatype.value}")
    return narrow


def _flatten(data: Any) -> list[Any]:
    nested: list[Any] = data.as_list() if isinstance(data, simdjson.Array) else data
    if list not in set(map(type, nested)):
        return nested
    flat: list[Any] = []
    stack = [iter(nested)]
    while stack:
        for element in stack[-1]:
            if type(element) is list:
                stack.append(iter(element))
                break
            flat.append(element)
        else:
            stack.pop()
    return flat


def _decode_others(spec: TensorSpec, flat: list[Any]) -> Buffer:
    kinds = set(map(type, flat))
    if spec.datatype is DataType.BYTES:
        if not kinds <= {str}:
            raise internal("Unable to parse JSON bytes array: attempt to access JSON non-string as string")
    elif spec.datatype is not DataType.BOOL:
        raise invalid_argument(
            f"receiving {spec.datatype.value} data via JSON is not supported. "
            f"Please use the binary data format for input {spec.name}"
        )
    elif not kinds <= {bool}:
        raise unparsable("data", "attempt to access JSON non-boolean as boolean")
    if len(flat) != spec.element_count:
        raise _wrong_count()
    if spec.datatype is DataType.BYTES:
        try:
            return encode_bytes_elements([element.encode() for element in flat])
        except UnicodeEncodeError:
            raise half_surrogate() from None
    return bytes(flat)


def encode_data(spec: TensorSpec, data: Buffer) -> bytes:
    """Return the JSON array of an output's elements, always flat.

    FP32 is widened to double, as Triton prints it; NaN and the infinities are written bare. Raises InferError:
    INVALID_ARG for FP16 and BF16, INTERNAL for a string that is not UTF-8.
    """
    datatype = spec.datatype
    if datatype is DataType.BYTES:
        return _encode_strings(spec, data)
    if datatype in (DataType.FP16, DataType.BF16):
        raise invalid_argument(
            f"sending {datatype.value} data via JSON is not supported. "
            f"Please use the binary data format for output {spec.name}"
        )
    if 0 < len(data) <= _SHORT * datatype.numpy.itemsize:
        count = len(data) // datatype.numpy.itemsize
        values = struct.unpack(f"<{count}{_CODES.get(datatype, '?')}", data)
        # orjson writes null for what is not finite. A sum that overflows says less, and leaves it to numpy.
        if datatype.numpy.kind != "f" or math.isfinite(sum(values)):
            return orjson.dumps(values)
    array: Array = np.frombuffer(data, datatype.numpy)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            return json.dumps(array.tolist(), separators=(",", ":")).encode()
        array = array.astype(np.float64)
    elif not array.flags.aligned:
        array = array.copy()
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)


def _encode_strings(spec: TensorSpec, data: Buffer) -> bytes:
    elements = decode_bytes_elements(data)
    try:
        return orjson.dumps([element.decode() for element in elements])
    except UnicodeDecodeError:
        raise internal(
            f"output '{spec.name}' holds bytes that are not UTF-8, which JSON cannot carry; ask for it as binary "
            f'data ("parameters": {{"binary_data": true}})'
        ) from None

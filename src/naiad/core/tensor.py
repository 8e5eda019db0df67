"""Tensors in wire format: a spec (name, datatype, shape) and raw little-endian bytes."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from naiad.core.datatype import STRING_KINDS, DataType
from naiad.core.errors import InferError, excerpt, invalid_argument
from naiad.core.slices import Slices

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Raw tensor bytes in C order, little-endian. A memoryview is always of format "B", one-dimensional."""
Shape: TypeAlias = tuple[int, ...]
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_LENGTH = struct.Struct("<I")
_SLICE_ELEMENTS = 8192
"""Number of BYTES elements in one slice of work."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, datatype and full shape (batch dimension included) of a tensor."""

    name: str
    datatype: DataType
    shape: Shape

    @property
    def element_count(self) -> int:
        """Number of elements; 1 for a scalar, 0 if any dimension is 0."""
        return math.prod(self.shape)

    @property
    def byte_size(self) -> int:
        """Size of the elements in bytes; 0 for BYTES, whose size depends on the data."""
        return self.element_count * self.datatype.item_bytes


def encode_bytes_elements(elements: Sequence[bytes]) -> bytes:
    """Return BYTES elements as raw data: a uint32 little-endian length before each element."""
    pack = _LENGTH.pack
    parts: list[bytes] = []
    for element in elements:
        parts.append(pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def zeros(spec: TensorSpec) -> bytes:
    """Return a tensor of zeros, of empty strings for BYTES, as raw data."""
    if spec.datatype is DataType.BYTES:
        return encode_bytes_elements([b""] * spec.element_count)
    return bytes(spec.byte_size)


def decode_bytes_elements(data: Buffer, where: str = "in BYTES tensor") -> list[bytes]:
    """Return the elements of raw BYTES data; the inverse of `encode_bytes_elements`. Raises InferError(INVALID_ARG)
    if a length indicator or an element is incomplete; `where` is part of the message.
    """
    view = memoryview(data)
    unpack = _LENGTH.unpack_from
    elements: list[bytes] = []
    position, end = 0, len(view)
    while position < end:
        if end - position < 4:
            raise _incomplete_length(where, end - position)
        (length,) = unpack(view, position)
        position += 4
        if end - position < length:
            raise _incomplete_element(where, length, end - position)
        elements.append(bytes(view[position : position + length]))
        position += length
    return elements


def _incomplete_length(where: str, left: int) -> InferError:
    return invalid_argument(
        f"incomplete string length indicator {where}, expecting 4 bytes but only {left} bytes available"
    )


def _incomplete_element(where: str, length: int, left: int) -> InferError:
    return invalid_argument(
        f"incomplete string data {where}, expecting string of length {length} but only {left} bytes available"
    )


def count_bytes_elements(data: Buffer, where: str) -> Slices[int]:
    """Return the number of elements of raw BYTES data, in slices.

    Raises InferError as `decode_bytes_elements` does.
    """
    view = memoryview(data)
    unpack = _LENGTH.unpack_from
    position = start = count = 0
    end = len(view)
    while position < end:
        stop = count + _SLICE_ELEMENTS
        while position <= end - 4 and count < stop:
            start = position
            position += 4 + unpack(view, position)[0]
            count += 1
        if position > end:
            raise _incomplete_element(where, unpack(view, start)[0], end - start - 4)
        if 0 < end - position < 4:
            raise _incomplete_length(where, end - position)
        yield
    return count


def to_array(spec: TensorSpec, data: Buffer) -> Array:
    """Return the tensor as an ndarray: a view of `data`, or an object array of `bytes` for BYTES.

    Raises InferError(INVALID_ARG) unless `data` has exactly the elements of `spec.shape`.
    """
    if spec.datatype is DataType.BYTES:
        elements = decode_bytes_elements(data)
        if len(elements) != spec.element_count:
            raise _wrong_count(spec, len(elements))
        array = np.empty(len(elements), dtype=np.object_)
        for start in range(0, len(elements), _SLICE_ELEMENTS):
            # An assignment holds the interpreter's lock; a short one lets the event loop continue.
            array[start : start + _SLICE_ELEMENTS] = elements[start : start + _SLICE_ELEMENTS]
        return array.reshape(spec.shape)
    try:
        return np.frombuffer(data, dtype=spec.datatype.numpy).reshape(spec.shape)
    except ValueError as error:
        raise invalid_argument(
            f"input byte size mismatch for tensor '{excerpt(spec.name)}'. Expected {spec.byte_size}, got {len(data)}"
        ) from error


def _wrong_count(spec: TensorSpec, count: int) -> InferError:
    return invalid_argument(
        f"tensor '{excerpt(spec.name)}': expected {spec.element_count} string elements, got {count}"
    )


def has_masked(array: object) -> bool:
    """Return whether an array hides elements behind a mask: as a tensor it would show what lies below."""
    is_other = type(array) is not np.ndarray and isinstance(array, np.ndarray)
    return is_other and isinstance(array, np.ma.MaskedArray) and bool(np.ma.is_masked(array))


def to_buffer(array: Array) -> Buffer:
    """Return the raw bytes of an array: a view if it is contiguous, BYTES encoded for strings.

    Raises UnicodeEncodeError for text that UTF-8 does not have: see `text_problem`.
    """
    if array.dtype.kind in STRING_KINDS:
        return encode_bytes_elements([_as_bytes(element) for element in array.ravel().tolist()])
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    # ml_dtypes arrays and zero-size arrays do not export a castable buffer; a uint8 view always does.
    flat = np.ascontiguousarray(array).reshape(-1)
    return memoryview(flat.view(np.uint8).data) if flat.size else b""


def text_problem(array: Array) -> str:
    """Return what is wrong with the first text of an array that `to_buffer` cannot encode; empty if it can."""
    for index, element in enumerate(array.ravel().tolist() if array.dtype.kind in STRING_KINDS else ()):
        try:
            _as_bytes(element)
        except UnicodeEncodeError as error:
            half = f"U+{ord(error.object[error.start]):04X}"
            return (
                f"has half of a surrogate pair ({half}, at character {error.start} of element {index}), which UTF-8 "
                "does not have; encode the text with text.encode('utf-8', 'replace')"
            )
    return ""


def _as_bytes(element: object) -> bytes:
    if isinstance(element, bytes):
        return element
    return str(element).encode("utf-8", "surrogateescape")

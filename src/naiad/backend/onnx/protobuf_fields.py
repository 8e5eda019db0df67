"""The fields of serialized protobuf messages, without a schema: reads ONNX files without the package `onnx`."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
_FIXED_BYTES = {FIXED_64: 8, FIXED_32: 4}
_MAX_VARINT_BYTES = 10


class CutOffError(ValueError):
    """The message ends within a field."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its number, its wire type and its place in the message."""

    number: int
    wire_type: int
    start: int
    """Position of its tag."""
    value_start: int
    """Position of its value; of a field of bytes, after the length."""
    end: int
    """Position after its value."""


def read_fields(data: bytes | mmap.mmap, start: int = 0, end: int | None = None) -> Iterator[Field]:
    """Yield the fields of the message from `start` to `end`; fields of bytes are skipped, not read.

    Raises CutOffError if the data ends within a field, ValueError if it is not protobuf.
    """
    end = len(data) if end is None else end
    position = start
    while position < end:
        tag, value_start = read_varint(data, position, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == VARINT:
            _, field_end = read_varint(data, value_start, end)
        elif wire_type == BYTES:
            size_bytes, value_start = read_varint(data, value_start, end)
            field_end = value_start + size_bytes
        elif wire_type in _FIXED_BYTES:
            field_end = value_start + _FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"wire type {wire_type} is unknown")
        if not number:
            raise ValueError("a field has the number 0")
        if field_end > end:
            raise CutOffError(f"at least {_count(field_end - end)} missing")
        yield Field(number, wire_type, position, value_start, field_end)
        position = field_end


def read_varint(data: bytes | mmap.mmap, position: int, end: int) -> tuple[int, int]:
    """Return the number at `position` and the position after it. Raises as `read_fields`."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position + index >= end:
            raise CutOffError(f"at least {_count(1)} missing")
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("a number has more than 10 bytes")


def varint_field(number: int, value: int) -> bytes:
    """Return a field of type VARINT; `value` is not negative."""
    return _varint(number << 3) + _varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a field of bytes: a string, or a message."""
    return _varint(number << 3 | BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _count(byte_count: int) -> str:
    return "1 byte is" if byte_count == 1 else f"{byte_count:,} bytes are"

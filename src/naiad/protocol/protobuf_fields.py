"""The protobuf wire format, as far as the hot path reads and writes it by hand: varints and framed bytes."""

from naiad.core.tensor import Buffer

_MAX_LENGTH_BYTES = 5
"""Varint bytes of the longest legal field length, 2 GiB - 1."""


def read_length(data: Buffer, position: int) -> tuple[int, int]:
    """Return the varint length at `position` and the position after it.

    Raises ValueError when it is longer than a length can be, IndexError when it is cut short.
    """
    length = shift = 0
    for _ in range(_MAX_LENGTH_BYTES):
        byte = data[position]
        position += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length, position
        shift += 7
    raise ValueError("varint is too long for a field length")


def encode_varint(value: int) -> bytes:
    """Return a non-negative integer as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_framing(tag: int, length: int) -> bytes:
    """Return what stands before the `length` bytes of a length-delimited field with a one-byte tag."""
    return bytes((tag,)) + encode_varint(length)


def read_raw_contents(message: Buffer, source: Buffer, position: int, tag: int, most: int) -> list[Buffer]:
    """Return the contents of fields that fill `message` from `position` to its end, all with the same one-byte `tag`.

    The contents are slices of `source`, which is `message` or a view on it. Raises ValueError for another tag, for a
    content that overruns the message, or for more than `most` contents, IndexError when the framing is cut short.
    """
    # hot: bench/micro_infer_grpc.py
    size = len(message)
    contents: list[Buffer] = []
    while position < size:
        if message[position] != tag or len(contents) == most:
            raise ValueError("another field after the raw contents, or too many of them")
        length = message[position + 1]
        position += 2
        if length > 0x7F:
            length, position = read_length(message, position - 1)
        end = position + length
        contents.append(source[position:end])
        position = end
    if position != size:
        raise ValueError("raw contents overrun the message")
    return contents

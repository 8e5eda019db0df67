"""The model of a gRPC request whose message has only begun to arrive."""

from collections.abc import Mapping

from naiad.core.tensor import Buffer

_NAME, _VERSION, _ID = 1, 2, 3
_LENGTH_DELIMITED = 2
_MOST_BYTES = 4096
"""Longer names and ids are left to the whole message."""


def read_beginning(data: Buffer) -> tuple[str, str, str] | None:
    """Return model name, version and request id of a ModelInferRequest of which `data` is the beginning.

    None when that is not certain yet: the fields before the tensors have not all come, or the name is not the first.
    Of a message that goes on in an unusual way, malformed ones among them, what stands before that is returned: it is
    refused for what it says first.
    """
    text = bytes(data[:_MOST_BYTES])
    found = {_NAME: "", _VERSION: "", _ID: ""}
    position = previous = 0
    while position < len(text):
        tag = text[position]
        number = tag >> 3
        if tag & 7 != _LENGTH_DELIMITED or not previous < number <= _ID:
            return _named(found)
        length, start = _varint(text, position + 1)
        if length < 0 or start + length > len(text):
            return _named(found) if len(text) == _MOST_BYTES else None
        try:
            found[number] = text[start : start + length].decode()
        except UnicodeDecodeError:
            return _named(found)
        previous, position = number, start + length
    return None


def _named(found: Mapping[int, str]) -> tuple[str, str, str] | None:
    return (found[_NAME], found[_VERSION], found[_ID]) if found[_NAME] else None


def _varint(text: bytes, position: int) -> tuple[int, int]:
    """Return a number of at most two bytes and the place behind it; -1 for anything else."""
    piece = text[position : position + 2]
    if piece and piece[0] < 0x80:
        return piece[0], position + 1
    if len(piece) == 2 and piece[1] < 0x80:
        return piece[0] & 0x7F | piece[1] << 7, position + 2
    return -1, position

"""gzip and zlib ("deflate") of bodies and messages: bounded decompression, compression, and what a peer accepts."""

import zlib
from collections.abc import Iterable, Mapping

from naiad.core.tensor import Buffer

WINDOW_BITS: Mapping[bytes, int] = {
    b"gzip": zlib.MAX_WBITS | 16,
    b"x-gzip": zlib.MAX_WBITS | 16,  # RFC 9110 8.4.1.3: the same as gzip
    b"deflate": zlib.MAX_WBITS,  # RFC 9110 8.4.1.2: a zlib stream, not a bare one
}
"""Coding to zlib's window bits."""
MAX_INLINE_BYTES = 16 * 1024
"""Data up to this size takes less than a millisecond to compress, and may be on an event loop."""
MAX_INLINE_PLAIN_BYTES = 64 * 1024
"""The same for what comes out of decompression."""
FASTEST_LEVEL = 1
_HIGHEST_RATIO = 1032
"""No more can come out of a byte of deflate."""
_GZIP_TRAILER_BYTES = 8
_STEP_IN_BYTES, _STEP_OUT_BYTES = 256 * 1024, 1 << 20
"""How much long data is decompressed at a time."""
_OFFERED = (b"gzip", b"deflate")
"""What answers are coded with, the preferred first."""
_MAX_ACCEPT_BYTES = 1024


class CorruptError(Exception):
    """Compressed data that is none, is cut short, or goes on after its end."""


class TooLargeError(Exception):
    """Compressed data of which more comes out than is allowed."""


def plain_limit(size: int, max_bytes: int, ratio: int, floor_bytes: int) -> int:
    """Return how much may come out of `size` bytes of compressed data.

    Up to `floor_bytes` any ratio is allowed, as real tensors and documents reach the highest one; beyond it `ratio`.
    """
    return min(max_bytes, max(floor_bytes, ratio * size))


def most_plain_bytes(data: Buffer, bits: int, limit: int) -> int:
    """Return how much memory decompression may take; what gzip says of its size counts, as a lie is an error."""
    size = len(data)
    if bits > zlib.MAX_WBITS and size >= _GZIP_TRAILER_BYTES:
        announced = int.from_bytes(data[-4:], "little")  # RFC 1952 2.3.1: ISIZE
        if announced <= limit:
            return max(announced, 1)  # zlib: 0 is no limit
    return min(limit, _HIGHEST_RATIO * size)


def decompress(data: Buffer, bits: int, max_bytes: int) -> Buffer:
    """Return at most `max_bytes` of decompressed data; no more than that is ever produced.

    Long data grows in place: zlib would collect it in blocks and then copy them, which takes twice the memory.

    Raises TooLargeError when there is more, CorruptError when the data is damaged, cut short or longer than its end.
    """
    engine = zlib.decompressobj(bits)
    view, plain, at, rest = memoryview(data), bytearray(), 0, b""
    try:
        while not engine.eof:
            if not rest:
                rest = bytes(view[at : at + _STEP_IN_BYTES])
                at += len(rest)
            left = max_bytes - len(plain)
            piece = engine.decompress(rest, min(_STEP_OUT_BYTES, left) or 1)  # zlib: 0 is no limit
            if len(piece) > left:
                raise TooLargeError
            rest = engine.unconsumed_tail
            plain += piece
            if not (piece or rest or engine.eof) and at >= len(view):
                raise CorruptError("the data is incomplete")
    except zlib.error as error:
        raise CorruptError(str(error)) from None
    unused_bytes = len(engine.unused_data) + len(view) - at
    if unused_bytes:
        # Also what gzip calls further members: each could be empty, and a body be millions of them.
        raise CorruptError(f"{unused_bytes} bytes follow the end of the compressed data")
    return memoryview(plain) if len(plain) > MAX_INLINE_PLAIN_BYTES else bytes(plain)


def compress(parts: Iterable[Buffer], bits: int, level: int = FASTEST_LEVEL) -> bytes:
    """Return the parts as one compressed piece."""
    engine = zlib.compressobj(level, zlib.DEFLATED, bits)
    pieces = [engine.compress(part) for part in parts]
    pieces.append(engine.flush())
    return b"".join(pieces)


def accepted_coding(accept: bytes) -> bytes | None:
    """Return the coding for an answer by the Accept-Encoding of its request (RFC 9110 12.5.3); None for identity.

    The highest q-value wins, gzip on equal terms. What is malformed counts as not accepted.
    """
    weights = _weights(accept)
    rest = weights.get(b"*", 0.0)
    offers = {coding: weights.get(coding, rest) for coding in _OFFERED}
    best = max(offers, key=offers.__getitem__)
    # Identity is acceptable without being named, and then as good as nothing else is.
    return best if offers[best] > 0 and offers[best] >= weights.get(b"identity", 0.0) else None


def _weights(accept: bytes) -> dict[bytes, float]:
    weights: dict[bytes, float] = {}
    for entry in accept[:_MAX_ACCEPT_BYTES].lower().split(b","):
        name, _, parameters = entry.partition(b";")
        coding = name.strip()
        weights[b"gzip" if coding == b"x-gzip" else coding] = _weight(parameters.strip())
    return weights


def _weight(parameters: bytes) -> float:
    if not parameters:
        return 1.0
    name, _, text = parameters.partition(b"=")
    if name.strip() != b"q":
        return 0.0
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0

"""gRPC's length-prefixed messages: the same messages or the same error however a body is cut, never above the limit.

The first byte of an input chooses the encoding.
"""

import gzip
import zlib
from collections.abc import Hashable, Sequence
from random import Random
from typing import NamedTuple

from fuzz.mutation import cut, mutate_bytes, mutate_pieces
from fuzz.target import Target
from naiad.wire.grpc import CompressedMessage, GrpcError, MessageAssembler, encode_status_text, parse_timeout_ns

_LIMIT_BYTES = 50_000
_ENCODINGS = (None, b"identity", b"gzip", b"deflate")


class _Refusal(NamedTuple):
    status: int
    message: str


def _read(encoding: bytes | None, pieces: Sequence[bytes]) -> list[bytes] | _Refusal:
    assembler = MessageAssembler(_LIMIT_BYTES, encoding)
    messages: list[bytes] = []
    received = 0
    try:
        for piece in pieces:
            for message in assembler.feed(memoryview(piece)):
                assert not isinstance(message, CompressedMessage), "within the limit all are small"
                messages.append(bytes(message))
            received += len(piece)
            assert assembler.pending_bytes <= received
        assembler.finish()
    except GrpcError as error:
        assert all(len(message) <= _LIMIT_BYTES for message in messages)
        return _Refusal(error.status, error.message)
    assert all(len(message) <= _LIMIT_BYTES for message in messages)
    return messages


def _reference(data: bytes) -> list[bytes] | None:
    """Return the messages of a body without compression, None when there is something wrong with it."""
    messages = []
    while data:
        length = int.from_bytes(data[1:5], "big")
        if len(data) < 5 + length or data[0] or length > _LIMIT_BYTES:
            return None
        messages.append(data[5 : 5 + length])
        data = data[5 + length :]
    return messages


def check(data: bytes) -> Hashable:
    """Read the body at once and in pieces."""
    encoding, body = _ENCODINGS[(data[0] if data else 0) % 4], data[1:]
    whole = _read(encoding, [body])
    pieces = _read(encoding, cut(body, Random(len(data))))
    assert whole == pieces
    if encoding in (None, b"identity"):
        assert (None if isinstance(whole, _Refusal) else whole) == _reference(body)
    _check_texts(body)
    if isinstance(whole, _Refusal):
        return "error", whole.status, whole.message[:25]
    return len(whole), sum(len(message) > 1000 for message in whole)


def _check_texts(body: bytes) -> None:
    text = body.decode("utf-8", "replace")
    encoded = encode_status_text(text)
    assert all(0x20 <= byte < 0x7F for byte in encoded)
    assert encoded == encoded.strip()
    try:
        assert parse_timeout_ns(body[:12]) > 0
    except GrpcError:
        assert not (body[:-1].isdigit() and len(body) < 9 and body[-1:] in b"HMSmun"), body


def restructure(data: bytes, random: Random) -> bytes:
    """Change the order of messages, or the inside of one with its length mended."""
    pieces, position = [], 1
    while position + 5 <= len(data):
        size = 5 + int.from_bytes(data[position + 1 : position + 5], "big")
        pieces.append(data[position : position + size])
        position += size
    if not pieces or random.random() < 0.4:
        return data[:1] + b"".join(mutate_pieces(pieces, random))
    at = random.randrange(len(pieces))
    content = mutate_bytes(pieces[at][5:], random)
    pieces[at] = pieces[at][:1] + len(content).to_bytes(4, "big") + content
    return data[:1] + b"".join(pieces)


def _framed(*messages: bytes, flag: int = 0) -> bytes:
    return b"".join(bytes((flag,)) + len(message).to_bytes(4, "big") + message for message in messages)


def seeds() -> list[bytes]:
    """Return bodies in every encoding."""
    bomb = bytes(_LIMIT_BYTES + 1)
    return [
        b"\0" + _framed(b"", b"a", b"b" * 300),
        b"\1" + _framed(b"abc"),
        b"\2" + _framed(gzip.compress(b"zip" * 50), gzip.compress(b""), flag=1) + _framed(b"plain"),
        b"\3" + _framed(zlib.compress(b"zip" * 50), flag=1),
        b"\2" + _framed(gzip.compress(bomb), flag=1),
        b"\3" + _framed(zlib.compress(bomb[:-1]), flag=1),
        b"\0\0\xff\xff\xff\xff",
        b"\0100m",
        b"\012345678S",
    ]


TARGET = Target("grpc_framing", check, seeds, restructure=restructure)

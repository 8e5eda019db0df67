"""Header blocks into the decoder with its cache: it must say what the hpack package says, block after block.

An input is a list of blocks, each behind its length in two bytes.
"""

from collections.abc import Hashable
from random import Random

import hpack

from fuzz.mutation import mutate_bytes, mutate_pieces
from fuzz.target import Target
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.hpack import HeaderListTooLargeError, HpackError, RequestHeadDecoder

_LIMIT_BYTES = 4096


def _split(data: bytes) -> list[bytes]:
    blocks = []
    position = 0
    while position + 2 <= len(data):
        size = int.from_bytes(data[position : position + 2], "big")
        blocks.append(data[position + 2 : position + 2 + size])
        position += 2 + size
    return blocks


def _join(blocks: list[bytes]) -> bytes:
    return b"".join(len(block).to_bytes(2, "big") + block for block in blocks)


def _reference(decoder: hpack.Decoder, block: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return the fields of a block as the package reads it, None when it refuses."""
    try:
        return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    except hpack.HPACKError:
        return None


def check(data: bytes) -> Hashable:
    """Decode the blocks with both decoders, as requests and some twice, until one is refused."""
    decoder = RequestHeadDecoder(Http2Limits(header_list_bytes=_LIMIT_BYTES, header_fields=_LIMIT_BYTES))
    # The package counts as the limit does; twice the limit is where ours stops.
    reference = hpack.Decoder(max_header_list_size=2 * _LIMIT_BYTES)
    outcome: list[Hashable] = []
    for block in _split(data):
        expected = _reference(reference, block)
        try:
            head = decoder.decode(block)
        except (HpackError, HeaderListTooLargeError) as refusal:
            # The package takes any number of table size updates.
            if expected is not None and "table size updates" not in str(refusal):
                raise AssertionError("refused what the package accepts") from refusal
            return (*outcome, type(refusal), str(refusal)[:20])
        assert expected is not None, "accepted what the package refuses"
        size = sum(32 + len(name) + len(value) for name, value in expected)
        assert head.is_too_large == (size > _LIMIT_BYTES)
        regular = tuple(field for field in expected if field[0][:1] != b":")
        assert head.fields == (() if head.is_too_large else regular)
        outcome.append((len(expected), head.error[:20], len(decoder.cached), len(decoder.cached_static)))
    return tuple(outcome)


def restructure(data: bytes, random: Random) -> bytes:
    """Change the order of blocks, or the inside of one."""
    blocks = _split(data)
    if not blocks or random.random() < 0.4:
        return _join(mutate_pieces(blocks, random))
    at = random.randrange(len(blocks))
    blocks[at] = mutate_bytes(blocks[at], random, TOKENS)
    return _join(blocks)


TOKENS = (
    b"\x20",
    b"\x3f\xe1\x1f",
    b"\x3f\x45",
    b"\x82",
    b"\xbe",
    b"\xbf",
    b"\x80",
    b"\x40\x01a\x01b",
    b"\x00\x01a\x01b",
    b"\x10\x01a\x01b",
    b"\x44\x01/",
    b"\x04\x82\x60\x75",
    b"\x5f\x8b\x1d\x75\xd0\x62\x0d\x26\x3d\x4c\x4d\x65\x64",
    b"\xff\xff\xff\xff\x0f",
    b"\x7f\x81\x7f",
    b"\x40\x01a\x7f\x81\x07" + b"v" * 1024,
    b"\x84\xff\xff\xff\xff",
)


def seeds() -> list[bytes]:
    """Return what a client's encoder makes of a few requests."""
    found = []
    for huffman in (False, True):
        for size in (4096, 100, 0):
            encoder = hpack.Encoder()
            blocks = []
            for path in ("/s/a", "/s/b", "/s/a", "/s/a"):
                fields = [
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":path", path),
                    ("grpc-timeout", "1S"),
                    ("te", "x"),
                ]
                blocks.append(encoder.encode(fields, huffman=huffman))
                encoder.header_table_size = size
            found.append(_join(blocks))
    return found


TARGET = Target("hpack_cache", check, seeds, TOKENS, restructure)

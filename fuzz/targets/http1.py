"""HTTP/1.1 requests: the same requests and answers however the bytes are cut, bodies of the length they announce."""

import re
from collections.abc import Hashable, Sequence
from random import Random

from fuzz.fakes import Loop, Transport
from fuzz.mutation import cut, mutate_bytes, mutate_pieces
from fuzz.target import Target
from naiad.frontend.context import HttpContext
from naiad.frontend.http1.connection import Http1Server
from naiad.wire.http1 import Http1Limits

_LIMITS = Http1Limits(head_bytes=2048, body_bytes=5000, pipelined_requests=4)
_Request = tuple[str, str, bytes, bytes]


def _play(pieces: Sequence[bytes]) -> tuple[list[_Request], bytes, bool]:
    seen: list[_Request] = []

    def handle(exchange: HttpContext) -> None:
        length = exchange.headers.get(b"content-length", b"")
        seen.append((exchange.method, exchange.path, bytes(exchange.body), length))
        exchange.respond(200, (), (b"%d" % len(seen),))

    loop, transport = Loop(), Transport()
    connection = Http1Server(handle, loop, _LIMITS).protocol()
    connection.connection_made(transport)
    for piece in pieces:
        rest = piece
        while rest and not transport.is_closed:
            buffer = connection.get_buffer(-1)
            assert len(buffer), "the connection has no room for what comes"
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            connection.buffer_updated(count)
            rest = rest[count:]
    loop.run()
    connection.connection_lost(None)
    return seen, bytes(transport.written), transport.is_closed


def _statuses(written: bytes) -> list[bytes]:
    """Return the status of each answer; of a head with several faults, any may be reported."""
    statuses = re.findall(rb"HTTP/1\.1 (\d{3}) ", written)
    assert b"500" not in statuses
    # Whether the body has come with the head decides whether it is asked for.
    return [b"200" if status == b"200" else b"refused" for status in statuses if status != b"100"]


def check(data: bytes) -> Hashable:
    """Serve the bytes at once and in pieces."""
    seen, written, is_closed = _play([data])
    statuses = _statuses(written)
    seen_in_pieces, written_in_pieces, is_closed_in_pieces = _play(cut(data, Random(len(data) * 31 + sum(data[:64]))))
    assert seen == seen_in_pieces
    assert is_closed == is_closed_in_pieces
    assert statuses == _statuses(written_in_pieces)
    assert len(seen) <= len(statuses) <= len(seen) + 1
    for method, path, body, length in seen:
        assert method.isascii()
        assert path.isprintable() or not path.isascii()
        assert len(body) <= _LIMITS.body_bytes
        assert not length.isdigit() or len(body) == int(length)
    return tuple(statuses), is_closed, tuple((method, len(body) > 0) for method, _, body, _ in seen)


def restructure(data: bytes, random: Random) -> bytes:
    """Change the order of lines, or one of them."""
    lines = data.split(b"\r\n")
    at = random.randrange(len(lines))
    action = random.randrange(4)
    if action == 0:
        lines = mutate_pieces(lines, random)
    elif action == 1:
        lines.insert(at, random.choice(TOKENS))
    elif action == 2:
        name, colon, value = lines[at].partition(b":")
        lines[at] = name + colon + mutate_bytes(value, random)
    else:
        lines[at] = mutate_bytes(lines[at], random)
    return b"\r\n".join(lines)


TOKENS = (
    b"Content-Length: 5",
    b"Content-Length: 05",
    b"Content-Length: +5",
    b"Content-Length: 5, 5",
    b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding : chunked",
    b"Expect: 100-continue",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Upgrade: h2c",
    b"Host: y",
    b"GET / HTTP/1.0",
    b"POST /a HTTP/1.1",
    b"HEAD /a HTTP/1.1",
    b"CONNECT a:1 HTTP/1.1",
    b"GET http://x/y HTTP/1.1",
    b" folded",
    b"0",
    b"5;ext=1",
    b"ffffffffffffffff",
    b"\n",
    b"\r",
    b"\0",
)


def seeds() -> list[bytes]:
    """Return requests of every kind, alone and pipelined."""
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n"
    one = head + b"Content-Length: 5\r\n\r\nhello"
    chunked = (
        head + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n0\r\nTrailer: 1\r\n\r\n"
    )
    get = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
    expect = head + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"
    large = head + b"Inference-Header-Content-Length: 3\r\nContent-Length: 3000\r\n\r\n" + b"x" * 3000
    old = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    return [
        one,
        chunked,
        get,
        expect,
        large,
        old,
        one + get + chunked + one,
        get * 6,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]


TARGET = Target("http1", check, seeds, TOKENS, restructure)

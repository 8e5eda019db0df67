"""Requests in any chunking of their bytes give the same results, and no input breaks the server."""

import asyncio
import itertools

from hypothesis import given
from hypothesis import strategies as st

from naiad.frontend.http1.connection import Http1Server
from naiad.wire.http1 import ChunkedDecoder, Http1Limits, HttpError


class Sink(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.output = b""
        self.done = False

    def write(self, data):
        self.output += bytes(data)

    def writelines(self, parts):
        self.output += b"".join(parts)

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def can_write_eof(self):
        return False

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def close(self):
        self.done = True

    abort = close

    def is_closing(self):
        return self.done


class Loop:
    def call_soon(self, callback, *args):
        return None

    def call_later(self, delay, callback, *args):
        return None

    def call_soon_threadsafe(self, callback, *args):
        raise AssertionError


def serve(pieces):
    seen = []

    def handle(context):
        seen.append((context.method, context.path, bytes(context.body)))
        context.respond(200, (), (b"%d" % len(seen),))

    transport = Sink()
    connection = Http1Server(handle, Loop(), Http1Limits(head_bytes=2048, pipelined_requests=4)).protocol()
    connection.connection_made(transport)
    for piece in pieces:
        rest = piece
        while rest and not transport.done:
            buffer = connection.get_buffer(-1)
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            connection.buffer_updated(count)
            rest = rest[count:]
    connection.connection_lost(None)
    return seen, transport.output


def chunked(body, size):
    chunks = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"


@st.composite
def messages(draw):
    path = "/" + draw(st.text("ab/", max_size=5))
    body = draw(st.binary(max_size=300))
    kind = draw(st.sampled_from(["none", "length", "chunked"]))
    head = b"POST %s HTTP/1.1\r\nHost: x\r\n" % path.encode()
    if kind == "none":
        return ("POST", path, b""), head + b"\r\n"
    if kind == "length":
        return ("POST", path, body), head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    size = draw(st.integers(1, 100))
    return ("POST", path, body), head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, size)


def cut(data, positions):
    edges = [0, *sorted({p % (len(data) + 1) for p in positions}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(messages(), min_size=1, max_size=6), st.lists(st.integers(0, 5000), max_size=30))
def test_any_cutting_gives_the_same_requests_and_answers(items, positions):
    data = b"".join(text for _, text in items)
    seen, output = serve(cut(data, positions))
    assert seen == [expected for expected, _ in items]
    assert output.count(b"HTTP/1.1 200 OK") == len(items)


@given(
    st.lists(messages(), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=5),
    st.lists(st.integers(0, 5000), max_size=10),
)
def test_corrupted_bytes_never_raise_in_any_chunking(items, changes, positions):
    data = bytearray(b"".join(text for _, text in items))
    for position, value in changes:
        data[position % len(data)] = value
    whole, _ = serve([bytes(data)])
    pieces, _ = serve(cut(bytes(data), positions))
    assert pieces == whole


@given(st.binary(max_size=200), st.integers(1, 50), st.lists(st.integers(0, 500), max_size=20))
def test_chunked_decoder_inverts_the_coding(body, size, positions):
    decoder = ChunkedDecoder(Http1Limits())
    rest = b"next request"
    used = 0
    data = chunked(body, size) + rest
    for piece in cut(data, positions):
        if not decoder.is_done:
            used += decoder.feed(memoryview(piece))
    assert decoder.is_done
    assert bytes(decoder.body) == body
    assert data[used:] == rest


def decode(pieces, limits):
    """Return status, body and count of chunks after `pieces`; the fast path needs pieces with whole chunks."""
    decoder, status = ChunkedDecoder(limits), 200
    try:
        for piece in pieces:
            if not decoder.is_done:
                decoder.feed(memoryview(piece))
    except HttpError as error:
        status = error.status
    return status, bytes(decoder.body), decoder._chunk_count, decoder.is_done


@given(st.lists(st.binary(min_size=1, max_size=8), max_size=12), st.integers(0, 40), st.integers(1, 8))
def test_fast_and_slow_paths_keep_the_same_limits(chunks, body_bytes, chunk_count):
    limits = Http1Limits(body_bytes=body_bytes, chunk_count=chunk_count)
    data = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    status, body, count, is_done = decode([data], limits)
    assert (status, body, count, is_done) == decode([data[i : i + 1] for i in range(len(data))], limits)
    assert len(body) <= body_bytes
    assert is_done == (sum(map(len, chunks)) <= body_bytes and len(chunks) <= chunk_count)

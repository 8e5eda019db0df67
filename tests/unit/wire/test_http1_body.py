import numpy as np
import pytest

from naiad.wire.http1 import ChunkedDecoder, Http1Limits, HttpError, allocate_body


@pytest.mark.parametrize("offset", [0, 1, 63, 64, 250])
def test_tensors_in_a_body_are_aligned(offset):
    body = allocate_body(1000, offset)
    assert len(body) == 1000
    assert np.frombuffer(body[offset:], np.uint8).ctypes.data % 64 == 0


def decode(data, **limits):
    decoder = ChunkedDecoder(Http1Limits(**limits))
    used = decoder.feed(memoryview(data))
    return bytes(decoder.body), used, decoder.is_done


def test_chunks_extensions_and_trailers():
    text = b"3;a=b\r\nabc\r\n000A \r\n0123456789\r\n0\r\nX-Trailer: y\r\n\r\n"
    assert decode(text + b"GET /next") == (b"abc0123456789", len(text), True)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
def test_pieces_do_not_matter(size):
    text = b"".join(b"%x;e=%d \r\n%b\r\n" % (n, n, bytes(range(n))) for n in range(1, 40)) + b"0\r\n\r\n"
    whole, used, _ = decode(text + b"GET")
    decoder = ChunkedDecoder(Http1Limits())
    for at in range(0, len(text), size):
        decoder.feed(memoryview(text)[at : at + size])
    assert (bytes(decoder.body), used, decoder.is_done) == (whole, len(text), True)


def test_incomplete_body_is_not_done():
    assert decode(b"5\r\nabc") == (b"abc", 6, False)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"zz\r\n", 400),
        (b"\r\n", 400),
        (b"-1\r\n", 400),
        (b"0x5\r\n", 400),
        (b"1" * 17 + b"\r\n", 400),
        (b"3\nabc\r\n", 400),
        (b"3\r\nabcd\r\n", 400),
        (b"1;" + b"x" * 5000, 400),
        (b"b\r\n", 413),
        (b"6\r\n" + b"x" * 6 + b"\r\n6\r\n", 413),
        (b"1\r\na\r\n" * 4, 400),
        (b"0\r\n" + b"A: b\r\n" * 2000, 431),
    ],
)
def test_bad_chunks_are_rejected(text, status):
    with pytest.raises(HttpError) as caught:
        decode(text, body_bytes=10, chunk_count=3)
    assert caught.value.status == status

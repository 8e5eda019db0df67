import gzip
import random
import tracemalloc
import zlib

import pytest

from naiad.wire.compression import (
    WINDOW_BITS,
    CorruptError,
    TooLargeError,
    accepted_coding,
    compress,
    decompress,
)

CODINGS = [b"gzip", b"deflate"]
TEXT = b"tensor " * 1000


@pytest.mark.parametrize("coding", CODINGS)
def test_parts_come_back_as_one(coding):
    bits = WINDOW_BITS[coding]
    assert decompress(compress([TEXT, memoryview(b"end"), b""], bits), bits, 10**6) == TEXT + b"end"


def test_formats_match_other_libraries():
    assert gzip.decompress(compress([TEXT], WINDOW_BITS[b"gzip"])) == TEXT
    assert zlib.decompress(compress([TEXT], WINDOW_BITS[b"deflate"])) == TEXT


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("plain", [b"", b"x", TEXT, random.Random(0).randbytes(5000)])
def test_limit_is_exact(coding, plain):
    bits = WINDOW_BITS[coding]
    data = compress([plain], bits)
    assert decompress(data, bits, max(1, len(plain))) == plain
    if len(plain) > 1:
        with pytest.raises(TooLargeError):
            decompress(data, bits, len(plain) - 1)


def test_bomb_gives_no_more_than_the_limit():
    bomb = compress([bytes(2**24)], WINDOW_BITS[b"gzip"], 9)
    assert len(bomb) < 2**15
    with pytest.raises(TooLargeError):
        decompress(bomb, WINDOW_BITS[b"gzip"], 1000)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "incomplete"),
        (b"plain text", "header"),
        (gzip.compress(TEXT, mtime=0)[:-1], "incomplete"),
        (gzip.compress(TEXT, mtime=0)[:-8] + bytes(8), "check"),
        (gzip.compress(TEXT, mtime=0) + b"more", "4 bytes follow"),
        (gzip.compress(TEXT, mtime=0) * 2, "bytes follow"),
        (zlib.compress(TEXT), "header"),
    ],
)
def test_what_is_not_gzip_is_corrupt(data, reason):
    with pytest.raises(CorruptError, match=reason):
        decompress(data, WINDOW_BITS[b"gzip"], 10**6)


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        (b"gzip", b"gzip"),
        (b"deflate", b"deflate"),
        (b"gzip, deflate", b"gzip"),
        (b"deflate, gzip", b"gzip"),
        (b"GZIP", b"gzip"),
        (b"x-gzip", b"gzip"),
        (b"gzip;q=0.5, deflate", b"deflate"),
        (b"gzip ; q=0.5,deflate;q=0.4", b"gzip"),
        (b"*", b"gzip"),
        (b"*;q=0.1, gzip;q=0", b"deflate"),
        (b"br", None),
        (b"", None),
        (b"identity", None),
        (b"gzip;q=0", None),
        (b"gzip;q=0.5, identity", None),
        (b"gzip;q=0.5, identity;q=0.5", b"gzip"),
        (b"gzip;q=2", None),
        (b"gzip;q=x", None),
        (b"gzip;level=1", None),
        (b"gzip;q=nan", None),
        (b"br, " * 1000 + b"gzip", None),
    ],
)
def test_accepted_coding(accept, coding):
    assert accepted_coding(accept) == coding


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize(
    "plain", [bytes(5_000_000), random.Random(1).randbytes(1_000_000)], ids=["one large ratio", "long input"]
)
def test_long_data_comes_in_steps(coding, plain):
    bits = WINDOW_BITS[coding]
    data = compress([plain], bits)
    assert decompress(data, bits, len(plain)) == plain
    with pytest.raises(TooLargeError):
        decompress(data, bits, len(plain) - 1)
    with pytest.raises(CorruptError, match="incomplete"):
        decompress(data[:-1], bits, len(plain))
    with pytest.raises(CorruptError, match="300000 bytes follow"):
        decompress(data + bytes(300_000), bits, len(plain))


def test_long_data_takes_its_memory_once():
    data = compress([bytes(20_000_000)], WINDOW_BITS[b"deflate"])
    tracemalloc.start()
    try:
        decompress(data, WINDOW_BITS[b"deflate"], 10**9)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 26_000_000

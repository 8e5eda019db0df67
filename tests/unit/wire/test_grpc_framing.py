import gzip
import resource
import zlib

import pytest

from naiad.wire.grpc import (
    GrpcError,
    GrpcStatus,
    MessageAssembler,
    encode_status_text,
    encode_trailers,
    parse_timeout_ns,
)
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.headers import is_grpc_content_type
from naiad.wire.http2.hpack import RequestHeadDecoder

MIB = 2**20


def framed(message, flag=0):
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


def feed(assembler, data):
    return assembler.feed(memoryview(data))


def failure(assembler, data):
    with pytest.raises(GrpcError) as caught:
        feed(assembler, data)
    return caught.value


def test_message_in_one_piece_is_a_view():
    data = framed(b"hello")
    (message,) = feed(MessageAssembler(100), data)
    assert message == b"hello"
    assert message.obj is data


def test_several_messages_in_one_piece():
    assert feed(MessageAssembler(100), framed(b"a") + framed(b"") + framed(b"bc")) == [b"a", b"", b"bc"]


def test_message_in_single_bytes():
    assembler = MessageAssembler(100)
    data = framed(b"abc") + framed(b"") + framed(b"d")
    messages = [message for i in range(len(data)) for message in feed(assembler, data[i : i + 1])]
    assert messages == [b"abc", b"", b"d"]
    assembler.finish()


def test_memory_follows_what_arrives_not_what_is_announced():
    assembler = MessageAssembler(2**31 - 1)
    feed(assembler, b"\0\x7f\xff\xff\xff" + b"x" * 10)
    assert assembler.pending_bytes == 10


def test_large_message_touches_memory_on_arrival():
    resource_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assembler = MessageAssembler(2**31 - 1)
    feed(assembler, b"\0\x7f\xff\xff\xff" + bytes(2 * MIB))
    feed(assembler, bytes(MIB))
    assert assembler.pending_bytes == 3 * MIB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resource_kib < 64 * 1024


@pytest.mark.parametrize("piece_bytes", [MIB // 2 - 1, MIB, MIB + 1, 3 * MIB])
def test_large_message_in_pieces_is_whole(piece_bytes):
    content = bytes(range(256)) * (5 * MIB // 256) + b"end"
    data = framed(content) + framed(b"next")
    assembler = MessageAssembler(2**31 - 1)
    pieces = [data[i : i + piece_bytes] for i in range(0, len(data), piece_bytes)]
    messages = [message for piece in pieces for message in feed(assembler, piece)]
    assert [bytes(message) for message in messages] == [content, b"next"]
    assert assembler.pending_bytes == 0
    assembler.finish()


def test_message_without_free_memory_is_rejected(monkeypatch):
    def refuse(*_):
        raise MemoryError

    monkeypatch.setattr("naiad.wire.grpc.np.empty", refuse)
    error = failure(MessageAssembler(2**31 - 1), b"\0\x7f\xff\xff\xff" + bytes(2 * MIB))
    assert error.status is GrpcStatus.RESOURCE_EXHAUSTED
    assert "no memory for a message of 2147483647 bytes" in error.message


def test_message_above_limit_is_rejected_early():
    error = failure(MessageAssembler(10), b"\0\0\0\0\x0b")
    assert error.status is GrpcStatus.RESOURCE_EXHAUSTED
    assert "11 vs. 10" in error.message


def test_message_of_the_limit_is_taken():
    assert feed(MessageAssembler(10), framed(b"x" * 10)) == [b"x" * 10]


@pytest.mark.parametrize("data", [b"\0", b"\0\0\0\0\x05abc"])
def test_body_that_ends_within_a_message_is_refused(data):
    assembler = MessageAssembler(100)
    feed(assembler, data)
    with pytest.raises(GrpcError) as caught:
        assembler.finish()
    assert caught.value.status is GrpcStatus.INTERNAL


def test_unknown_flag_is_refused():
    assert "compressed flag 2" in failure(MessageAssembler(100), framed(b"", flag=2)).message


def test_compressed_message_needs_an_encoding():
    assert failure(MessageAssembler(100, b"identity"), framed(b"x", flag=1)).status is GrpcStatus.INTERNAL


@pytest.mark.parametrize(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_compressed_messages_are_decompressed(encoding, compress):
    plain = b"tensor" * 1000
    assembler = MessageAssembler(len(plain), encoding)
    assert feed(assembler, framed(compress(plain), flag=1) + framed(b"plain")) == [plain, b"plain"]


def test_compressed_message_is_limited_after_decompression():
    error = failure(MessageAssembler(9999, b"gzip"), framed(gzip.compress(bytes(10000)), flag=1))
    assert error.status is GrpcStatus.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("spoil", [lambda data: data[:-9], lambda data: b"junk" + data])
def test_corrupt_compressed_message_is_refused(spoil):
    data = spoil(gzip.compress(b"tensor" * 1000))
    assert failure(MessageAssembler(10**6, b"gzip"), framed(data, flag=1)).status is GrpcStatus.INTERNAL


def test_unknown_encoding_is_unimplemented_and_lists_the_known():
    with pytest.raises(GrpcError, match="identity, deflate, gzip") as caught:
        MessageAssembler(100, b"snappy")
    assert caught.value.status is GrpcStatus.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [(b"1H", 3600 * 10**9), (b"2M", 120 * 10**9), (b"3S", 3 * 10**9), (b"4m", 4 * 10**6), (b"5u", 5000), (b"6n", 6)],
)
def test_timeout_units(text, expected_ns):
    assert parse_timeout_ns(text) == expected_ns


def test_timeout_of_nothing_is_not_no_timeout():
    assert parse_timeout_ns(b"0S") == 1


@pytest.mark.parametrize("text", [b"", b"1", b"S", b"-1S", b"1s", b"123456789S", b"1 S", b"1S\n"])
def test_malformed_timeout_is_refused(text):
    with pytest.raises(GrpcError):
        parse_timeout_ns(text)


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("plain text", b"plain text"),
        ("100%", b"100%25"),
        ("a\nb", b"a%0Ab"),
        ("ü", b"%C3%BC"),
        (" x ", b"%20x%20"),
        ("  ", b"%20%20"),
    ],
)
def test_status_text_is_percent_encoded(text, encoded):
    assert encode_status_text(text) == encoded


def test_long_status_text_is_cut_at_a_character():
    encoded = encode_status_text("ü" * 5000)
    assert encoded.endswith(b"%C3%BC...")
    assert len(encoded) <= 3 * 4096


def test_trailers_carry_status_message_and_fields():
    block = encode_trailers(3, "bad", ((b"x-detail", b"1"),))
    assert RequestHeadDecoder(Http2Limits()).decode_fields(block) == (
        (b"grpc-status", b"3"),
        (b"grpc-message", b"bad"),
        (b"x-detail", b"1"),
    )


def test_trailers_only_answer_carries_the_headers_too():
    fields = dict(RequestHeadDecoder(Http2Limits()).decode_fields(encode_trailers(0, is_only=True)))
    assert fields[b":status"] == b"200"
    assert fields[b"content-type"] == b"application/grpc"
    assert fields[b"grpc-status"] == b"0"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"application/grpc;charset=utf-8", True),
        (b"application/grpc-web", False),
        (b"application/json", False),
        (None, False),
    ],
)
def test_grpc_content_types(value, expected):
    assert is_grpc_content_type(value) is expected

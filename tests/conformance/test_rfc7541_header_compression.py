"""RFC 7541 (HPACK): every representation, the tables, Huffman codes, decoding errors."""

import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from naiad.wire.http2.frames import Http2Code
from support.http2_conversation import ECHO, HOLD, STREAM
from support.raw_http2 import DATA, END_HEADERS, END_STREAM, HEADERS, frame, grpc_message

NAME = b"x-field"
VALUE = b"value"
HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
PATH, CONTENT_TYPE, USER_AGENT = 4, 31, 58  # their numbers in the static table
LITERALS = {"incremental": (0x40, 6), "without": (0x00, 4), "never": (0x10, 4)}


def integer(number, prefix_bits, pattern=0):
    limit = (1 << prefix_bits) - 1
    if number < limit:
        return bytes((pattern | number,))
    encoded = bytes((pattern | limit,))
    number -= limit
    while number >= 128:
        encoded += bytes((number & 127 | 128,))
        number >>= 7
    return encoded + bytes((number,))


def text(value, *, huffman=False):
    return integer(len(value), 7, 0x80 if huffman else 0) + value


def coded(value):
    return text(HUFFMAN.encode(value), huffman=True)


def head_with_path(path):
    """Return the block of a gRPC request without references to the dynamic table but `path`, a representation."""
    return b"\x83\x86" + path + integer(CONTENT_TYPE, 4) + text(b"application/grpc")


def last_headers(stream_id, block):
    return frame(HEADERS, END_HEADERS | END_STREAM, stream_id, block)


def is_answered(client, block, stream_id=1):
    frames = client.accepts(last_headers(stream_id, block))
    return frames[-1].kind == HEADERS and bool(frames[-1].flags & END_STREAM)


def decoding_error(client, block):
    return client.connection_error(last_headers(1, client.block() + block)) == Http2Code.COMPRESSION_ERROR


# 2.3.3 Index address space


@pytest.mark.parametrize("index", [70 + 62, 1000, 2**27])
def test_rfc7541_2_3_3_index_beyond_both_tables_is_connection_error(client, index):
    assert decoding_error(client, integer(index, 7, 0x80))


@pytest.mark.parametrize(("pattern", "bits"), LITERALS.values(), ids=LITERALS)
def test_rfc7541_2_3_3_name_index_beyond_both_tables_is_connection_error(client, pattern, bits):
    assert decoding_error(client, integer(70 + 62, bits, pattern) + text(b"value"))


def test_rfc7541_2_3_3_newest_entry_has_the_lowest_index(client):
    client.accepts(last_headers(1, head_with_path(integer(PATH, 6, 0x40) + text(HOLD.encode()))))
    client.accepts(last_headers(3, head_with_path(integer(PATH, 6, 0x40) + text(STREAM.encode()))))
    assert is_answered(client, head_with_path(b"\xbe"), 5)
    held = frame(HEADERS, END_HEADERS, 7, head_with_path(b"\xbf"))
    assert client.accepts(held + frame(DATA, END_STREAM, 7, grpc_message(b"x"))) == []


# 4.2 and 4.3 Table size


def test_rfc7541_4_2_size_update_at_block_end_is_connection_error(client):
    assert decoding_error(client, b"\x21")


def test_rfc7541_4_2_size_update_is_accepted(client):
    assert is_answered(client, b"\x20" + client.block(STREAM))


def test_rfc7541_4_2_two_size_updates_are_accepted(client):
    assert is_answered(client, integer(128, 5, 0x20) + integer(4096, 5, 0x20) + client.block(STREAM))


def test_rfc7541_4_2_three_size_updates_are_connection_error(client):
    block = integer(128, 5, 0x20) + integer(256, 5, 0x20) + integer(4096, 5, 0x20) + client.block(STREAM)
    assert client.connection_error(last_headers(1, block)) == Http2Code.COMPRESSION_ERROR


def test_rfc7541_4_2_encoder_acknowledges_a_smaller_table(client):
    """The peer's smaller SETTINGS_HEADER_TABLE_SIZE is acknowledged by a size update in the next block."""
    client.accepts(frame(4, 0, 0, b"\0\x01\0\0\0\x64"))
    frames = client.accepts(client.headers(1, STREAM, end=True) + client.headers(3, STREAM, end=True))
    assert [each.payload[0] & 0xE0 == 0x20 for each in frames] == [True, False]


def test_rfc7541_4_3_smaller_table_forgets_its_entries(client):
    assert is_answered(client, client.block(STREAM))
    block = b"\x20" + b"\xbe"  # size 0, then the newest entry
    assert client.connection_error(last_headers(3, block)) == Http2Code.COMPRESSION_ERROR


def test_rfc7541_4_4_entry_larger_than_the_table_empties_it(client):
    large = b"\x40" + text(b"x-large") + text(b"v" * 5000)
    assert is_answered(client, client.block(STREAM) + large)
    assert client.connection_error(last_headers(3, b"\xbe")) == Http2Code.COMPRESSION_ERROR


# 5.1 Integers


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_rfc7541_5_1_integer_with_needless_octets_is_accepted(client, padding):
    length = b"\x7f" + b"\x80" * padding + b"\x00"  # 127
    assert is_answered(client, client.block(STREAM) + b"\x00" + text(NAME) + length + b"v" * 127)


def test_rfc7541_5_1_integer_without_an_end_is_connection_error(client):
    assert decoding_error(client, b"\xff" * 20)


def test_rfc7541_5_1_integer_cut_short_is_connection_error(client):
    assert decoding_error(client, b"\xff\x80")


# 5.2 Strings


@pytest.mark.parametrize("value", [b"\xff\xff\xff\xff", HUFFMAN.encode(VALUE) + b"\xff"], ids=["eos", "8_bits"])
def test_rfc7541_5_2_padding_above_7_bits_is_connection_error(client, value):
    assert decoding_error(client, b"\x00" + text(NAME) + text(value, huffman=True))


def test_rfc7541_5_2_padding_with_zeros_is_connection_error(client):
    assert is_answered(client, client.block(STREAM) + b"\x00" + text(NAME) + text(b"\x1f", huffman=True))  # "a"
    assert client.connection_error(last_headers(3, b"\x00" + text(NAME) + text(b"\x18", huffman=True))) == (
        Http2Code.COMPRESSION_ERROR
    )


def test_rfc7541_5_2_code_for_end_of_string_is_connection_error(client):
    value = b"\x1c\x64\xff\xff\xff\xff"  # "test", EOS
    assert decoding_error(client, b"\x00" + text(NAME) + text(value, huffman=True))


def test_rfc7541_5_2_string_longer_than_the_block_is_connection_error(client):
    assert decoding_error(client, b"\x00" + text(NAME) + integer(100, 7) + b"short")


# 6.1 Indexed fields


def test_rfc7541_6_1_indexed_field_is_accepted(client):
    assert is_answered(client, client.block(STREAM) + integer(USER_AGENT, 7, 0x80))


def test_rfc7541_6_1_index_0_is_connection_error(client):
    assert decoding_error(client, b"\x80")


# 6.2 Literal fields


@pytest.mark.parametrize(("pattern", "bits"), LITERALS.values(), ids=LITERALS)
@pytest.mark.parametrize("value", [text(VALUE), coded(VALUE)], ids=["plain", "huffman"])
def test_rfc7541_6_2_literal_with_an_indexed_name_is_accepted(client, pattern, bits, value):
    assert is_answered(client, client.block(STREAM) + integer(USER_AGENT, bits, pattern) + value)


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in LITERALS.values()], ids=LITERALS)
@pytest.mark.parametrize(
    "field",
    [text(NAME) + text(VALUE), coded(NAME) + coded(VALUE)],
    ids=["plain", "huffman"],
)
def test_rfc7541_6_2_literal_with_a_new_name_is_accepted(client, pattern, field):
    assert is_answered(client, client.block(STREAM) + bytes((pattern,)) + field)


def test_rfc7541_6_2_1_only_incremental_indexing_enters_the_table(client):
    literals = b"\x00" + text(b"x-without") + text(b"1") + b"\x10" + text(b"x-never") + text(b"2")
    assert is_answered(client, head_with_path(integer(PATH, 4) + text(STREAM.encode())) + literals)
    assert client.connection_error(last_headers(3, b"\xbe")) == Http2Code.COMPRESSION_ERROR


# 6.3 Size update


@pytest.mark.parametrize("size", [4097, 2**31])
def test_rfc7541_6_3_size_update_above_advertised_size_is_connection_error(client, size):
    data = last_headers(1, integer(size, 5, 0x20) + client.block())
    assert client.connection_error(data) == Http2Code.COMPRESSION_ERROR


# What a cache of header blocks must not change


def test_rfc7541_2_2_changed_table_gives_octets_another_meaning(client):
    """A path that refers to the newest entry is another one each time an entry is added."""
    body = grpc_message(b"x")
    by_reference = head_with_path(b"\xbe")
    client.accepts(frame(HEADERS, END_HEADERS, 1, head_with_path(integer(PATH, 6, 0x40) + text(HOLD.encode()))))
    for stream_id in (3, 5, 7):  # from the second on from the cache
        data = frame(HEADERS, END_HEADERS, stream_id, by_reference) + frame(DATA, END_STREAM, stream_id, body)
        assert client.accepts(data) == []
    client.accepts(frame(HEADERS, END_HEADERS, 9, head_with_path(integer(PATH, 6, 0x40) + text(ECHO.encode()))))
    for stream_id in (11, 13, 15):
        data = frame(HEADERS, END_HEADERS, stream_id, by_reference) + frame(DATA, END_STREAM, stream_id, body)
        assert client.body(client.accepts(data), stream_id) == body

import hpack
import pytest

from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.headers import encode_fields, parse_request_head, trailers_error
from naiad.wire.http2.hpack import HeaderListTooLargeError, HpackError, RequestHeadDecoder, ResponseHeadDecoder

FIELDS = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/service/Method"),
    (b"content-type", b"application/grpc"),
]


def field(name, value=b"x", representation=0x40):
    return bytes((representation, len(name))) + name + length_of(value) + value


def length_of(value):
    """Return the prefix of a string literal (RFC 7541 5.1)."""
    left = len(value) - 0x7F
    if left < 0:
        return bytes((len(value),))
    return bytes((0x7F, left & 0x7F | 0x80, left >> 7)) if left >= 0x80 else bytes((0x7F, left))


def request_block(*more):
    return b"\x83\x86\x84" + b"".join(more)  # POST, http, /


def test_repeated_block_is_served_from_the_cache():
    encoder, decoder = hpack.Encoder(), RequestHeadDecoder(Http2Limits())
    first = decoder.decode(encoder.encode(FIELDS))
    second = decoder.decode(encoder.encode(FIELDS))
    third = decoder.decode(encoder.encode(FIELDS))
    assert first.path == second.path == "/service/Method"
    assert third is second
    assert second.fields == ((b"content-type", b"application/grpc"),)


def test_block_that_inserts_is_decoded_every_time():
    decoder = RequestHeadDecoder(Http2Limits())
    inserting = request_block(field(b"a", b"1"))
    first, second = decoder.decode(inserting), decoder.decode(inserting)
    assert first is not second
    assert decoder.cached == {}
    # Two insertions: entry 63 exists only if the second decode has inserted again.
    assert decoder.decode(request_block(b"\xbf")).fields == ((b"a", b"1"),)


def test_cached_block_means_something_else_after_an_insertion():
    decoder = RequestHeadDecoder(Http2Limits())
    decoder.decode(request_block(field(b"a", b"1")))
    newest = request_block(b"\xbe")  # index 62
    assert decoder.decode(newest).fields == ((b"a", b"1"),)
    decoder.decode(request_block(field(b"b", b"2")))
    assert decoder.decode(newest).fields == ((b"b", b"2"),)


def test_cached_block_is_forgotten_when_trailers_insert():
    decoder = RequestHeadDecoder(Http2Limits())
    decoder.decode(request_block(field(b"a", b"1")))
    newest = request_block(b"\xbe")
    decoder.decode(newest)
    decoder.decode_fields(field(b"b", b"2"))
    assert decoder.decode(newest).fields == ((b"b", b"2"),)


def test_cached_block_is_forgotten_when_the_table_shrinks():
    decoder = RequestHeadDecoder(Http2Limits())
    decoder.decode(request_block(field(b"a", b"1")))
    newest = request_block(b"\xbe")
    decoder.decode(newest)
    decoder.decode(b"\x20" + request_block())
    with pytest.raises(HpackError):
        decoder.decode(newest)


def test_block_with_a_size_update_is_not_cached():
    decoder = RequestHeadDecoder(Http2Limits())
    decoder.decode(b"\x20" + request_block())
    assert not decoder.cached
    assert not decoder.cached_static


def test_block_without_dynamic_entries_survives_insertions():
    decoder = RequestHeadDecoder(Http2Limits())
    static = request_block(field(b"c", b"3", representation=0))
    head = decoder.decode(static)
    decoder.decode(request_block(field(b"a", b"1")))
    assert decoder.decode(static) is head


def test_cache_is_bounded():
    decoder = RequestHeadDecoder(Http2Limits())
    for number in range(1000):
        decoder.decode(request_block(field(b"n", str(number).encode(), representation=0)))
    assert len(decoder.cached_static) <= 64
    decoder.decode(request_block(encode_fields([(b"z", b"v" * 4000)])))
    assert max(map(len, decoder.cached_static)) < 4000


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # no such dynamic entry
        b"\x40\x05ab",  # string past the end
        b"\x40",  # nothing after the pattern
        b"\x83\x20",  # size update after a field
        b"\x3f\xff\xff\xff\xff\xff\xff\x01",  # integer too long
        b"\x3f\xe2\x1f",  # size update to 4097
        b"\x00\x81\xff\x00",  # huffman padding of a whole byte
    ],
)
def test_bad_block_is_a_compression_error(block):
    with pytest.raises(HpackError):
        RequestHeadDecoder(Http2Limits()).decode(block)


def test_block_that_unfolds_to_too_much_is_stopped():
    decoder = RequestHeadDecoder(Http2Limits(header_list_bytes=1000))
    decoder.decode_fields(field(b"a", b"x" * 100))
    with pytest.raises(HeaderListTooLargeError):
        decoder.decode(request_block(b"\xbe" * 30))


def test_head_over_the_limit_is_marked():
    decoder = RequestHeadDecoder(Http2Limits(header_list_bytes=300))
    head = decoder.decode(request_block(*[field(b"n", b"v" * 100, representation=0)] * 2))
    assert head.is_too_large
    assert not head.is_plain


def test_head_with_too_many_fields_is_marked():
    decoder = RequestHeadDecoder(Http2Limits(header_fields=10))
    plain = len(decoder.decode_fields(request_block()))
    assert not decoder.decode(request_block(*[b"\x90"] * (10 - plain))).is_too_large
    head = decoder.decode(request_block(*[b"\x90"] * (11 - plain)))
    assert head.is_too_large
    assert not head.fields


def test_fields_far_over_the_limit_stop_decoding():
    decoder = RequestHeadDecoder(Http2Limits(header_fields=10))
    assert decoder.decode(b"\x90" * 160).is_too_large
    with pytest.raises(HeaderListTooLargeError, match="160 header fields"):
        decoder.decode(b"\x90" * 161)


def test_large_values_are_passed_without_their_content():
    decoder = RequestHeadDecoder(Http2Limits(header_list_bytes=1000))
    large = field(b"large", b"x" * 5000, representation=0)
    kind = field(b"content-type", b"application/grpc", representation=0)
    for blocks in ((large, kind), (kind, large), (large, large, kind), (kind, *[field(b"a", b"b" * 90)] * 20)):
        head = decoder.decode(request_block(*blocks))
        assert head.is_too_large
        assert head.field(b"content-type") == b"application/grpc"
        assert sum(len(value) for _, value in head.fields) < 100
    # What such a block adds to the table stays in step.
    assert decoder.decode(request_block(large, field(b"kept", b"1"))).is_too_large
    assert decoder.decode_fields(b"\xbe") == ((b"kept", b"1"),)
    with pytest.raises(HpackError):
        decoder.decode(b"\x00\x05large\x7f\xff\x7f" + bytes(2000))


def test_client_keeps_twice_its_limit():
    decoder = ResponseHeadDecoder(1000)
    assert len(decoder.decode_fields(field(b"a", b"x" * 1500))) == 1
    with pytest.raises(HeaderListTooLargeError):
        decoder.decode_fields(field(b"a", b"x" * 2000))


def test_table_stays_in_step_after_too_many_fields():
    decoder = RequestHeadDecoder(Http2Limits(header_fields=10))
    assert decoder.decode(b"\x90" * 15 + field(b"a", b"1")).is_too_large
    assert decoder.decode_fields(b"\xbe") == ((b"a", b"1"),)


def test_three_table_size_updates_are_an_error():
    decoder = RequestHeadDecoder(Http2Limits())
    decoder.decode_fields(b"\x20\x3f\xe1\x1f\x82")
    with pytest.raises(HpackError, match="more than 2 table size updates"):
        decoder.decode_fields(b"\x20\x20\x20\x82")


@pytest.mark.parametrize("value", [b" x", b"x ", b"\tx\t", b"  x"])
def test_grpc_metadata_loses_its_outer_spaces(value):
    head = head_of(*FIELDS[:4], (b"content-type", b"application/grpc"), (b"a", value))
    assert not head.error
    assert head.field(b"a") == b"x"


def test_pseudo_field_keeps_no_outer_spaces_in_grpc():
    head = head_of(*FIELDS[:2], (b":path", b"/s/m "), FIELDS[3], (b"content-type", b"application/grpc"))
    assert "invalid value" in head.error


def head_of(*fields):
    return parse_request_head(tuple(fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([*FIELDS, (b"Upper", b"x")], "invalid field name"),
        ([*FIELDS, (b"", b"x")], "invalid field name"),
        ([*FIELDS, (b"a b", b"x")], "invalid field name"),
        ([*FIELDS, (b"a:b", b"x")], "invalid field name"),
        ([*FIELDS, (b"a", b"x\ny")], "invalid value"),
        ([*FIELDS[:3], (b"a", b" x")], "invalid value"),
        ([*FIELDS, (b"connection", b"close")], "connection-specific"),
        ([*FIELDS, (b"transfer-encoding", b"chunked")], "connection-specific"),
        ([*FIELDS, (b"te", b"gzip")], "connection-specific"),
        ([*FIELDS, (b":path", b"/")], "repeated"),
        ([*FIELDS, (b":authority", b"x")], "after a regular"),
        ([(b":status", b"200"), *FIELDS], "unknown pseudo"),
        (FIELDS[1:], "no :method"),
        ([FIELDS[0], *FIELDS[2:]], "no :scheme"),
        ([*FIELDS[:2], *FIELDS[3:]], "no valid :path"),
        ([*FIELDS[:2], (b":path", b"x")], "no valid :path"),
        ([*FIELDS, (b"content-length", b"-1")], "content-length"),
        ([*FIELDS, (b"content-length", b"1"), (b"content-length", b"2")], "content-length"),
        ([(b":method", b"CONNECT"), (b":path", b"/")], "CONNECT"),
    ],
)
def test_malformed_head_has_an_error(fields, words):
    head = head_of(*fields)
    assert words in head.error
    assert not head.is_plain


def test_head_with_content_length_is_legal():
    head = head_of(*FIELDS, (b"content-length", b"12"), (b"te", b"trailers"))
    assert not head.error
    assert head.content_length == 12
    assert head.is_plain


def test_trailers_carry_no_pseudo_fields():
    assert "pseudo" in trailers_error(((b":path", b"/"),))
    assert not trailers_error(((b"grpc-status", b"0"),))


def test_encoded_fields_are_read_by_the_hpack_package():
    fields = [
        (b":status", b"200"),
        (b":status", b"415"),
        (b"content-type", b"application/grpc"),
        (b"x-y", b"z" * 300),
    ]
    assert list(hpack.Decoder().decode(encode_fields(fields), raw=True)) == fields


def test_encoding_does_not_depend_on_the_dynamic_table():
    block = encode_fields([(b"x-y", b"z")])
    decoder = hpack.Decoder()
    decoder.decode(block)
    assert not decoder.header_table.dynamic_entries


def test_responses_that_refer_to_the_table_are_kept():
    decoder = ResponseHeadDecoder(65536, 128)
    inserting = b"\x88" + field(b"a", b"1")  # :status 200
    first, second = decoder.decode(inserting), decoder.decode(inserting)
    assert first is not second
    newest = b"\x88\xbe"
    found = decoder.decode(newest)
    assert found.head.fields == ((b"a", b"1"),)
    assert decoder.decode(newest) is found
    decoder.decode(b"\x88" + field(b"b", b"2"))
    assert decoder.decode(newest).head.fields == ((b"b", b"2"),)
    decoder.decode(b"\x20\x88")  # RFC 7541 6.3: a table of 0 bytes
    with pytest.raises(HpackError):
        decoder.decode(newest)

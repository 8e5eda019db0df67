import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.wire.grpc import (
    GrpcStatus,
    MessageAssembler,
    call_status,
    decode_status_text,
    encode_status_text,
    encode_timeout,
    encode_trailers,
    frame_message,
    parse_timeout_ns,
    request_fields,
)
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.headers import encode_fields, parse_request_head
from naiad.wire.http2.hpack import RequestHeadDecoder


@given(st.integers(1, 10**18))
def test_timeouts_are_never_shortened(timeout_ns):
    parsed_ns = parse_timeout_ns(encode_timeout(timeout_ns))
    assert timeout_ns <= parsed_ns
    assert parsed_ns - timeout_ns <= timeout_ns // 10**4


def test_timeouts_beyond_the_format_are_the_longest():
    assert encode_timeout(1 << 80) == b"99999999H"


@given(st.text(max_size=50))
def test_status_texts_survive(text):
    assert decode_status_text(encode_status_text(text)) == text.encode("utf-8", "replace").decode()


def test_malformed_escapes_stay():
    assert decode_status_text(b"100%, %zz, %41") == "100%, %zz, A"


@given(st.lists(st.binary(max_size=20), max_size=4))
def test_framed_messages_are_assembled(parts):
    body = b"".join(frame_message(parts))
    assert [bytes(each) for each in MessageAssembler(1000).feed(memoryview(body))] == [b"".join(parts)]


def test_request_fields_are_a_legal_head():
    fields = request_fields("/s/M", "h:1", "https", [(b"grpc-timeout", b"5m"), (b"x-a", b"b")])
    decoded = RequestHeadDecoder(Http2Limits()).decode_fields(encode_fields(fields))
    head = parse_request_head(decoded)
    assert head.is_plain
    assert (head.method, head.scheme, head.authority, head.path) == ("POST", "https", "h:1", "/s/M")
    assert parse_timeout_ns(head.field(b"grpc-timeout")) == 5_000_000
    assert (head.field(b"x-a"), head.field(b"te")) == (b"b", b"trailers")


@pytest.mark.parametrize(
    ("http_status", "head", "trailers", "expected"),
    [
        (200, (), ((b"grpc-status", b"0"),), (0, "")),
        (200, (), ((b"grpc-status", b"3"), (b"grpc-message", b"a%0Ab")), (3, "a\nb")),
        (200, ((b"grpc-status", b"5"), (b"grpc-message", b"no")), (), (5, "no")),
        (503, (), (), (GrpcStatus.UNAVAILABLE, "the server answered with HTTP status 503")),
        (404, (), ((b"grpc-status", b"x"),), (GrpcStatus.UNIMPLEMENTED, "the server answered with HTTP status 404")),
        (200, (), (), (GrpcStatus.UNKNOWN, "the server ended the call without a grpc-status")),
    ],
)
def test_status_of_a_call(http_status, head, trailers, expected):
    assert call_status(http_status, head, trailers) == expected


def test_status_of_a_server_trailer_block():
    fields = RequestHeadDecoder(Http2Limits()).decode_fields(encode_trailers(13, "broken: ä"))
    assert call_status(200, (), fields) == (13, "broken: ä")

"""RFC 9113 section 8: requests and answers, malformed and well formed."""

import pytest

from naiad.wire.http2.frames import Http2Code
from support.http2_conversation import ECHO, STREAM
from support.raw_http2 import DATA, END_STREAM, HEADERS, frame, grpc_head, grpc_message

PLAIN = [(":method", "GET"), (":scheme", "http"), (":authority", "test"), (":path", "/")]
MESSAGE = grpc_message(b"message")


def plain(method):
    return [(":method", method), *PLAIN[1:]]


def without(name):
    return [field for field in grpc_head(STREAM) if field[0] != name]


# 8.1 Messages


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_rfc9113_8_1_request_without_a_body_is_answered(client, method):
    frames = client.accepts(client.headers(1, fields=plain(method), end=True))
    assert client.fields(frames)[":status"].isdigit()
    assert frames[-1].flags & END_STREAM
    assert method != "HEAD" or not client.body(frames)


def test_rfc9113_8_1_request_with_a_body_is_answered(client):
    assert client.body(client.accepts(client.request(1, b"message"))) == MESSAGE


def test_rfc9113_8_1_request_with_trailers_is_answered(client):
    trailers = client.headers(1, fields=[("x-checksum", "7")], end=True)
    assert client.body(client.accepts(client.headers(1, ECHO) + frame(DATA, 0, 1, MESSAGE) + trailers)) == MESSAGE


def test_rfc9113_8_1_answer_is_headers_data_trailers(client):
    frames = client.accepts(client.request(1, b"message"))
    assert [(each.kind, each.flags & END_STREAM) for each in frames] == [
        (HEADERS, 0),
        (DATA, 0),
        (HEADERS, END_STREAM),
    ]


def test_rfc9113_8_1_second_headers_without_end_stream_is_stream_error(client):
    data = client.headers(1, STREAM) + frame(DATA, 0, 1, MESSAGE)
    client.accepts(data)
    assert client.stream_error(client.headers(1, fields=[("x-test", "ok")])) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_8_1_unwanted_body_is_stopped_without_error(client):
    client.send(client.headers(1, fields=plain("POST")))
    client.send(frame(DATA, 0, 1, bytes(100)) + frame(DATA, END_STREAM, 1, bytes(100)))
    frames = client.frames()
    assert client.fields(frames)[":status"].isdigit()
    assert {each.code for each in frames if each.kind == 3} <= {Http2Code.NO_ERROR}


# 8.1.1 Malformed messages


@pytest.mark.parametrize(
    "data",
    [
        frame(DATA, END_STREAM, 1, b"test"),
        frame(DATA, 0, 1, b"te") + frame(DATA, END_STREAM, 1, b"st"),
        frame(DATA, END_STREAM, 1, b""),
        frame(DATA, 0, 1, b"test"),
    ],
    ids=["one_frame", "several_frames", "empty", "at_once"],
)
def test_rfc9113_8_1_1_body_of_wrong_length_is_stream_error(client, data):
    head = client.headers(1, STREAM, ("content-length", "1"))
    assert client.stream_error(head + data) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_8_1_1_wrong_length_in_repeated_request_is_stream_error(client):
    length = ("content-length", str(len(MESSAGE)))
    for stream_id in (1, 3):
        client.accepts(client.headers(stream_id, ECHO, length) + frame(DATA, END_STREAM, stream_id, MESSAGE))
    data = client.headers(5, ECHO, length) + frame(DATA, END_STREAM, 5, MESSAGE + b"x")
    assert client.stream_error(data, 5) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("path", [ECHO, STREAM])
def test_rfc9113_8_1_1_missing_announced_body_is_stream_error(client, path):
    head = client.headers(1, path, ("content-length", "1"), end=True)
    assert client.stream_error(head) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_8_1_1_padding_is_no_part_of_the_content_length(client):
    head = client.headers(1, ECHO, ("content-length", str(len(MESSAGE))))
    padded = frame(DATA, END_STREAM | 0x8, 1, b"\x04" + MESSAGE + bytes(4))
    assert client.body(client.accepts(head + padded)) == MESSAGE


@pytest.mark.parametrize("value", ["", "-1", "+7", "0x7", "7, 8", "9" * 30])
def test_rfc9113_8_1_1_content_length_without_number_is_stream_error(client, value):
    assert client.stream_error(client.headers(1, STREAM, ("content-length", value))) == Http2Code.PROTOCOL_ERROR


# 8.2 Fields


def test_rfc9113_8_2_1_upper_case_name_is_stream_error(client):
    assert client.stream_error(client.headers(1, STREAM, ("X-TEST", "ok"), end=True)) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("name", ["", "with space", "with\x00nul", "caf\xe9", "tab\t", "colon:inside", "del\x7f"])
def test_rfc9113_8_2_1_name_with_forbidden_characters_is_stream_error(client, name):
    assert client.stream_error(client.headers(1, STREAM, (name, "ok"), end=True)) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("value", ["a\x00b", "a\rb", "a\nb"])
def test_rfc9113_8_2_1_value_with_forbidden_characters_is_stream_error(client, value):
    assert client.stream_error(client.headers(1, STREAM, ("x-test", value), end=True)) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("value", [" leading", "trailing ", "\ttab", "tab\t"])
def test_rfc9113_8_2_1_outer_space_is_stream_error(client, value):
    fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/v2"), ("x-test", value)]
    assert client.stream_error(client.headers(1, fields=fields, end=True)) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("value", [" leading", "trailing ", "\ttab", "tab\t"])
def test_rfc9113_8_2_1_outer_space_is_taken_in_grpc(client, value):
    client.accepts(client.headers(1, STREAM, ("x-test", value), end=True))


@pytest.mark.parametrize(
    "field",
    [
        ("connection", "keep-alive"),
        ("keep-alive", "5"),
        ("proxy-connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
    ],
)
def test_rfc9113_8_2_2_field_of_a_connection_is_stream_error(client, field):
    assert client.stream_error(client.headers(1, STREAM, field, end=True)) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_8_2_2_te_other_than_trailers_is_stream_error(client):
    fields = [*without("te"), ("te", "trailers, deflate")]
    assert client.stream_error(client.headers(1, fields=fields, end=True)) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_8_2_2_te_trailers_is_accepted(client):
    client.accepts(client.headers(1, fields=[*without("te"), ("te", "trailers")], end=True))


# 8.3 Pseudo-fields


@pytest.mark.parametrize("field", [(":test", "ok"), (":status", "200"), (":protocol", "websocket")])
def test_rfc9113_8_3_unknown_pseudo_field_is_stream_error(client, field):
    fields = [field, *grpc_head(STREAM)]
    assert client.stream_error(client.headers(1, fields=fields, end=True)) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_8_3_pseudo_field_in_trailers_is_stream_error(client):
    client.accepts(client.headers(1, STREAM) + frame(DATA, 0, 1, MESSAGE))
    assert client.stream_error(client.headers(1, fields=[(":method", "200")], end=True)) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_8_3_pseudo_field_after_regular_one_is_stream_error(client):
    fields = [*without(":path"), (":path", STREAM)]
    assert client.stream_error(client.headers(1, fields=fields, end=True)) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("name", [":method", ":scheme", ":path"])
def test_rfc9113_8_3_1_missing_pseudo_field_is_stream_error(client, name):
    assert client.stream_error(client.headers(1, fields=without(name), end=True)) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("name", [":method", ":scheme", ":path", ":authority"])
def test_rfc9113_8_3_1_repeated_pseudo_field_is_stream_error(client, name):
    fields = grpc_head(STREAM)
    repeated = next(field for field in fields if field[0] == name)
    assert client.stream_error(client.headers(1, fields=[repeated, *fields], end=True)) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("path", ["", "relative", "*"])
def test_rfc9113_8_3_1_path_that_is_none_is_stream_error(client, path):
    fields = [(":path", path), *without(":path")]
    assert client.stream_error(client.headers(1, fields=fields, end=True)) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_8_3_1_asterisk_path_is_for_options(client):
    fields = [(":method", "OPTIONS"), (":scheme", "http"), (":path", "*")]
    assert client.fields(client.accepts(client.headers(1, fields=fields, end=True)))[":status"].isdigit()


def test_rfc9113_8_3_1_authority_may_be_left_out(client):
    assert (
        client.fields(client.accepts(client.headers(1, fields=without(":authority"), end=True)))[":status"] == "200"
    )


@pytest.mark.parametrize(
    "fields",
    [
        [(":method", "CONNECT"), (":authority", "test:80"), (":scheme", "http")],
        [(":method", "CONNECT"), (":authority", "test:80"), (":path", "/")],
        [(":method", "CONNECT")],
    ],
)
def test_rfc9113_8_5_malformed_connect_is_stream_error(client, fields):
    assert client.stream_error(client.headers(1, fields=fields, end=True)) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_8_5_connect_is_answered_although_nothing_is_tunnelled(client):
    fields = [(":method", "CONNECT"), (":authority", "test:80")]
    assert int(client.fields(client.accepts(client.headers(1, fields=fields, end=True)))[":status"]) >= 400


# 8.8 Requests and cached header blocks


def test_rfc9113_8_malformed_head_is_error_also_when_it_repeats(client):
    fields = [(":test", "ok"), *grpc_head(STREAM)]
    for stream_id in (1, 3, 5):
        data = client.headers(stream_id, fields=fields, end=True)
        assert client.stream_error(data, stream_id) == Http2Code.PROTOCOL_ERROR

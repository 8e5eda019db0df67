"""RFC 9113 sections 3, 4, 5.4, 5.5 and 7: opening, frame format and size, header blocks, errors, extensions."""

import pytest

from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import Http2Code
from support.http2_conversation import ECHO, HOLD, STREAM, Frame
from support.raw_http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    frame,
    grpc_message,
)

EMPTY_SETTINGS = frame(SETTINGS, 0, 0)
UNKNOWN = 0x16
SIZE_LIMITS = Http2Limits(frame_bytes=2**14)

# 3.4 Connection preface


def test_rfc9113_3_4_preface_is_accepted(converse):
    client = converse(opened=False)
    client.accepts(PREFACE + EMPTY_SETTINGS)


def test_rfc9113_3_4_first_frame_of_the_server_is_settings(converse):
    client = converse(opened=False)
    client.send(PREFACE + EMPTY_SETTINGS)
    first = client.frames()[0]
    assert (first.kind, first.flags, first.stream_id) == (SETTINGS, 0, 0)


@pytest.mark.parametrize("opening", [b"INVALID CONNECTION PREFACE\r\n\r\n", PREFACE[:-1] + b"X", b"\x00" * 24])
def test_rfc9113_3_4_invalid_preface_closes_the_connection(converse, opening):
    client = converse(opened=False)
    client.send(opening)
    assert client.transport.is_closed


def test_rfc9113_3_4_first_frame_must_be_settings(converse):
    client = converse(opened=False)
    assert client.connection_error(PREFACE + frame(PING, 0, 0, bytes(8))) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_3_4_requests_need_not_wait_for_the_servers_settings(converse):
    client = converse(opened=False)
    frames = client.accepts(PREFACE + EMPTY_SETTINGS + client.request(1, b"early"))
    assert client.body(frames) == grpc_message(b"early")


# 4.1 Frame format


def test_rfc9113_4_1_frame_of_unknown_type_is_discarded(client):
    assert client.accepts(frame(UNKNOWN, 0, 0, bytes(8))) == []
    assert client.accepts(frame(UNKNOWN, 0xFF, 5, bytes(8))) == []


def test_rfc9113_4_1_undefined_flags_are_ignored(client):
    assert client.accepts(frame(PING, 0x16, 0, b"undefind")) == [Frame(PING, ACK, 0, b"undefind")]
    frames = client.accepts(client.headers(1, ECHO) + frame(DATA, END_STREAM | 0x76, 1, grpc_message(b"x")))
    assert client.body(frames) == grpc_message(b"x")


def test_rfc9113_4_1_reserved_bit_is_ignored(client):
    assert client.accepts(frame(PING, 0, 0x80000000, b"reserved")) == [Frame(PING, ACK, 0, b"reserved")]
    block = client.block(ECHO)
    data = frame(HEADERS, END_HEADERS, 0x80000001, block)
    frames = client.accepts(data + frame(DATA, END_STREAM, 0x80000001, grpc_message(b"x")))
    assert client.body(frames) == grpc_message(b"x")


# 4.2 Frame size


@pytest.mark.parametrize("path", [ECHO, STREAM])
def test_rfc9113_4_2_data_frame_of_16384_octets_is_accepted(converse, path):
    client = converse(SIZE_LIMITS)
    body = grpc_message(bytes(2**14 - 5))
    frames = client.accepts(client.headers(1, path) + frame(DATA, END_STREAM, 1, body))
    assert client.body(frames) == body


def test_rfc9113_4_2_data_frame_above_advertised_size_is_connection_error(converse):
    client = converse(SIZE_LIMITS)
    data = client.headers(1) + frame(DATA, END_STREAM, 1, bytes(2**14 + 1))
    assert client.connection_error(data) == Http2Code.FRAME_SIZE_ERROR


def test_rfc9113_4_2_repeated_request_above_advertised_size_is_connection_error(converse):
    client = converse(SIZE_LIMITS)
    client.accepts(client.request(1, b"", HOLD) + client.request(3, b"", HOLD))
    data = client.headers(5) + frame(DATA, END_STREAM, 5, bytes(2**14 + 1))
    assert client.connection_error(data) == Http2Code.FRAME_SIZE_ERROR


def test_rfc9113_4_2_headers_frame_above_advertised_size_is_connection_error(converse):
    client = converse(SIZE_LIMITS)
    data = frame(HEADERS, END_HEADERS | END_STREAM, 1, client.block() + b"\x00\x01a\x7f\x81\x7f" + bytes(2**14))
    assert client.connection_error(data) == Http2Code.FRAME_SIZE_ERROR


# 4.3 Header compression


def test_rfc9113_4_3_block_that_cannot_be_decoded_is_connection_error(client):
    # A literal with a new name whose length is missing.
    assert (
        client.connection_error(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x40")) == Http2Code.COMPRESSION_ERROR
    )


@pytest.mark.parametrize(
    "between",
    [
        frame(PRIORITY, 0, 1, b"\0\0\0\0\xff"),
        frame(DATA, END_STREAM, 1, b"x"),
        frame(HEADERS, END_HEADERS, 3, b"\x82"),
        frame(CONTINUATION, END_HEADERS, 3, b"\x82"),
        frame(SETTINGS, 0, 0),
        frame(PING, 0, 0, bytes(8)),
    ],
    ids=["priority", "data", "headers_of_another", "continuation_of_another", "settings", "ping"],
)
def test_rfc9113_4_3_block_that_is_interrupted_is_connection_error(client, between):
    begun = frame(HEADERS, END_STREAM, 1, client.block())
    assert client.connection_error(begun + between) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_4_3_block_of_refused_stream_still_changes_table(converse):
    client = converse(Http2Limits(concurrent_streams=1))
    client.accepts(client.headers(1))
    refused = client.headers(3, ECHO, ("x-new", "remembered by the encoder"))
    assert client.stream_error(refused, 3) == Http2Code.REFUSED_STREAM
    client.send(frame(RST_STREAM, 0, 1, bytes(4)))
    body = frame(DATA, END_STREAM, 5, grpc_message(b"x"))
    frames = client.accepts(client.headers(5, ECHO, ("x-new", "remembered by the encoder")) + body)
    assert client.body(frames, 5) == grpc_message(b"x")


# 5.4.1 Connection errors


def test_rfc9113_5_4_1_connection_error_sends_goaway_and_closes(client):
    assert client.connection_error(frame(PING, 0, 0, bytes(6))) == Http2Code.FRAME_SIZE_ERROR


def test_rfc9113_5_4_1_goaway_names_the_last_stream(client):
    client.accepts(client.request(1, b"x") + client.request(3, b"x"))
    client.send(frame(PING, 0, 0, bytes(6)))
    assert int.from_bytes(client.frames()[-1].payload[:4], "big") == 3


def test_rfc9113_5_4_1_nothing_is_answered_after_a_connection_error(client):
    later = client.request(1, b"x") + frame(PING, 0, 0, bytes(8))
    assert client.connection_error(frame(PING, 0, 0, bytes(6)) + later) == Http2Code.FRAME_SIZE_ERROR


# 5.4.2 Stream errors


def test_rfc9113_5_4_2_stream_error_leaves_other_streams_alone(client):
    client.accepts(client.headers(1, STREAM) + client.headers(3, STREAM))
    client.stream_error(client.headers(1, fields=[(":path", "/pseudo-field in trailers")], end=True))
    frames = client.accepts(frame(DATA, END_STREAM, 3, grpc_message(b"x")))
    assert client.body(frames, 3) == grpc_message(b"x")


def test_rfc9113_5_4_2_rst_stream_is_not_answered_with_rst_stream(client):
    client.accepts(client.headers(1))
    assert client.accepts(frame(RST_STREAM, 0, 1, bytes(4)) * 2) == []


# 5.5 Extensions


def test_rfc9113_5_5_unknown_frame_between_frames_of_request_is_discarded(client):
    unknown = frame(UNKNOWN, 0, 1, bytes(8))
    frames = client.accepts(
        client.headers(1, ECHO) + unknown + frame(DATA, END_STREAM, 1, grpc_message(b"x")) + unknown
    )
    assert client.body(frames) == grpc_message(b"x")


def test_rfc9113_5_5_unknown_frame_within_header_block_is_connection_error(client):
    data = frame(HEADERS, END_STREAM, 1, client.block()) + frame(UNKNOWN, 0, 0, bytes(8))
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


# 7 Error codes


def test_rfc9113_7_goaway_with_an_unknown_code_is_nothing_special(client):
    client.accepts(client.headers(1, ECHO))
    client.send(frame(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\xff"))
    client.send(frame(DATA, END_STREAM, 1, grpc_message(b"x")))
    frames = client.frames()
    assert client.body(frames) == grpc_message(b"x")
    assert {each.code for each in frames if each.kind == GOAWAY} <= {Http2Code.NO_ERROR}


def test_rfc9113_7_rst_stream_with_unknown_code_is_nothing_special(client):
    client.accepts(client.headers(1) + frame(RST_STREAM, 0, 1, b"\0\0\0\xff"))
    frames = client.accepts(client.request(3, b"x"))
    assert client.body(frames, 3) == grpc_message(b"x")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("NO_ERROR", 0x0),
        ("PROTOCOL_ERROR", 0x1),
        ("INTERNAL_ERROR", 0x2),
        ("FLOW_CONTROL_ERROR", 0x3),
        ("SETTINGS_TIMEOUT", 0x4),
        ("STREAM_CLOSED", 0x5),
        ("FRAME_SIZE_ERROR", 0x6),
        ("REFUSED_STREAM", 0x7),
        ("CANCEL", 0x8),
        ("COMPRESSION_ERROR", 0x9),
        ("CONNECT_ERROR", 0xA),
        ("ENHANCE_YOUR_CALM", 0xB),
        ("INADEQUATE_SECURITY", 0xC),
        ("HTTP_1_1_REQUIRED", 0xD),
    ],
)
def test_rfc9113_7_codes_have_their_numbers(name, code):
    assert Http2Code[name] == code


# 10.5 Denial of service


@pytest.mark.parametrize(
    "cheap",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(SETTINGS, 0, 0),
        frame(DATA, 0, 1, b""),
        frame(DATA, PADDED, 1, b"\0"),
        frame(PRIORITY, 0, 1, b"\0\0\0\0\x10"),
        frame(UNKNOWN, 0, 0, b""),
        frame(DATA, 0, 1, b"") + frame(PING, 0, 0, bytes(8)),
    ],
    ids=["ping", "settings", "empty_data", "padding_only", "priority", "unknown", "empty_data_and_ping"],
)
def test_rfc9113_10_5_flood_of_cheap_frames_is_connection_error(converse, cheap):
    client = converse(Http2Limits(control_frames_burst=10, control_frames_per_s=1))
    client.accepts(client.headers(1))
    assert client.connection_error(cheap * 40) == Http2Code.ENHANCE_YOUR_CALM


def test_rfc9113_10_5_1_header_list_above_the_limit_is_refused(converse):
    client = converse(Http2Limits(header_list_bytes=600))
    frames = client.accepts(client.headers(1, ECHO, ("x", "y" * 500), end=True))
    assert client.fields(frames)["grpc-status"] == "8"

"""RFC 9113 section 6: every frame type, accepted and refused."""

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
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    grpc_message,
)

PRIORITY_FLAG = 0x20
ENABLE_PUSH, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 2, 4, 5
MESSAGE = grpc_message(b"message")
SETTINGS_ACK = Frame(SETTINGS, ACK, 0, b"")


def settings(*values):
    return frame(SETTINGS, 0, 0, b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values))


def window_update(stream_id, increment):
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def data_sizes(frames):
    return [len(each.payload) for each in frames if each.kind == DATA]


# 6.1 DATA


@pytest.mark.parametrize("path", [ECHO, STREAM])
def test_rfc9113_6_1_data_is_accepted(client, path):
    frames = client.accepts(client.headers(1, path) + frame(DATA, END_STREAM, 1, MESSAGE))
    assert client.body(frames) == MESSAGE


@pytest.mark.parametrize("path", [ECHO, STREAM])
def test_rfc9113_6_1_several_data_frames_are_one_body(client, path):
    pieces = (
        frame(DATA, 0, 1, MESSAGE[:3]) + frame(DATA, 0, 1, MESSAGE[3:8]) + frame(DATA, END_STREAM, 1, MESSAGE[8:])
    )
    assert client.body(client.accepts(client.headers(1, path) + pieces)) == MESSAGE


@pytest.mark.parametrize("size", [0, 1, 5, 255])
def test_rfc9113_6_1_padding_of_data_is_left_out(client, size):
    padded = frame(DATA, PADDED | END_STREAM, 1, bytes((size,)) + MESSAGE + bytes(size))
    assert client.body(client.accepts(client.headers(1, ECHO) + padded)) == MESSAGE


def test_rfc9113_6_1_data_on_stream_0_is_connection_error(client):
    assert client.connection_error(frame(DATA, END_STREAM, 0, b"test")) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_1_data_after_end_of_request_is_stream_error(client):
    client.accepts(client.request(1, b"", HOLD))
    assert client.stream_error(frame(DATA, END_STREAM, 1, b"test")) == Http2Code.STREAM_CLOSED


@pytest.mark.parametrize("size", [5, 6, 255])
def test_rfc9113_6_1_padding_as_long_as_frame_is_connection_error(client, size):
    padded = frame(DATA, PADDED | END_STREAM, 1, bytes((size,)) + b"test")
    assert client.connection_error(client.headers(1) + padded) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_1_padding_counts_for_flow_control(converse):
    client = converse(Http2Limits(frame_bytes=2**14, stream_window_bytes=65_535, connection_window_bytes=65_535))
    client.accepts(client.headers(1, STREAM))
    padding_only = frame(DATA, PADDED, 1, b"\xff" + bytes(255))
    frames = [each for _ in range(200) for each in client.accepts(padding_only)]
    given_back = {1: 0, 0: 0}
    for each in frames:
        given_back[each.stream_id] += int.from_bytes(each.payload, "big")
    assert all(32_768 <= given <= 200 * 256 for given in given_back.values())


# 6.2 HEADERS


def test_rfc9113_6_2_headers_are_accepted(client):
    assert client.fields(client.accepts(client.headers(1, STREAM, end=True)))[":status"] == "200"


def test_rfc9113_6_2_padding_of_headers_is_left_out(client):
    block = b"\x07" + client.block(STREAM) + bytes(7)
    frames = client.accepts(frame(HEADERS, END_HEADERS | END_STREAM | PADDED, 1, block))
    assert client.fields(frames)[":status"] == "200"


def test_rfc9113_6_2_priority_of_headers_is_left_out(client):
    block = b"\0\0\0\0\xff" + client.block(STREAM)
    frames = client.accepts(frame(HEADERS, END_HEADERS | END_STREAM | PRIORITY_FLAG, 1, block))
    assert client.fields(frames)[":status"] == "200"


def test_rfc9113_6_2_priority_within_header_block_is_connection_error(client):
    data = frame(HEADERS, END_STREAM, 1, client.block()) + frame(PRIORITY, 0, 1, b"\0\0\0\0\xff")
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_2_other_streams_headers_within_block_is_connection_error(client):
    data = frame(HEADERS, END_STREAM, 1, client.block()) + client.headers(3, end=True)
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_2_headers_on_stream_0_is_connection_error(client):
    assert client.connection_error(client.headers(0, end=True)) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_2_padding_longer_than_headers_is_connection_error(client):
    block = client.block()
    data = frame(HEADERS, END_HEADERS | END_STREAM | PADDED, 1, bytes((len(block) + 1,)) + block)
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_2_padding_that_reaches_into_priority_is_connection_error(client):
    data = frame(HEADERS, END_HEADERS | END_STREAM | PADDED | PRIORITY_FLAG, 1, b"\x03" + bytes(5))
    assert client.connection_error(data) == Http2Code.FRAME_SIZE_ERROR


# 6.3 PRIORITY


def test_rfc9113_6_3_priority_on_stream_0_is_connection_error(client):
    assert client.connection_error(frame(PRIORITY, 0, 0, bytes(5))) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("size", [0, 4, 6])
def test_rfc9113_6_3_priority_of_another_length_is_stream_error(client, size):
    client.accepts(client.headers(1))
    assert client.stream_error(frame(PRIORITY, 0, 1, bytes(size))) == Http2Code.FRAME_SIZE_ERROR


# 6.4 RST_STREAM


def test_rfc9113_6_4_rst_stream_is_accepted(client):
    assert client.accepts(client.headers(1) + frame(RST_STREAM, 0, 1, b"\0\0\0\x08")) == []


def test_rfc9113_6_4_rst_stream_on_stream_0_is_connection_error(client):
    assert client.connection_error(frame(RST_STREAM, 0, 0, bytes(4))) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_4_rst_stream_on_idle_stream_is_connection_error(client):
    assert client.connection_error(frame(RST_STREAM, 0, 1, bytes(4))) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("size", [0, 3, 5])
def test_rfc9113_6_4_rst_stream_of_another_length_is_connection_error(client, size):
    client.accepts(client.headers(1))
    assert client.connection_error(frame(RST_STREAM, 0, 1, bytes(size))) == Http2Code.FRAME_SIZE_ERROR


# 6.5 SETTINGS


def test_rfc9113_6_5_settings_are_accepted_and_acknowledged(client):
    assert client.accepts(settings((INITIAL_WINDOW_SIZE, 100))) == [SETTINGS_ACK]


def test_rfc9113_6_5_settings_ack_with_a_payload_is_connection_error(client):
    assert client.connection_error(frame(SETTINGS, ACK, 0, b"\0")) == Http2Code.FRAME_SIZE_ERROR


def test_rfc9113_6_5_settings_on_a_stream_is_connection_error(client):
    data = frame(SETTINGS, 0, 1, b"\0\x03\0\0\0\x64")
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("size", [1, 5, 7])
def test_rfc9113_6_5_settings_with_incomplete_entry_is_connection_error(client, size):
    assert client.connection_error(frame(SETTINGS, 0, 0, bytes(size))) == Http2Code.FRAME_SIZE_ERROR


@pytest.mark.parametrize("value", [2, 2**32 - 1])
def test_rfc9113_6_5_2_invalid_enable_push_is_connection_error(client, value):
    assert client.connection_error(settings((ENABLE_PUSH, value))) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("value", [2**31, 2**32 - 1])
def test_rfc9113_6_5_2_initial_window_above_2_31_is_connection_error(client, value):
    assert client.connection_error(settings((INITIAL_WINDOW_SIZE, value))) == Http2Code.FLOW_CONTROL_ERROR


@pytest.mark.parametrize("value", [0, 2**14 - 1, 2**24, 2**32 - 1])
def test_rfc9113_6_5_2_invalid_max_frame_size_is_connection_error(client, value):
    assert client.connection_error(settings((MAX_FRAME_SIZE, value))) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_5_2_unknown_setting_is_ignored(client):
    assert client.accepts(settings((0xFF, 1), (0xFFFF, 2**32 - 1))) == [SETTINGS_ACK]


def test_rfc9113_6_5_2_max_frame_size_of_the_peer_is_kept(client):
    message = bytes(60_000)
    frames = client.accepts(client.request(1, message))
    assert max(data_sizes(frames)) == 2**14
    assert client.body(frames) == grpc_message(message)


def test_rfc9113_6_5_3_values_are_applied_in_their_order(client):
    client.accepts(settings((INITIAL_WINDOW_SIZE, 100), (INITIAL_WINDOW_SIZE, 1)))
    assert data_sizes(client.accepts(client.request(1, b"x"))) == [1]


def test_rfc9113_6_5_3_each_settings_frame_is_acknowledged_at_once(client):
    assert client.accepts(settings() + settings()) == [SETTINGS_ACK, SETTINGS_ACK]


def test_rfc9113_6_5_3_what_settings_allow_is_sent_after_their_acknowledgement(client):
    """Else grpc-core resets the stream: it counts data against the window of before until it has the ACK."""
    client.accepts(settings((INITIAL_WINDOW_SIZE, 1)))
    assert data_sizes(client.accepts(client.request(1, bytes(40_000)))) == [1]
    acknowledgement, *answer = client.accepts(settings((INITIAL_WINDOW_SIZE, 30_000), (MAX_FRAME_SIZE, 20_000)))
    assert acknowledgement == SETTINGS_ACK
    assert data_sizes(answer) == [20_000, 9_999]


def test_rfc9113_6_5_3_settings_ack_is_not_acknowledged(client):
    assert client.accepts(frame(SETTINGS, ACK, 0)) == []


# 6.6 and 8.4 PUSH_PROMISE


def test_rfc9113_6_6_push_promise_of_a_client_is_connection_error(client):
    client.accepts(client.headers(1))
    data = frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\x03" + client.block())
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


# 6.7 PING


def test_rfc9113_6_7_ping_is_answered_with_its_payload(client):
    assert client.accepts(frame(PING, 0, 0, b"h2sp\0\xffec")) == [Frame(PING, ACK, 0, b"h2sp\0\xffec")]


def test_rfc9113_6_7_ping_ack_is_not_answered(client):
    frames = client.accepts(frame(PING, ACK, 0, b"invalid.") + frame(PING, 0, 0, b"valid..."))
    assert frames == [Frame(PING, ACK, 0, b"valid...")]


def test_rfc9113_6_7_ping_on_a_stream_is_connection_error(client):
    assert client.connection_error(frame(PING, 0, 1, bytes(8))) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("size", [0, 6, 7, 9])
def test_rfc9113_6_7_ping_of_another_length_is_connection_error(client, size):
    assert client.connection_error(frame(PING, 0, 0, bytes(size))) == Http2Code.FRAME_SIZE_ERROR


# 6.8 GOAWAY


def test_rfc9113_6_8_goaway_is_accepted_and_connection_ends_without_error(client):
    client.send(frame(GOAWAY, 0, 0, bytes(8) + b"h2spec"))
    assert [each.code for each in client.frames() if each.kind == GOAWAY] == [Http2Code.NO_ERROR]


def test_rfc9113_6_8_open_streams_are_answered_after_goaway(client):
    client.accepts(client.headers(1, STREAM))
    client.send(frame(GOAWAY, 0, 0, bytes(8)) + frame(DATA, END_STREAM, 1, MESSAGE))
    assert client.body(client.frames()) == MESSAGE
    assert client.transport.is_ended


def test_rfc9113_6_8_goaway_on_a_stream_is_connection_error(client):
    assert client.connection_error(frame(GOAWAY, 0, 1, bytes(8))) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_8_goaway_that_is_too_short_is_connection_error(client):
    assert client.connection_error(frame(GOAWAY, 0, 0, bytes(7))) == Http2Code.FRAME_SIZE_ERROR


# 6.9 WINDOW_UPDATE


def test_rfc9113_6_9_window_update_of_the_connection_is_accepted(client):
    assert client.accepts(window_update(0, 1)) == []


def test_rfc9113_6_9_window_update_of_a_stream_is_accepted(client):
    assert client.accepts(client.headers(1) + window_update(1, 1)) == []


def test_rfc9113_6_9_window_update_of_0_is_connection_error(client):
    assert client.connection_error(window_update(0, 0)) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_9_stream_window_update_of_0_is_stream_error(client):
    client.accepts(client.headers(1))
    assert client.stream_error(window_update(1, 0)) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("size", [0, 3, 5])
def test_rfc9113_6_9_window_update_of_another_length_is_connection_error(client, size):
    assert client.connection_error(frame(WINDOW_UPDATE, 0, 0, bytes(size))) == Http2Code.FRAME_SIZE_ERROR


def test_rfc9113_6_9_1_stream_window_bounds_sent_data(client):
    client.accepts(settings((INITIAL_WINDOW_SIZE, 1)))
    assert data_sizes(client.accepts(client.request(1, b"x"))) == [1]


def test_rfc9113_6_9_1_connection_window_bounds_sent_data(client):
    client.accepts(settings((INITIAL_WINDOW_SIZE, 2**20)))
    frames = client.accepts(client.request(1, bytes(70_000)))
    assert sum(data_sizes(frames)) == 65_535
    frames = client.accepts(window_update(0, 100_000))
    assert sum(data_sizes(frames)) == 70_005 - 65_535


def test_rfc9113_6_9_1_headers_and_trailers_need_no_window(client):
    client.accepts(settings((INITIAL_WINDOW_SIZE, 0)))
    assert client.fields(client.accepts(client.headers(1, STREAM, end=True)))["grpc-status"] == "0"


def test_rfc9113_6_9_1_connection_window_above_2_31_is_connection_error(client):
    data = window_update(0, 2**31 - 1) * 2
    assert client.connection_error(data) == Http2Code.FLOW_CONTROL_ERROR


def test_rfc9113_6_9_1_stream_window_above_2_31_is_stream_error(client):
    client.accepts(client.headers(1))
    assert client.stream_error(window_update(1, 2**31 - 1)) == Http2Code.FLOW_CONTROL_ERROR


def test_rfc9113_6_9_2_changed_initial_window_applies_to_open_streams(client):
    client.accepts(settings((INITIAL_WINDOW_SIZE, 0)))
    assert data_sizes(client.accepts(client.request(1, b"x"))) == []
    assert data_sizes(client.accepts(settings((INITIAL_WINDOW_SIZE, 1)))) == [1]


def test_rfc9113_6_9_2_negative_window_must_be_made_up_for(client):
    client.accepts(settings((INITIAL_WINDOW_SIZE, 3)))
    assert data_sizes(client.accepts(client.request(1, b"xyz"))) == [3]
    client.accepts(settings((INITIAL_WINDOW_SIZE, 1)))  # the window is -2
    assert data_sizes(client.accepts(window_update(1, 2))) == []
    assert data_sizes(client.accepts(window_update(1, 1))) == [1]


def test_rfc9113_6_9_2_overflow_by_initial_window_is_connection_error(client):
    client.accepts(client.request(1, b"", HOLD) + window_update(1, 2**31 - 1 - 65_535))
    assert client.connection_error(settings((INITIAL_WINDOW_SIZE, 65_536))) == Http2Code.FLOW_CONTROL_ERROR


def test_rfc9113_6_9_2_initial_window_does_not_change_that_of_connection(client):
    client.accepts(settings((INITIAL_WINDOW_SIZE, 2**31 - 1)))
    assert sum(data_sizes(client.accepts(client.request(1, bytes(70_000))))) == 65_535


# 6.10 CONTINUATION


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rfc9113_6_10_block_in_continuation_frames_is_accepted(client, count):
    block = client.block(STREAM)
    data = frame(HEADERS, END_STREAM, 1, block[:1])
    data += b"".join(frame(CONTINUATION, 0, 1, block[i : i + 1]) for i in range(1, count))
    data += frame(CONTINUATION, END_HEADERS, 1, block[count:])
    assert client.fields(client.accepts(data))[":status"] == "200"


def test_rfc9113_6_10_continuation_followed_by_another_frame_is_connection_error(client):
    block = client.block()
    data = frame(HEADERS, END_STREAM, 1, block[:3]) + frame(CONTINUATION, 0, 1, block[3:])
    assert client.connection_error(data + frame(DATA, END_STREAM, 1, b"test")) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_10_continuation_on_stream_0_is_connection_error(client):
    block = client.block()
    data = frame(HEADERS, END_STREAM, 1, block[:3]) + frame(CONTINUATION, END_HEADERS, 0, block[3:])
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_10_continuation_after_a_whole_block_is_connection_error(client):
    data = client.headers(1) + frame(CONTINUATION, END_HEADERS, 1, client.block())
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_10_continuation_after_the_last_continuation_is_connection_error(client):
    block = client.block()
    last = frame(CONTINUATION, END_HEADERS, 1, block[3:])
    data = frame(HEADERS, 0, 1, block[:3]) + last + frame(CONTINUATION, END_HEADERS, 1, client.block())
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_10_continuation_after_data_is_connection_error(client):
    data = client.headers(1) + frame(DATA, 0, 1, MESSAGE) + frame(CONTINUATION, END_HEADERS, 1, client.block())
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_6_10_end_stream_of_headers_holds_after_continuation(client):
    block = client.block(STREAM)
    data = frame(HEADERS, END_STREAM, 1, block[:3]) + frame(CONTINUATION, END_HEADERS, 1, block[3:])
    frames = client.accepts(data)
    assert frames[-1].flags & END_STREAM

"""RFC 9113 sections 5.1 to 5.3: the states of streams, their numbers, how many there may be, priority."""

import pytest

from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import Http2Code
from support.http2_conversation import ECHO, HOLD, STREAM
from support.raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    grpc_message,
)

PRIORITY_FLAG = 0x20
CANCEL = frame(RST_STREAM, 0, 1, b"\0\0\0\x08")
LAST_DATA = frame(DATA, END_STREAM, 1, b"test")


def priority(stream_id, parent=0, weight=255, *, exclusive=False):
    return frame(PRIORITY, 0, stream_id, (parent | exclusive << 31).to_bytes(4, "big") + bytes((weight,)))


def window_update(stream_id, increment):
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


# 5.1 idle


def test_rfc9113_5_1_idle_stream_data_is_connection_error(client):
    assert client.connection_error(LAST_DATA) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_5_1_idle_stream_rst_stream_is_connection_error(client):
    assert client.connection_error(CANCEL) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_5_1_idle_stream_window_update_is_connection_error(client):
    assert client.connection_error(window_update(1, 100)) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_5_1_idle_stream_continuation_is_connection_error(client):
    data = frame(CONTINUATION, END_HEADERS, 1, client.block())
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_5_1_idle_stream_of_the_server_takes_no_frames(client):
    assert client.connection_error(window_update(2, 100)) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_5_1_idle_stream_priority_is_accepted(client):
    assert client.accepts(priority(1)) == []


def test_rfc9113_5_1_idle_stream_is_never_reset(client):
    """A stream error of a PRIORITY frame becomes one of the connection: idle streams take no RST_STREAM."""
    assert client.connection_error(frame(PRIORITY, 0, 1, bytes(4))) == Http2Code.FRAME_SIZE_ERROR


# 5.1 half-closed (remote)


def test_rfc9113_5_1_half_closed_remote_data_is_stream_error(client):
    client.accepts(client.request(1, b"", HOLD))
    assert client.stream_error(LAST_DATA) == Http2Code.STREAM_CLOSED


def test_rfc9113_5_1_half_closed_remote_headers_is_stream_error(client):
    client.accepts(client.request(1, b"", HOLD))
    assert client.stream_error(client.headers(1, end=True)) == Http2Code.STREAM_CLOSED


def test_rfc9113_5_1_half_closed_remote_continuation_is_connection_error(client):
    client.accepts(client.request(1, b"", HOLD))
    data = frame(CONTINUATION, END_HEADERS, 1, client.block())
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_5_1_half_closed_remote_window_update_is_accepted(client):
    client.accepts(frame(SETTINGS, 0, 0, b"\0\x04\0\0\0\0"))  # no window, so that the answer waits
    client.accepts(client.request(1, b"x"))
    frames = client.accepts(window_update(1, 1))
    assert client.body(frames) == grpc_message(b"x")[:1]


def test_rfc9113_5_1_half_closed_remote_priority_is_accepted(client):
    client.accepts(frame(SETTINGS, 0, 0, b"\0\x04\0\0\0\0"))
    client.accepts(client.request(1, b"x") + priority(1))
    frames = client.accepts(window_update(1, 1))
    assert client.body(frames) == grpc_message(b"x")[:1]


def test_rfc9113_5_1_half_closed_remote_rst_stream_is_accepted(client):
    client.accepts(client.request(1, b"", HOLD))
    assert client.accepts(CANCEL) == []


# 5.1 closed


def test_rfc9113_5_1_closed_by_rst_stream_data_is_stream_error(client):
    client.accepts(client.headers(1) + CANCEL)
    assert client.stream_error(LAST_DATA) == Http2Code.STREAM_CLOSED


def test_rfc9113_5_1_closed_by_rst_stream_headers_is_connection_error(client):
    client.accepts(client.headers(1) + CANCEL)
    assert client.connection_error(client.headers(1, end=True)) == Http2Code.STREAM_CLOSED


def test_rfc9113_5_1_closed_by_rst_stream_continuation_is_connection_error(client):
    client.accepts(client.headers(1) + CANCEL)
    data = frame(CONTINUATION, END_HEADERS | END_STREAM, 1, client.block())
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_5_1_closed_by_both_ends_data_is_stream_error(client):
    client.accepts(client.request(1, b"x"))
    assert client.stream_error(LAST_DATA) == Http2Code.STREAM_CLOSED


def test_rfc9113_5_1_closed_by_both_ends_headers_is_connection_error(client):
    client.accepts(client.request(1, b"x"))
    assert client.connection_error(client.headers(1, end=True)) == Http2Code.STREAM_CLOSED


def test_rfc9113_5_1_closed_by_both_ends_continuation_is_connection_error(client):
    client.accepts(client.request(1, b"x"))
    data = frame(CONTINUATION, END_HEADERS | END_STREAM, 1, client.block())
    assert client.connection_error(data) == Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("late", [window_update(1, 5), CANCEL, priority(1)], ids=["window", "reset", "priority"])
def test_rfc9113_5_1_closed_stream_takes_what_was_on_its_way(client, late):
    client.accepts(client.request(1, b"x"))
    assert client.accepts(late) == []


def test_rfc9113_5_1_closed_by_the_server_late_frames_are_ignored(client):
    """After the server's RST_STREAM the client's frames may still be on their way."""
    client.accepts(client.headers(1, STREAM))
    malformed = client.headers(1, STREAM)  # trailers without END_STREAM
    assert client.stream_error(malformed) == Http2Code.PROTOCOL_ERROR
    assert client.accepts(frame(DATA, 0, 1, b"late") + client.headers(1, fields=[("x", "y")], end=True)) == []


def test_rfc9113_5_1_closed_by_both_resets_data_is_stream_error(client):
    client.accepts(client.headers(1, STREAM))
    client.stream_error(client.headers(1, STREAM))
    assert client.stream_error(CANCEL + LAST_DATA) == Http2Code.STREAM_CLOSED


def test_rfc9113_5_1_request_without_body_is_not_reset_after_response(client):
    frames = client.accepts(
        client.headers(1, fields=[(":method", "GET"), (":scheme", "http"), (":path", "/")], end=True)
    )
    assert frames[-1].flags & END_STREAM


# 5.1.1 Stream identifiers


@pytest.mark.parametrize("stream_id", [0, 2])
def test_rfc9113_5_1_1_even_stream_number_is_connection_error(client, stream_id):
    assert client.connection_error(client.headers(stream_id, end=True)) == Http2Code.PROTOCOL_ERROR


def test_rfc9113_5_1_1_stream_number_below_earlier_one_is_connection_error(client):
    """Lower numbers that were never used count as closed."""
    client.accepts(client.request(5, b"x"))
    assert client.connection_error(client.headers(3, end=True)) == Http2Code.STREAM_CLOSED


def test_rfc9113_5_1_1_stream_numbers_may_be_skipped(client):
    client.accepts(client.request(1, b"x"))
    frames = client.accepts(client.request(0x7FFFFFFF, b"last"))
    assert client.body(frames, 0x7FFFFFFF) == grpc_message(b"last")


# 5.1.2 Stream concurrency


def test_rfc9113_5_1_2_streams_above_the_advertised_number_are_refused(converse):
    client = converse(Http2Limits(concurrent_streams=3))
    client.accepts(client.headers(1) + client.headers(3) + client.headers(5))
    assert client.stream_error(client.headers(7, end=True), 7) == Http2Code.REFUSED_STREAM


def test_rfc9113_5_1_2_streams_that_have_ended_do_not_count(converse):
    client = converse(Http2Limits(concurrent_streams=1))
    for stream_id in range(1, 20, 2):
        assert client.body(client.accepts(client.request(stream_id, b"x")), stream_id)


# 5.3 Priority: deprecated, still understood


def test_rfc9113_5_3_priority_of_unused_stream_does_not_use_it(client):
    frames = client.accepts(priority(9) + client.request(5, b"x"))
    assert client.body(frames, 5) == grpc_message(b"x")


@pytest.mark.parametrize(
    "signal",
    [priority(1, weight=0), priority(1, weight=255), priority(1, 3), priority(1, 3, exclusive=True)],
    ids=["weight_1", "weight_256", "dependency", "exclusive"],
)
def test_rfc9113_5_3_priority_signals_are_accepted(client, signal):
    assert client.body(client.accepts(signal + client.request(3, b"x")), 3) == grpc_message(b"x")


def test_rfc7540_5_3_1_headers_that_depend_on_themselves_are_stream_error(client):
    data = frame(HEADERS, END_HEADERS | END_STREAM | PRIORITY_FLAG, 1, b"\0\0\0\x01\xff" + client.block())
    assert client.stream_error(data) == Http2Code.PROTOCOL_ERROR
    assert client.body(client.accepts(client.request(3, b"x", ECHO)), 3) == grpc_message(b"x")


def test_rfc7540_5_3_1_priority_that_depends_on_itself_is_stream_error(client):
    client.accepts(client.headers(1))
    assert client.stream_error(priority(1, 1)) == Http2Code.PROTOCOL_ERROR


def test_rfc7540_5_3_1_self_dependency_of_idle_stream_is_connection_error(client):
    assert client.connection_error(priority(1, 1)) == Http2Code.PROTOCOL_ERROR

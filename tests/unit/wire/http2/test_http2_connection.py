import struct

import pytest

from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import Http2Code, Http2Error, frame
from naiad.wire.http2.keepalive import KeepaliveRules
from naiad.wire.preface import PREFACE
from support.http2_peer import GRPC_FIELDS, OPENING, Peer, data_frame, settings_frame

WINDOW = 65_535


def code_of(frames, kind):
    """Return the error codes in the frames of `kind` (RST_STREAM or GOAWAY)."""
    offset = 4 if kind == wire.GOAWAY else 0
    return [Http2Code(struct.unpack_from(">I", payload, offset)[0]) for k, _, _, payload in frames if k == kind]


def fails_with(peer, data):
    with pytest.raises(Http2Error) as caught:
        peer.send(data)
    assert code_of(peer.frames(), wire.GOAWAY) == [caught.value.code]
    return caught.value.code


def resets(peer, data):
    peer.send(data)
    return code_of(peer.frames(), wire.RST_STREAM)


# Setting up


def test_server_announces_its_settings_and_acknowledges_the_peers():
    peer = Peer(opened=False)
    peer.send(OPENING)
    kinds = [(kind, flags) for kind, flags, _, _ in peer.frames()]
    assert kinds == [(wire.SETTINGS, 0), (wire.WINDOW_UPDATE, 0), (wire.SETTINGS, wire.FLAG_ACK)]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"P" + b"x", PREFACE[:-1] + b"x"])
def test_wrong_preface_ends_the_connection(data):
    peer = Peer(opened=False)
    with pytest.raises(Http2Error):
        peer.send(data)


def test_first_frame_must_be_settings():
    peer = Peer(opened=False)
    with pytest.raises(Http2Error) as caught:
        peer.send(PREFACE + frame(wire.PING, 0, 0, bytes(8)))
    assert caught.value.code is Http2Code.PROTOCOL_ERROR


def test_nothing_is_read_after_a_connection_error():
    peer = Peer()
    fails_with(peer, frame(wire.PING, 0, 0, b""))
    peer.send(peer.request(1, b"x"))
    assert peer.sink.calls == []


# Requests


def test_known_request_in_one_piece_takes_fast_path():
    peer = Peer()
    for stream_id in (1, 3, 5):
        peer.send(peer.request(stream_id, b"body"))
    assert peer.sink.one_piece == 1
    assert [call[:3] for call in peer.sink.calls if call[0] == "end"] == [("end", i, b"body") for i in (1, 3, 5)]


def test_window_update_keeps_the_fast_path():
    peer = Peer()
    peer.send(peer.request(1) + peer.request(3))
    peer.send(peer.headers(5) + wire.window_update(5, 7) + wire.window_update(0, 8) + data_frame(5, b"x", end=True))
    assert peer.sink.one_piece == 1
    assert peer.connection.output.window_of(peer.sink.streams[5]) == WINDOW + 7
    assert peer.connection.output.window == WINDOW + 8


def test_interleaved_requests_keep_the_fast_path():
    peer = Peer()
    peer.send(peer.request(1) + peer.request(3))
    peer.send(peer.headers(5) + peer.headers(7) + data_frame(7, b"b", end=True) + data_frame(5, b"a", end=True))
    assert peer.sink.one_piece == 2
    assert [call[:3] for call in peer.sink.calls[-4:] if call[0] == "end"] == [("end", 7, b"b"), ("end", 5, b"a")]


def test_fast_path_body_is_a_view():
    peer = Peer()
    peer.send(peer.request(1, b"a"))
    peer.send(peer.request(3, b"a"))
    seen = []
    peer.sink.request_received = lambda stream, body: seen.append(body)
    data = peer.request(5, b"body")
    peer.connection.receive_data(data, 1)
    assert seen[0].obj is data


def test_request_over_several_frames_with_trailers():
    peer = Peer()
    peer.send(peer.headers(1) + data_frame(1, b"ab") + data_frame(1, b"cd"))
    peer.send(peer.headers(1, [("x-checksum", "7")], end=True))
    assert peer.sink.calls[-1] == ("end", 1, b"abcd", ((b"x-checksum", b"7"),))


def test_request_without_a_body():
    peer = Peer()
    peer.send(peer.headers(1, end=True))
    assert peer.sink.calls[-1] == ("end", 1, b"", ())


def test_padding_and_priority_are_left_out():
    peer = Peer()
    block = peer.encoder.encode(GRPC_FIELDS)
    flags = wire.FLAG_END_HEADERS | wire.FLAG_PADDED | wire.FLAG_PRIORITY
    peer.send(frame(wire.HEADERS, flags, 1, b"\x03" + bytes(5) + block + bytes(3)))
    peer.send(frame(wire.DATA, wire.FLAG_PADDED | wire.FLAG_END_STREAM, 1, b"\x02body" + bytes(2)))
    assert peer.sink.calls[-1][:3] == ("end", 1, b"body")


def test_header_block_over_continuation_frames():
    peer = Peer()
    block = peer.encoder.encode(GRPC_FIELDS)
    peer.send(frame(wire.HEADERS, wire.FLAG_END_STREAM, 1, block[:3]) + frame(wire.CONTINUATION, 0, 1, b""))
    peer.send(frame(wire.CONTINUATION, wire.FLAG_END_HEADERS, 1, block[3:]))
    assert [call[0] for call in peer.sink.calls] == ["headers", "end"]
    for stream_id in (3, 5):
        peer.send(peer.request(stream_id))
    assert peer.sink.one_piece == 1  # the short way is open again


def test_unknown_frames_settings_and_priority_are_ignored():
    peer = Peer()
    peer.send(frame(0xFA, 0xFF, 3, b"what") + frame(wire.PRIORITY, 0, 7, bytes(5)) + settings_frame({0xABC: 1}))
    assert [(kind, flags) for kind, flags, _, _ in peer.frames()] == [(wire.SETTINGS, wire.FLAG_ACK)]


def test_reserved_bit_of_the_stream_id_is_ignored():
    peer = Peer()
    peer.send(peer.headers(1, end=True).replace(b"\0\0\0\x01", b"\x80\0\0\x01", 1))
    assert peer.sink.calls[0][:2] == ("headers", 1)


# Stream errors


@pytest.mark.parametrize(
    "fields",
    [
        [*GRPC_FIELDS, ("Upper", "x")],
        [*GRPC_FIELDS, ("connection", "close")],
        GRPC_FIELDS[1:],
        [*GRPC_FIELDS, (":path", "/again")],
    ],
)
def test_malformed_request_is_reset_alone(fields):
    peer = Peer()
    for stream_id in (1, 3):  # the second time from the cache
        assert resets(peer, peer.headers(stream_id, fields) + data_frame(stream_id, b"", end=True)) == [
            Http2Code.PROTOCOL_ERROR
        ]
    peer.send(peer.request(5, b"x"))
    assert peer.sink.calls[-1][:3] == ("end", 5, b"x")


@pytest.mark.parametrize(("body", "is_end"), [(b"abc", True), (b"abcdef", False)])
def test_body_that_contradicts_its_content_length_is_reset(body, is_end):
    peer = Peer()
    peer.send(peer.headers(1, [*GRPC_FIELDS, ("content-length", "5")]))
    assert resets(peer, data_frame(1, body, end=is_end)) == [Http2Code.PROTOCOL_ERROR]
    assert peer.sink.calls[-1][0] == "broken"


def test_body_of_its_content_length_is_taken():
    peer = Peer()
    peer.send(peer.request(1, b"abcde", [*GRPC_FIELDS, ("content-length", "5")]))
    peer.send(peer.request(3, b"abcde", [*GRPC_FIELDS, ("content-length", "5")]))
    assert [call[:3] for call in peer.sink.calls if call[0] == "end"] == [("end", 1, b"abcde"), ("end", 3, b"abcde")]


def test_rejected_streams_keep_header_table_in_step():
    peer = Peer(Http2Limits(concurrent_streams=1))
    peer.send(peer.headers(1))
    assert resets(peer, peer.request(3, b"x", [*GRPC_FIELDS, ("x-new", "1")])) == [Http2Code.REFUSED_STREAM]
    peer.send(data_frame(1, b"", end=True))
    peer.connection.output.send_end(peer.sink.streams[1])
    peer.send(peer.request(5, b"x", [*GRPC_FIELDS, ("x-new", "1")]))
    assert (b"x-new", b"1") in peer.sink.streams[5].head.fields


def window_updates(peer, stream_id=0):
    return [
        struct.unpack(">I", payload)[0]
        for kind, _, i, payload in peer.frames()
        if (kind, i) == (wire.WINDOW_UPDATE, stream_id)
    ]


@pytest.mark.parametrize("is_known", [False, True])
def test_held_window_stops_bodies_and_nothing_else(is_known):
    peer = Peer(Http2Limits(connection_window_bytes=100_000))
    if is_known:
        peer.send(peer.request(1) + peer.request(3))
    peer.connection.windows.hold()
    for stream_id in range(5, 15, 2):
        peer.send(peer.request(stream_id, bytes(16_000)))
    assert window_updates(peer) == []
    peer.send(peer.request(15) + frame(wire.PING, 0, 0, bytes(8)))
    assert [kind for kind, _, _, _ in peer.frames()] == [wire.PING]
    peer.connection.windows.release()
    assert window_updates(peer) == [80_000]
    peer.connection.windows.hold()
    peer.connection.windows.release()
    assert window_updates(peer) == []


@pytest.mark.parametrize("is_known", [False, True])
def test_held_window_cannot_be_exceeded(is_known):
    peer = Peer(Http2Limits(connection_window_bytes=2**16))
    if is_known:
        peer.send(peer.request(1) + peer.request(3))
    peer.connection.windows.hold()
    for stream_id in range(5, 13, 2):
        peer.send(peer.request(stream_id, bytes(2**14)))
    assert fails_with(peer, peer.request(13, b"x")) is Http2Code.FLOW_CONTROL_ERROR


def test_trailers_must_end_the_stream():
    peer = Peer()
    peer.send(peer.headers(1))
    assert resets(peer, peer.headers(1, [("x", "y")])) == [Http2Code.PROTOCOL_ERROR]


def test_data_after_the_end_is_a_stream_error():
    peer = Peer()
    peer.send(peer.request(1, b"x"))
    assert resets(peer, data_frame(1, b"more")) == [Http2Code.STREAM_CLOSED]


def test_data_after_own_reset_is_ignored():
    peer = Peer()
    peer.send(peer.headers(1))
    peer.connection.output.reset(peer.sink.streams[1], Http2Code.CANCEL)
    peer.frames()
    peer.send(data_frame(1, b"late") + peer.headers(1, [("x", "y")], end=True))
    assert peer.frames() == []
    assert [call[0] for call in peer.sink.calls] == ["headers"]


def test_headers_on_a_closed_stream_end_the_connection():
    peer = Peer()
    peer.send(peer.request(1))
    peer.connection.output.send_end(peer.sink.streams[1])
    peer.frames()
    assert fails_with(peer, peer.headers(1, end=True)) is Http2Code.STREAM_CLOSED


def test_call_with_too_much_metadata_fails_alone():
    for size in (300, 900):
        peer = Peer(Http2Limits(header_list_bytes=500))
        block = peer.encoder.encode([*GRPC_FIELDS, ("x", "y" * size)])
        peer.send(frame(wire.HEADERS, 0, 1, block[:100]) + frame(wire.CONTINUATION, 4, 1, block[100:]))
        (kind, flags, _, payload), reset = peer.frames()
        assert (kind, flags, reset[0]) == (wire.HEADERS, 5, wire.RST_STREAM)
        fields = dict(peer.decoder.decode(payload))
        assert (fields[":status"], fields["grpc-status"]) == ("200", "8")
        assert "--grpc-max-header-size" in fields["grpc-message"]
        assert peer.sink.calls == []
        peer.send(peer.request(3, b"x"))
        assert peer.sink.bodies[3] == b"x"


def test_block_far_beyond_the_limit_ends_the_connection():
    peer = Peer(Http2Limits(header_list_bytes=500))
    peer.send(frame(wire.HEADERS, 0, 1, bytes(3_000)))
    assert fails_with(peer, frame(wire.CONTINUATION, 0, 1, bytes(1_001))) is Http2Code.ENHANCE_YOUR_CALM


# Connection errors


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(wire.DATA, 0, 0, b"x"), Http2Code.PROTOCOL_ERROR),
        (frame(wire.DATA, 0, 1, b"x"), Http2Code.PROTOCOL_ERROR),
        (frame(wire.DATA, wire.FLAG_PADDED, 1, b""), Http2Code.FRAME_SIZE_ERROR),
        (frame(wire.DATA, wire.FLAG_PADDED, 1, b"\x01"), Http2Code.PROTOCOL_ERROR),
        (frame(wire.HEADERS, 4, 0, b"\x82"), Http2Code.PROTOCOL_ERROR),
        (frame(wire.HEADERS, 4, 2, b"\x82"), Http2Code.PROTOCOL_ERROR),
        (frame(wire.HEADERS, 0x24, 1, b"\x82"), Http2Code.FRAME_SIZE_ERROR),
        (frame(wire.HEADERS, 0x0C, 1, b""), Http2Code.FRAME_SIZE_ERROR),
        (frame(wire.HEADERS, 0x0C, 1, b"\x05\x82"), Http2Code.PROTOCOL_ERROR),
        (frame(wire.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff\xff"), Http2Code.COMPRESSION_ERROR),
        (frame(wire.HEADERS, 0, 1, b"\x82") + frame(wire.PING, 0, 0, bytes(8)), Http2Code.PROTOCOL_ERROR),
        (frame(wire.HEADERS, 0, 1, b"\x82") + frame(wire.CONTINUATION, 4, 3, b""), Http2Code.PROTOCOL_ERROR),
        (frame(wire.CONTINUATION, 4, 1, b""), Http2Code.PROTOCOL_ERROR),
        (frame(wire.PRIORITY, 0, 0, bytes(5)), Http2Code.PROTOCOL_ERROR),
        (frame(wire.RST_STREAM, 0, 1, bytes(4)), Http2Code.PROTOCOL_ERROR),
        (frame(wire.RST_STREAM, 0, 1, bytes(3)), Http2Code.FRAME_SIZE_ERROR),
        (frame(wire.SETTINGS, 0, 1), Http2Code.PROTOCOL_ERROR),
        (frame(wire.SETTINGS, 0, 0, bytes(5)), Http2Code.FRAME_SIZE_ERROR),
        (frame(wire.SETTINGS, 1, 0, bytes(6)), Http2Code.FRAME_SIZE_ERROR),
        (settings_frame({2: 2}), Http2Code.PROTOCOL_ERROR),
        (settings_frame({4: 2**31}), Http2Code.FLOW_CONTROL_ERROR),
        (settings_frame({5: 16383}), Http2Code.PROTOCOL_ERROR),
        (settings_frame({5: 2**24}), Http2Code.PROTOCOL_ERROR),
        (settings_frame(dict.fromkeys(range(100, 200), 1)), Http2Code.ENHANCE_YOUR_CALM),
        (frame(wire.PUSH_PROMISE, 4, 1, bytes(8)), Http2Code.PROTOCOL_ERROR),
        (frame(wire.PING, 0, 1, bytes(8)), Http2Code.PROTOCOL_ERROR),
        (frame(wire.PING, 0, 0, bytes(7)), Http2Code.FRAME_SIZE_ERROR),
        (frame(wire.GOAWAY, 0, 1, bytes(8)), Http2Code.PROTOCOL_ERROR),
        (frame(wire.GOAWAY, 0, 0, bytes(7)), Http2Code.FRAME_SIZE_ERROR),
        (frame(wire.WINDOW_UPDATE, 0, 0, bytes(4)), Http2Code.PROTOCOL_ERROR),
        (frame(wire.WINDOW_UPDATE, 0, 0, bytes(3)), Http2Code.FRAME_SIZE_ERROR),
        (frame(wire.WINDOW_UPDATE, 0, 1, b"\0\0\0\x01"), Http2Code.PROTOCOL_ERROR),
        (frame(wire.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), Http2Code.FLOW_CONTROL_ERROR),
        (b"\xff\xff\xff" + frame(wire.DATA, 0, 1)[3:], Http2Code.FRAME_SIZE_ERROR),
        (b"\x0f\xff\xff" + frame(wire.HEADERS, 0, 1)[3:], Http2Code.ENHANCE_YOUR_CALM),
    ],
)
def test_illegal_frame_ends_the_connection(data, code):
    peer = Peer(Http2Limits(frame_bytes=2**20))
    assert fails_with(peer, data) is code


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(wire.WINDOW_UPDATE, 0, 1, bytes(4)), Http2Code.PROTOCOL_ERROR),
        (frame(wire.WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"), Http2Code.FLOW_CONTROL_ERROR),
        (frame(wire.PRIORITY, 0, 1, bytes(4)), Http2Code.FRAME_SIZE_ERROR),
    ],
)
def test_illegal_frame_of_a_stream_resets_it(data, code):
    peer = Peer()
    peer.send(peer.headers(1))
    assert resets(peer, data) == [code]
    assert peer.sink.calls[-1] == ("broken", 1, code, b"")
    assert not peer.connection.streams


# Receiving windows


def receive_limits():
    return Http2Limits(frame_bytes=16384, stream_window_bytes=WINDOW, connection_window_bytes=2 * WINDOW)


def test_windows_are_given_back_when_half_is_used():
    peer = Peer(receive_limits())
    peer.send(peer.headers(1))
    updates = []
    for _ in range(9):
        peer.send(data_frame(1, bytes(10000)))
        updates += [(i, int.from_bytes(payload, "big")) for kind, _, i, payload in peer.frames() if kind == 8]
    assert updates == [(1, 40000), (0, 70000), (1, 40000)]


def test_finished_streams_get_no_window_back():
    peer = Peer(receive_limits())
    peer.send(peer.headers(1) + data_frame(1, bytes(16000)) + data_frame(1, bytes(16000)))
    peer.send(data_frame(1, bytes(16000), end=True))
    assert [f for f in peer.frames() if f[0] == wire.WINDOW_UPDATE] == []


def test_exceeding_the_connection_window_ends_the_connection():
    limits = Http2Limits(frame_bytes=2**20, stream_window_bytes=2**20, connection_window_bytes=WINDOW)
    peer = Peer(limits)
    assert fails_with(peer, peer.headers(1) + data_frame(1, bytes(WINDOW + 1))) is Http2Code.FLOW_CONTROL_ERROR


def test_fast_path_enforces_the_connection_window():
    limits = Http2Limits(frame_bytes=2**20, stream_window_bytes=2**20, connection_window_bytes=WINDOW)
    peer = Peer(limits)
    peer.send(peer.request(1) + peer.request(3))
    assert fails_with(peer, peer.request(5, bytes(WINDOW + 1))) is Http2Code.FLOW_CONTROL_ERROR
    assert peer.sink.calls[-1][:2] == ("headers", 5)


def test_exceeding_the_window_of_a_stream_resets_it():
    peer = Peer(Http2Limits(frame_bytes=16384, stream_window_bytes=WINDOW, connection_window_bytes=2**20))
    peer.send(peer.headers(1))
    # With END_STREAM no window is given back; padding counts too.
    peer.connection.streams[1].receive_window = 100
    assert resets(peer, frame(wire.DATA, 9, 1, b"\x20" + bytes(100))) == [Http2Code.FLOW_CONTROL_ERROR]


# Floods


def test_rapid_resets_end_the_connection():
    peer = Peer(Http2Limits(resets_burst=10, resets_per_s=1))
    for i in range(10):
        peer.send(peer.headers(1 + 2 * i) + frame(wire.RST_STREAM, 0, 1 + 2 * i, bytes(4)))
    peer.frames()
    data = peer.headers(21) + frame(wire.RST_STREAM, 0, 21, bytes(4))
    assert fails_with(peer, data) is Http2Code.ENHANCE_YOUR_CALM


def test_resets_at_a_bearable_rate_go_on():
    peer = Peer(Http2Limits(resets_burst=2, resets_per_s=1))
    for i in range(20):
        peer.now_ns += 1_100_000_000
        peer.send(peer.headers(1 + 2 * i) + frame(wire.RST_STREAM, 0, 1 + 2 * i, bytes(4)))
    assert len([call for call in peer.sink.calls if call[0] == "reset"]) == 20


def test_resets_that_the_peer_provokes_count_too():
    peer = Peer(Http2Limits(resets_burst=5, resets_per_s=1))
    ids = range(1, 13, 2)
    data = b"".join(peer.headers(i) + frame(wire.WINDOW_UPDATE, 0, i, bytes(4)) for i in ids)
    with pytest.raises(Http2Error, match="ENHANCE_YOUR_CALM"):
        peer.send(data)


@pytest.mark.parametrize(
    "data", [frame(wire.PING, 0, 0, bytes(8)), settings_frame({3: 1}), frame(wire.DATA, 0, 1, b"")]
)
def test_floods_of_cheap_frames_end_the_connection(data):
    rules = KeepaliveRules(peer_strikes=0)
    peer = Peer(Http2Limits(control_frames_burst=10, control_frames_per_s=1, keepalive=rules))
    peer.send(peer.headers(1))
    with pytest.raises(Http2Error, match="ENHANCE_YOUR_CALM"):
        peer.send(data * 30)


@pytest.mark.parametrize(
    "data",
    [
        wire.window_update(0, 1),
        wire.window_update(1, 1),
        wire.window_update(3, 1),  # closed
        frame(wire.DATA, 0, 1, b"x"),
        frame(wire.DATA, 0, 3, b"x"),
        frame(wire.RST_STREAM, 0, 3, bytes(4)),
    ],
    ids=["connection", "stream", "closed_stream", "data", "data_after_reset", "reset_after_reset"],
)
def test_floods_of_small_frames_end_the_connection(data):
    peer = Peer(Http2Limits(control_frames_burst=10, control_frames_per_s=1))
    peer.send(peer.headers(1) + peer.headers(3))
    peer.connection.output.reset(peer.sink.streams[3], Http2Code.CANCEL)
    peer.send(data * 160)
    with pytest.raises(Http2Error, match="ENHANCE_YOUR_CALM"):
        peer.send(data * 100)


@pytest.mark.parametrize("data", [wire.SETTINGS_ACK, wire.goaway(0, 0)], ids=["settings_ack", "goaway"])
def test_floods_of_frames_without_effect_end_the_connection(data):
    peer = Peer(Http2Limits(control_frames_burst=10, control_frames_per_s=1))
    with pytest.raises(Http2Error, match="ENHANCE_YOUR_CALM"):
        peer.send(data * 30)


def test_streams_beyond_the_limit_are_counted_as_resets():
    peer = Peer(Http2Limits(concurrent_streams=1, resets_burst=5, resets_per_s=1))
    peer.send(b"".join(peer.headers(i) for i in range(1, 13, 2)))
    with pytest.raises(Http2Error, match="reset too often"):
        peer.send(peer.headers(13))


def test_window_updates_with_data_are_no_flood():
    peer = Peer(Http2Limits(control_frames_burst=10, control_frames_per_s=1))
    peer.send(peer.headers(1))
    for _ in range(300):
        peer.connection.output.send_data(peer.sink.streams[1], [bytes(1000)])
        peer.send(wire.window_update(0, 500) * 2 + wire.window_update(1, 500) * 2)


def test_drips_of_a_small_window_earn_no_frames():
    peer = Peer(Http2Limits(control_frames_burst=10, control_frames_per_s=1))
    peer.send(peer.headers(1) + settings_frame({wire.SETTING_INITIAL_WINDOW_SIZE: 0}))
    peer.connection.output.send_data(peer.sink.streams[1], [bytes(100_000)])
    with pytest.raises(Http2Error, match="too many WINDOW_UPDATE"):
        peer.send(wire.window_update(1, 1) * 400)


def test_small_frames_of_large_body_are_allowed():
    peer = Peer(Http2Limits(control_frames_burst=10, control_frames_per_s=1))
    peer.send(peer.headers(1) + frame(wire.DATA, 0, 1, bytes(100)) * 2000)
    assert len(peer.sink.bodies[1]) == 200_000


def test_messages_of_a_stream_earn_frames():
    peer = Peer(Http2Limits(control_frames_burst=10, control_frames_per_s=1))
    peer.send(peer.headers(1))
    for _ in range(1000):
        peer.send(frame(wire.DATA, 0, 1, b"\0\0\0\0\1x"))
        peer.connection.message_count += 1


def test_slices_leave_the_rest_for_later():
    peer = Peer()
    peer.send(peer.headers(1))
    peer.connection.receive_slice(frame(wire.DATA, 0, 1, bytes(991)) * 50, peer.now_ns)
    assert len(peer.sink.bodies[1]) == 17 * 991  # those that begin in the first 16 KiB
    peer.connection.slow_down(True)
    peer.connection.receive_slice(b"", peer.now_ns)
    assert len(peer.sink.bodies[1]) == 20 * 991
    assert peer.connection.has_unread
    peer.connection.receive_data(frame(wire.DATA, 1, 1, b"end"), peer.now_ns)
    assert peer.sink.bodies[1] == bytes(50 * 991) + b"end"
    assert not peer.connection.has_unread


def test_large_frame_is_one_slice():
    peer = Peer()
    peer.connection.receive_slice(peer.headers(1) + data_frame(1, bytes(200_000), end=True), peer.now_ns)
    assert not peer.connection.has_unread
    assert len(peer.sink.bodies[1]) == 200_000


def test_nothing_is_unread_after_an_error():
    peer = Peer()
    with pytest.raises(Http2Error):
        peer.connection.receive_slice(frame(wire.PING, 0, 0, b"") + bytes(100_000), peer.now_ns)
    assert not peer.connection.has_unread


def test_too_many_fields_are_answered_431():
    peer = Peer(Http2Limits(header_fields=10))
    fields = [field for field in GRPC_FIELDS if field[0] != "content-type"]
    peer.send(peer.headers(1, [*fields, *[("accept-encoding", "gzip, deflate")] * 10], end=True))
    (kind, _, stream_id, payload), body, _ = peer.frames()
    assert (kind, stream_id) == (wire.HEADERS, 1)
    assert peer.decoder.decode(payload) == [(":status", "431"), ("content-type", "application/json")]
    assert b"--grpc-max-header-count" in body[3]
    peer.send(peer.request(3, b"x"))
    assert peer.sink.bodies[3] == b"x"


def test_far_too_many_fields_end_the_connection():
    peer = Peer(Http2Limits(header_fields=10))
    assert fails_with(peer, frame(wire.HEADERS, 5, 1, b"\x90" * 161)) is Http2Code.ENHANCE_YOUR_CALM


def test_pings_beside_real_work_are_no_flood():
    peer = Peer(Http2Limits(control_frames_burst=10, control_frames_per_s=1))
    for i in range(100):
        peer.send(peer.request(1 + 2 * i) + frame(wire.PING, 0, 0, bytes(8)))
        peer.connection.output.send_headers(peer.sink.streams[1 + 2 * i], b"\x88", ends_stream=True)
    assert len([call for call in peer.sink.calls if call[0] == "end"]) == 100


def test_frequent_pings_end_connection_as_in_grpc():
    peer = Peer(Http2Limits(keepalive=KeepaliveRules(peer_strikes=2)))
    ping = frame(wire.PING, 0, 0, bytes(8))
    peer.send(ping * 3)
    with pytest.raises(Http2Error, match="ENHANCE_YOUR_CALM"):
        peer.send(ping)
    goaway = peer.frames()[-1]
    assert goaway[0] == wire.GOAWAY
    assert goaway[3].endswith(b"too_many_pings")


def test_pings_during_long_response_are_no_strikes():
    # grpc-go and others measure the bandwidth with a PING per round trip while data flows.
    peer = Peer(Http2Limits(keepalive=KeepaliveRules(peer_strikes=2)))
    peer.send(peer.request(1) + settings_frame({4: 10_000}))
    peer.connection.output.send_answer(peer.sink.streams[1], b"\x88", [bytes(100_000)], 100_000, b"\x88")
    for _ in range(9):
        peer.send(frame(wire.PING, 0, 0, bytes(8)) + wire.window_update(1, 10_000) + wire.window_update(0, 10_000))
        kinds = [kind for kind, _, _, _ in peer.frames()]
        assert wire.PING in kinds
        assert wire.DATA in kinds


def test_answers_to_our_own_pings_are_no_strikes():
    peer = Peer(Http2Limits(keepalive=KeepaliveRules(peer_strikes=1)))
    for _ in range(10):
        peer.connection.ping()
        ((kind, flags, _, payload),) = peer.frames()
        assert (kind, flags) == (wire.PING, 0)
        peer.send(frame(wire.PING, wire.FLAG_ACK, 0, payload))


def test_continuation_flood_ends_the_connection():
    peer = Peer(Http2Limits(continuation_frames=3))
    peer.send(frame(wire.HEADERS, 0, 1, b"\x82"))
    data = frame(wire.CONTINUATION, 0, 1, b"")
    peer.send(data * 3)
    assert fails_with(peer, data) is Http2Code.ENHANCE_YOUR_CALM


def test_header_bomb_ends_the_connection():
    peer = Peer(Http2Limits(header_list_bytes=4000))
    bomb = b"\x40\x01a\x7f\xe9\x06" + b"x" * 1000 + b"\xbe" * 60
    assert fails_with(peer, frame(wire.HEADERS, 5, 1, bomb)) is Http2Code.ENHANCE_YOUR_CALM


# PING, GOAWAY, drain


def test_ping_is_answered_with_its_payload():
    peer = Peer()
    peer.send(frame(wire.PING, 0, 0, b"12345678") + frame(wire.PING, wire.FLAG_ACK, 0, bytes(8)))
    assert peer.frames() == [(wire.PING, wire.FLAG_ACK, 0, b"12345678")]


def test_peer_goaway_is_reported_and_streams_continue():
    peer = Peer()
    peer.send(peer.headers(1) + frame(wire.GOAWAY, 0, 0, bytes(8) + b"bye"))
    peer.send(data_frame(1, b"x", end=True))
    assert [call[0] for call in peer.sink.calls] == ["headers", "goaway", "end"]


def test_drain_sends_goaway_twice_and_finishes_open_streams():
    peer = Peer()
    peer.send(peer.request(1))
    peer.connection.start_drain()
    first, ping = peer.frames()
    assert first[3] == b"\x7f\xff\xff\xff" + bytes(4)
    peer.send(peer.request(3))  # on its way while the first GOAWAY was
    peer.send(frame(wire.PING, wire.FLAG_ACK, 0, ping[3]))
    (second,) = peer.frames()
    assert second[3] == b"\0\0\0\x03" + bytes(4)
    peer.send(peer.request(5) + peer.request(7, b"x"))  # ignored
    assert [call[1] for call in peer.sink.calls if call[0] == "end"] == [1, 3]
    assert peer.frames() == []
    assert not peer.connection.is_drained
    for stream_id in (1, 3):
        peer.connection.output.send_end(peer.sink.streams[stream_id])
    assert peer.connection.is_drained


def test_incomplete_frames_are_dated():
    peer = Peer()
    data = peer.request(1, b"body")
    peer.now_ns = 5
    peer.send(data[:12])
    peer.now_ns = 6
    peer.send(data[12:14])
    assert peer.connection.incomplete_since_ns == 5
    peer.send(data[14:])
    assert peer.connection.incomplete_since_ns == 0

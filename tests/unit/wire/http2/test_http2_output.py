import pytest

from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import Http2Code, Http2Error, frame, window_update
from naiad.wire.http2.headers import encode_fields
from support.http2_peer import Peer, settings_frame

HEADERS = encode_fields([(b":status", b"200")])
TRAILERS = encode_fields([(b"grpc-status", b"0")])


def open_streams(*stream_ids, limits=None):
    peer = Peer(limits)
    for stream_id in stream_ids:
        peer.send(peer.request(stream_id))
    peer.frames()
    return peer, peer.connection.output


def body_bytes(frames, stream_id=1):
    return b"".join(payload for kind, _, i, payload in frames if kind == wire.DATA and i == stream_id)


def test_small_answer_is_three_frames():
    peer, output = open_streams(1)
    output.send_answer(peer.sink.streams[1], HEADERS, [b"ab", b"cd"], 4, TRAILERS)
    assert peer.frames() == [
        (wire.HEADERS, wire.FLAG_END_HEADERS, 1, HEADERS),
        (wire.DATA, 0, 1, b"abcd"),
        (wire.HEADERS, wire.FLAG_END_HEADERS | wire.FLAG_END_STREAM, 1, TRAILERS),
    ]
    assert not peer.connection.streams


def test_early_response_asks_peer_to_stop():
    peer = Peer()
    peer.send(peer.headers(1))
    peer.connection.output.send_answer(peer.sink.streams[1], HEADERS, [b"x"], 1, TRAILERS)
    assert peer.frames()[-1] == (wire.RST_STREAM, 0, 1, bytes(4))
    assert not peer.connection.streams


def test_large_response_waits_for_the_window():
    peer, output = open_streams(1)
    body = bytes(range(256)) * 1000
    output.send_answer(peer.sink.streams[1], HEADERS, [body], len(body), TRAILERS)
    frames = peer.frames()
    assert len(body_bytes(frames)) == 65_535
    assert max(len(payload) for _, _, _, payload in frames) == 16_384
    assert output.queued_bytes == len(body) - 65_535
    peer.send(window_update(0, 10**6))
    assert peer.frames() == []  # the stream's own window is still closed
    peer.send(window_update(1, 10**6))
    rest = peer.frames()
    assert body_bytes(frames) + body_bytes(rest) == body
    assert rest[-1][3] == TRAILERS
    assert output.queued_bytes == 0
    assert not peer.connection.streams


def test_larger_frames_when_the_peer_allows_them():
    peer, output = open_streams(1)
    peer.send(settings_frame({wire.SETTING_MAX_FRAME_SIZE: 50_000}))
    output.send_data(peer.sink.streams[1], [bytes(60_000)])
    assert [len(payload) for kind, _, _, payload in peer.frames() if kind == wire.DATA] == [50_000, 10_000]


def test_initial_window_may_make_stream_windows_negative():
    peer, output = open_streams(1)
    stream = peer.sink.streams[1]
    output.send_data(stream, [bytes(100_000)])
    peer.send(settings_frame({wire.SETTING_INITIAL_WINDOW_SIZE: 10}))
    assert output.window_of(stream) == 10 - 65_535
    peer.frames()
    peer.send(window_update(0, 10**6) + window_update(1, 65_535))
    assert len(body_bytes(peer.frames())) == 10
    peer.send(settings_frame({wire.SETTING_INITIAL_WINDOW_SIZE: 10**6}))
    assert stream.queue is None


def test_initial_window_overflowing_a_stream_is_rejected():
    peer, _ = open_streams(1)
    peer.send(window_update(1, 2**31 - 1 - 65_535))
    with pytest.raises(wire.Http2Error, match="FLOW_CONTROL_ERROR"):
        peer.send(settings_frame({wire.SETTING_INITIAL_WINDOW_SIZE: 65_536}))


def test_streams_take_turns_on_a_shared_window():
    peer, output = open_streams(1, 3)
    peer.send(settings_frame({wire.SETTING_INITIAL_WINDOW_SIZE: 2**30}))
    peer.frames()
    for stream_id in (1, 3):
        output.send_data(peer.sink.streams[stream_id], [bytes(10**6)])
    peer.frames()
    peer.send(window_update(0, 512 * 1024))
    frames = peer.frames()
    assert len(body_bytes(frames, 1)) == len(body_bytes(frames, 3)) == 256 * 1024


def test_small_response_overtakes_blocked_streams():
    peer, output = open_streams(1, 3)
    peer.send(window_update(0, 10**6))
    output.send_data(peer.sink.streams[1], [bytes(100_000)])
    peer.frames()
    output.send_answer(peer.sink.streams[3], HEADERS, [b"x"], 1, TRAILERS)
    assert body_bytes(peer.frames(), 3) == b"x"


def test_reset_drops_the_queue():
    peer, output = open_streams(1)
    output.send_data(peer.sink.streams[1], [bytes(100_000)])
    peer.frames()
    peer.send(frame(wire.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert output.queued_bytes == 0
    peer.send(window_update(0, 10**6))
    assert peer.frames() == []
    assert peer.sink.calls[-1] == ("reset", 1, Http2Code.CANCEL, b"")


def test_paused_output_makes_no_frames_of_queues():
    peer, output = open_streams(1)
    output.is_paused = True
    output.send_data(peer.sink.streams[1], [b"x"])
    assert not output.frames
    output.is_paused = False
    output.pump()
    assert body_bytes(peer.frames()) == b"x"


def test_one_write_is_bounded():
    peer, output = open_streams(1, limits=Http2Limits(write_buffer_bytes=300_000))
    peer.send(settings_frame({wire.SETTING_INITIAL_WINDOW_SIZE: 2**30}) + window_update(0, 2**30))
    peer.frames()
    output.send_data(peer.sink.streams[1], [bytes(10**6)])
    taken = sum(map(len, output.take()))
    assert 300_000 <= taken < 600_000
    output.pump()
    assert output.frames


def test_large_pieces_are_not_copied():
    peer, output = open_streams(1)
    peer.send(settings_frame({4: 2**30, 5: 2**20}) + window_update(0, 2**30))
    peer.frames()
    body = bytes(10**6)
    output.send_answer(peer.sink.streams[1], HEADERS, [b"\0\0\0\0\0", body], len(body) + 5, TRAILERS)
    pieces = output.take()
    assert [piece is body for piece in pieces] == [False, True, False]


def test_smaller_peer_table_is_acknowledged_in_next_block():
    peer, output = open_streams(1, 3)
    peer.send(settings_frame({wire.SETTING_HEADER_TABLE_SIZE: 0}))
    peer.frames()
    for stream_id in (1, 3):
        output.send_answer(peer.sink.streams[stream_id], HEADERS, [b"x"], 1, TRAILERS)
    blocks = [payload for kind, _, _, payload in peer.frames() if kind == wire.HEADERS]
    assert blocks == [b"\x20" + HEADERS, TRAILERS, HEADERS, TRAILERS]


def test_large_header_block_is_split():
    peer, output = open_streams(1)
    block = encode_fields([(b"x", b"y" * 40_000)])
    output.send_headers(peer.sink.streams[1], block, ends_stream=True)
    frames = peer.frames()
    assert [(kind, flags) for kind, flags, _, _ in frames] == [(1, 1), (9, 0), (9, 4)]
    assert b"".join(payload for _, _, _, payload in frames) == block


def test_end_without_trailers():
    peer, output = open_streams(1)
    output.send_end(peer.sink.streams[1])
    assert peer.frames() == [(wire.DATA, wire.FLAG_END_STREAM, 1, b"")]


class UntouchableStreams(dict):
    """A table of streams that nothing may walk."""

    def __iter__(self):
        raise AssertionError("the streams were walked")

    values = items = __iter__


def test_initial_window_does_not_walk_streams(monkeypatch):
    peer, output = open_streams(*range(1, 201, 2))
    monkeypatch.setattr(output, "_streams", UntouchableStreams(output._streams))
    for size in (0, 10, 2**20, 2**31 - 1):
        assert output.set_initial_window(size) == 0
    stream = peer.sink.streams[1]
    assert output.window_of(stream) == 2**31 - 1


def test_only_the_last_initial_window_counts(monkeypatch):
    peer, output = open_streams(1)
    applied = []
    monkeypatch.setattr(type(output), "set_initial_window", lambda self, size: applied.append(size) or 0)
    payload = b"".join(wire.SETTING.pack(wire.SETTING_INITIAL_WINDOW_SIZE, size) for size in range(64))
    peer.send(frame(wire.SETTINGS, 0, 0, payload))
    assert applied == [63]


def test_illegal_value_before_legal_one_is_rejected():
    peer, _ = open_streams(1)
    payload = wire.SETTING.pack(wire.SETTING_INITIAL_WINDOW_SIZE, 2**31) + wire.SETTING.pack(4, 1)
    with pytest.raises(Http2Error, match="FLOW_CONTROL_ERROR"):
        peer.send(frame(wire.SETTINGS, 0, 0, payload))


def test_initial_window_up_to_the_limit_is_legal():
    peer, output = open_streams(1, 3)
    peer.send(window_update(3, 2**30))
    output.set_initial_window(2**30 - 1)
    with pytest.raises(Http2Error, match="a stream's window exceeds"):
        output.set_initial_window(2**30)


def test_window_of_a_closed_stream_overflows_nothing():
    peer, output = open_streams(1, 3)
    peer.send(window_update(3, 2**30) + frame(wire.RST_STREAM, 0, 3, bytes(4)))
    output.set_initial_window(2**31 - 1)
    assert output.peer_window == 2**31 - 1


def test_narrower_window_stops_streams_that_were_ready():
    peer, output = open_streams(1)
    stream = peer.sink.streams[1]
    output.is_paused = True
    output.send_data(stream, [bytes(100)])
    output.set_initial_window(0)
    output.is_paused = False
    output.pump()
    assert peer.frames() == []
    assert output.set_initial_window(60) == 1
    output.pump()
    assert len(body_bytes(peer.frames())) == 60


def test_streams_set_going_by_a_setting_are_counted():
    peer, output = open_streams(1, 3, 5, limits=Http2Limits(control_frames_burst=100, control_frames_per_s=1))
    output.set_initial_window(0)
    for stream in peer.sink.streams.values():
        output.send_data(stream, [bytes(10_000)])
    sizes = [settings_frame({wire.SETTING_INITIAL_WINDOW_SIZE: size}) for size in (1, 0)]
    with pytest.raises(Http2Error, match="too many SETTINGS"):
        peer.send(b"".join(sizes) * 48)  # fewer than the burst

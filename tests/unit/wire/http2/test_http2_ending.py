"""Connections end: drain, age, keepalive, time limits, the last response."""

import pytest

from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import frame, window_update
from naiad.wire.http2.keepalive import KeepaliveRules
from support.http2_peer import data_frame, settings_frame
from support.http2_scene import SECOND_NS, Scene, framed, start_ns


@pytest.fixture
def scene():
    return Scene().open()


def test_draining_reaches_streaming_calls(scene):
    scene.send(scene.request(1, b"a", "/s/Keep") + scene.headers(3, "/s/Stream") + data_frame(3, framed(b"a")))
    scene.server.drain()
    stream = scene.service.calls[1]
    assert scene.service.draining == [stream]
    scene.server.sweep(1)
    assert scene.service.draining == [stream] * 2
    stream.finish(14)
    scene.server.sweep(2)
    assert scene.service.draining == [stream] * 2


def test_peer_that_says_nothing_is_closed():
    scene = Scene(Http2Limits(preface_timeout_s=5))
    scene.server.sweep(start_ns(scene) + 4 * SECOND_NS)
    assert not scene.transport.is_closed
    scene.server.sweep(start_ns(scene) + 5 * SECOND_NS)
    assert scene.transport.is_closed


def test_idle_connection_stays_open(scene):
    scene.server.sweep(start_ns(scene) + 10**6 * SECOND_NS)
    assert not scene.transport.is_closed


def test_frame_that_is_never_completed_closes_the_connection(scene):
    scene.send(scene.headers(1)[:-1])
    scene.server.sweep(start_ns(scene) + 40 * SECOND_NS)
    goaway = next(payload for kind, _, _, payload in scene.frames() if kind == wire.GOAWAY)
    assert goaway[4:] == b"\0\0\0\x0ba frame was not completed in time"  # ENHANCE_YOUR_CALM
    assert scene.transport.is_closed


def test_stalled_body_ends_call_not_connection(scene):
    scene.send(scene.headers(1) + data_frame(1, framed(b"abc")[:6]))
    scene.send(scene.headers(3, "/s/Stream"))
    scene.server.sweep(start_ns(scene) + 200 * SECOND_NS)
    answers = scene.answers()
    assert answers[1][0]["grpc-status"] == "4"
    assert 3 not in answers
    assert not scene.transport.is_closed


def test_body_that_gets_no_window_is_not_late():
    scene = Scene(Http2Limits(outstanding_bytes=100_000)).open()
    scene.send(scene.headers(1, "/s/Keep") + data_frame(1, framed(bytes(200_000)), end=True))
    scene.send(scene.headers(3) + data_frame(3, framed(b"abc")[:6]))
    begin_ns = start_ns(scene)
    scene.server.sweep(begin_ns + 200 * SECOND_NS)
    scene.service.calls[0].respond([b""])
    scene.server.sweep(begin_ns + 201 * SECOND_NS)
    scene.send(data_frame(3, framed(b"abc")[6:], end=True))
    assert scene.answers()[3][0]["grpc-status"] == "0"


def test_paused_reading_does_not_make_frame_late(scene):
    scene.send(scene.headers(1)[:-1])
    scene.protocol.pause_writing()
    scene.server.sweep(start_ns(scene) + 40 * SECOND_NS)
    scene.protocol.resume_writing()
    scene.server.sweep(start_ns(scene) + 41 * SECOND_NS)
    assert not scene.transport.is_closed
    scene.server.sweep(start_ns(scene) + 80 * SECOND_NS)
    assert scene.transport.is_closed


def test_unread_ping_reply_does_not_count_as_missing():
    rules = KeepaliveRules(time_s=10, timeout_s=5, permits_without_calls=True)
    scene = Scene(Http2Limits(keepalive=rules)).open()
    begin_ns = start_ns(scene)
    scene.server.sweep(begin_ns + 11 * SECOND_NS)
    assert [kind for kind, _, _, _ in scene.frames()] == [wire.PING]
    scene.protocol.pause_writing()
    scene.server.sweep(begin_ns + 30 * SECOND_NS)
    scene.protocol.resume_writing()
    scene.server.sweep(begin_ns + 31 * SECOND_NS)
    assert not scene.transport.is_aborted


def test_responses_waiting_on_slow_connection_are_kept(scene):
    scene.send(settings_frame({4: 2**31 - 1}))
    for stream_id in (1, 3, 5, 7):
        scene.send(scene.request(stream_id, b"a", "/s/Keep"))
        scene.service.calls[-1].respond([bytes(10**6)])
    begin_ns = start_ns(scene)
    for turn in range(20):
        scene.server.sweep(begin_ns + turn * 30 * SECOND_NS)
        scene.send(window_update(0, 40_000))  # more than a KiB a second
    kinds = {kind for kind, _, _, _ in scene.frames()}
    assert wire.RST_STREAM not in kinds
    for turn in range(20, 24):
        scene.server.sweep(begin_ns + turn * 30 * SECOND_NS)
    assert [kind for kind, _, _, _ in scene.frames()].count(wire.RST_STREAM) == 4


def test_unread_response_is_dropped(scene):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.service.calls[0].respond([bytes(10**6)])
    begin_ns = start_ns(scene)
    scene.server.sweep(begin_ns + SECOND_NS)
    scene.send(window_update(0, 10) + window_update(1, 10))  # progress
    scene.server.sweep(begin_ns + 2 * SECOND_NS)
    scene.server.sweep(begin_ns + 61 * SECOND_NS)
    assert scene.protocol.output.queued_bytes > 0
    scene.server.sweep(begin_ns + 62 * SECOND_NS)
    assert scene.protocol.output.queued_bytes == 0
    assert scene.frames()[-1][0] == wire.RST_STREAM


def test_socket_that_takes_nothing_is_dropped(scene):
    scene.transport.unsent_bytes = 1000
    begin_ns = start_ns(scene)
    scene.server.sweep(begin_ns)
    scene.transport.unsent_bytes = 999
    scene.server.sweep(begin_ns + 60 * SECOND_NS)
    assert not scene.transport.is_aborted
    scene.server.sweep(begin_ns + 120 * SECOND_NS)
    assert scene.transport.is_aborted


def test_drain_lets_calls_finish(scene):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.server.drain()
    first, ping = scene.frames()
    assert first[0] == wire.GOAWAY
    scene.send(frame(wire.PING, wire.FLAG_ACK, 0, ping[3]))
    assert not scene.transport.is_closed
    scene.service.calls[0].respond([b"last"])
    assert scene.answers()[1][1] == framed(b"last")
    assert scene.transport.is_ended


def test_drain_does_not_wait_for_ping_reply(scene):
    scene.server.drain()
    for _ in range(2):
        scene.server.sweep(start_ns(scene))
    assert scene.transport.is_closed


def test_goaway_of_the_peer_closes_after_its_calls(scene):
    scene.send(scene.request(1, b"a", "/s/Keep") + frame(wire.GOAWAY, 0, 0, bytes(8)))
    assert not scene.transport.is_closed
    scene.service.calls[0].respond([b"x"])
    scene.frames()
    assert scene.transport.is_ended


def test_connection_reads_after_last_response_until_peer_closes(scene):
    """Closed at once, it would reset on the peer's next WINDOW_UPDATE, which discards the response."""
    scene.send(scene.request(1, b"a", "/s/Keep") + frame(wire.GOAWAY, 0, 0, bytes(8)))
    scene.service.calls[0].respond([b"x"])
    assert scene.answers()[1][1] == framed(b"x")
    scene.transport.unsent_bytes = 1000
    begin_ns = start_ns(scene)
    for second in range(5):
        scene.send(window_update(0, 10) + frame(wire.PING, 0, 0, bytes(8)) + scene.request(3, b"late"))
        scene.transport.unsent_bytes -= 1
        scene.server.sweep(begin_ns + second * SECOND_NS)
    assert not scene.transport.is_closed
    scene.transport.unsent_bytes = 0
    scene.server.sweep(begin_ns + 6 * SECOND_NS)
    assert not scene.transport.is_closed
    scene.server.sweep(begin_ns + 7 * SECOND_NS)
    assert scene.transport.is_closed
    assert scene.frames() == []  # no write is allowed after the end


@pytest.mark.parametrize(("idle_s", "closes_at_once"), [(1, False), (4, False), (7, True)])
def test_peer_gets_time_to_read_recent_response(scene, idle_s, closes_at_once):
    """Also after a sweep of the connections: the age check begins with one."""
    scene.send(scene.request(1, b"a"))
    for second in range(1, idle_s + 1):
        scene.server.sweep(start_ns(scene) + second * SECOND_NS)
    scene.send(frame(wire.GOAWAY, 0, 0, bytes(8)))
    assert (scene.transport.is_closed, scene.transport.is_ended) == (closes_at_once, not closes_at_once)


def test_connection_stays_open_while_kernel_has_data(scene, monkeypatch):
    undelivered = 1000
    for module in ("connection", "flow"):
        monkeypatch.setattr(f"naiad.frontend.http2.{module}.undelivered_bytes", lambda transport: undelivered)
    scene.send(scene.request(1, b"a"))
    begin_ns = start_ns(scene)
    for second in range(1, 8):
        scene.server.sweep(begin_ns + second * SECOND_NS)
    scene.send(frame(wire.GOAWAY, 0, 0, bytes(8)))
    for second in range(8, 20):
        undelivered -= 1
        scene.server.sweep(begin_ns + second * SECOND_NS)
    assert not scene.transport.is_closed
    undelivered = 0
    for second in (20, 21):
        scene.server.sweep(begin_ns + second * SECOND_NS)
    assert scene.transport.is_closed
    assert not scene.transport.is_aborted


def test_peer_not_reading_last_response_is_dropped(scene):
    scene.send(scene.request(1, b"a", "/s/Keep") + frame(wire.GOAWAY, 0, 0, bytes(8)))
    scene.service.calls[0].respond([b"x"])
    scene.frames()
    scene.transport.unsent_bytes = 1000
    for second in (0, 30, 61):
        scene.server.sweep(start_ns(scene) + second * SECOND_NS)
    assert scene.transport.is_aborted


def test_silent_peer_gets_ping_and_is_dropped():
    scene = Scene(Http2Limits(keepalive=KeepaliveRules(time_s=10, timeout_s=5, permits_without_calls=True))).open()
    heard_ns = scene.protocol._flow.arrival_ns
    scene.protocol.sweep(heard_ns + 10 * SECOND_NS)
    ((kind, flags, _, _),) = scene.frames()
    assert (kind, flags) == (wire.PING, 0)
    scene.protocol.sweep(heard_ns + 15 * SECOND_NS)
    assert scene.transport.is_aborted


def test_old_connection_gets_goaway_and_closes_after_response():
    scene = Scene(Http2Limits(keepalive=KeepaliveRules(age_s=10))).open()
    scene.send(scene.request(1, b"x", "/s/Later"))
    begin_ns = scene.protocol._flow.arrival_ns
    scene.protocol.sweep(begin_ns + 12 * SECOND_NS)
    assert [kind for kind, *_ in scene.frames()] == [wire.GOAWAY, wire.PING]
    scene.protocol.sweep(begin_ns + 13 * SECOND_NS)
    assert [kind for kind, *_ in scene.frames()] == [wire.GOAWAY]
    assert not scene.transport.is_closed
    scene.service.calls[0].respond((b"x",))
    assert scene.answers()[1][1] == framed(b"x")
    assert scene.transport.is_ended
    assert not scene.transport.is_aborted


def test_calls_of_old_connection_end_after_grace():
    scene = Scene(Http2Limits(keepalive=KeepaliveRules(age_s=10, age_grace_s=5))).open()
    scene.send(scene.request(1, b"x", "/s/Later"))
    begin_ns = scene.protocol._flow.arrival_ns
    scene.protocol.sweep(begin_ns + 12 * SECOND_NS)
    assert not scene.transport.is_closed
    scene.protocol.sweep(begin_ns + 17 * SECOND_NS)
    assert scene.transport.is_aborted


def test_streaming_calls_are_left_alone_by_age():
    scene = Scene(Http2Limits(keepalive=KeepaliveRules(age_s=10))).open()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"x")))
    scene.service.stream_draining = lambda call: pytest.fail("an old connection is no draining server")
    for second in (12, 13, 14):
        scene.protocol.sweep(scene.protocol._flow.arrival_ns + second * SECOND_NS)
    assert not scene.transport.is_closed


def test_body_below_minimum_rate_ends_call(scene):
    """One byte every ten seconds is progress, and still uses memory for hours."""
    scene.send(scene.headers(1, "/s/Keep") + data_frame(1, framed(bytes(1_000_000))[:1000]))
    begin_ns = start_ns(scene)
    for second in range(10, 60, 10):
        scene.send(data_frame(1, b"x"))
        scene.server.sweep(begin_ns + second * SECOND_NS)
    assert 1 not in scene.answers()
    scene.server.sweep(begin_ns + 61 * SECOND_NS)
    assert scene.status(1)[0] == "4"
    assert not scene.transport.is_closed


def test_slow_stream_message_ends_call(scene):
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"whole")))
    scene.send(scene.headers(3, "/s/Stream") + data_frame(3, framed(b"part")[:6]))
    begin_ns = start_ns(scene)
    for second in range(0, 70, 10):
        scene.server.sweep(begin_ns + second * SECOND_NS)
    answers = scene.answers()
    assert answers[3][0]["grpc-status"] == "4"
    assert 1 not in answers


def test_stream_with_tiny_window_updates_is_reset(scene):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.service.calls[0].send([bytes(10**6)])
    begin_ns = start_ns(scene)
    for second in range(0, 60, 15):
        scene.server.sweep(begin_ns + second * SECOND_NS)
        scene.send(window_update(0, 10) + window_update(1, 1))
    assert wire.RST_STREAM not in {kind for kind, _, _, _ in scene.frames()}
    scene.server.sweep(begin_ns + 61 * SECOND_NS)
    assert scene.frames()[-1][0] == wire.RST_STREAM
    assert len(scene.service.cancelled) == 1
    assert not scene.transport.is_closed


def test_stream_read_at_minimum_rate_continues(scene):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.service.calls[0].send([bytes(10**6)])
    begin_ns = start_ns(scene)
    for second in range(0, 300, 10):
        scene.server.sweep(begin_ns + second * SECOND_NS)
        scene.send(window_update(0, 11_000) + window_update(1, 11_000))
    assert wire.RST_STREAM not in {kind for kind, _, _, _ in scene.frames()}


def test_tiny_connection_window_updates_reset_calls(scene):
    scene.send(settings_frame({4: 2**31 - 1}) + scene.request(1, b"a", "/s/Keep"))
    scene.service.calls[0].send([bytes(10**6)])
    begin_ns = start_ns(scene)
    for second in range(0, 60, 15):
        scene.server.sweep(begin_ns + second * SECOND_NS)
        scene.send(window_update(0, 1))
    scene.server.sweep(begin_ns + 61 * SECOND_NS)
    assert scene.frames()[-1][0] == wire.RST_STREAM
    assert len(scene.service.cancelled) == 1

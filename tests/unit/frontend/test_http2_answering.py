"""Responses leave with one write, wait for the peer, or are dropped."""

import pytest

from naiad.frontend.context import CancelReason
from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import frame, window_update
from support.http2_peer import data_frame, settings_frame
from support.http2_scene import SECOND_NS, Scene, framed, held_scene


@pytest.fixture
def scene():
    return Scene().open()


def test_responses_of_one_callback_leave_with_one_write(scene):
    scene.send(scene.request(1, b"a"))
    scene.send(scene.request(3, b"a"))
    scene.frames()
    scene.send(b"".join(scene.request(i, b"a") for i in (5, 7, 9)))
    assert len(scene.transport.written) == 1
    assert sorted(scene.answers()) == [5, 7, 9]


def test_responses_from_later_callbacks_leave_with_one_write(scene):
    scene.send(scene.request(1, b"a", "/s/Keep") + scene.request(3, b"b", "/s/Keep"))
    for call in scene.service.calls:
        call.respond([b"later"])
    assert scene.transport.written == []
    assert len(scene.loop.soon) == 1
    scene.loop.run_soon()
    assert len(scene.transport.written) == 1


def test_response_to_the_only_call_leaves_at_once(scene):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.service.calls[0].respond([b"later"])
    assert len(scene.transport.written) == 1
    assert scene.loop.soon == []
    assert scene.answers()[1][1] == framed(b"later")


def test_second_response_does_nothing(scene):
    scene.send(scene.request(1, b"a"))
    (call,) = scene.service.calls
    scene.frames()
    call.respond([b"again"])
    call.send([b"again"])
    call.finish(0)
    assert scene.frames() == []


def test_failed_call_is_trailers_only(scene):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.service.calls[0].finish(3, "bad: ü%", ((b"x-more", b"1"),))
    (headers,) = scene.frames()
    assert headers[1] == wire.FLAG_END_HEADERS | wire.FLAG_END_STREAM
    fields = dict(scene.decoder.decode(headers[3]))
    assert fields["grpc-status"] == "3"
    assert fields["grpc-message"] == "bad: %C3%BC%25"
    assert fields["x-more"] == "1"


def test_defect_of_the_service_costs_one_call(scene, caplog):
    for stream_id in (1, 3, 5):
        scene.send(scene.request(stream_id, b"x", "/s/Broken"))
        assert scene.status(stream_id)[0] == "13"
    scene.send(scene.request(7, b"x"))
    assert scene.answers()[7][1] == framed(b"x")
    assert "ZeroDivisionError" in caplog.text


def test_unread_call_reports_queued_bytes_and_ends():
    scene = Scene(Http2Limits(queued_bytes=100_000)).open()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    (call,) = scene.service.calls
    call.send([bytes(100_000)])
    assert 0 < call.queued_bytes < 100_000
    call.send([bytes(100_000)])
    call.send([bytes(100_000)])
    assert scene.service.cancelled == [(call, CancelReason.DROPPED)]
    assert scene.frames()[-1][0] == wire.RST_STREAM
    assert scene.protocol.output.queued_bytes == 0


def test_paused_call_is_notified_when_bytes_are_sent():
    scene = held_scene()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    (call,) = scene.service.calls
    call.send([bytes(100_000)])
    scene.frames()
    queued_bytes = call.queued_bytes
    assert queued_bytes > 0
    scene.service.writable.clear()
    scene.send(window_update(0, 100_000) + window_update(1, 100_000))
    assert scene.service.writable == [(call, 0)]


def test_paused_call_is_notified_during_other_notifications():
    """A response sent during a notification may leave at once, which needs another notification."""
    scene = held_scene()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    (call,) = scene.service.calls
    queued = []

    def writable(call):
        queued.append(call.queued_bytes)
        if len(queued) == 1:
            call.send((bytes(10_000_000),))  # more than one delivery to the transport

    scene.service.stream_writable = writable
    scene.send(settings_frame({4: 2**31 - 1}) + window_update(0, 2**30))
    assert queued == [0, 0]
    assert call.queued_bytes == 0


def test_reset_cancels_the_call(scene):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.send(frame(wire.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert scene.service.cancelled == [(call, CancelReason.CANCELLED) for call in scene.service.calls]
    scene.service.calls[0].respond([b"late"])
    assert scene.frames() == []


def test_lost_connection_cancels_all_calls(scene):
    scene.send(scene.request(1, b"a", "/s/Keep") + scene.request(3, b"a", "/s/Keep"))
    scene.protocol.connection_lost(None)
    assert scene.service.cancelled == [(call, CancelReason.DISCONNECTED) for call in scene.service.calls]
    scene.service.calls[0].respond([b"late"])
    scene.loop.run_soon()
    assert scene.server.connection_count == 0


@pytest.mark.parametrize("action", ["resume", "pause", "deliver_more"])
def test_cancelled_call_may_act_on_another(action, caplog):
    """The end of a call lets others go on, for example the next request of an instance."""
    scene = held_scene()
    messages = framed(b"a") + framed(b"b")
    scene.send(b"".join(scene.headers(i, "/s/Stream") + data_frame(i, messages) for i in (1, 3, 5)))
    first, second, third = scene.service.calls
    for call, other in ((first, second), (second, third), (third, first)):
        if action == "deliver_more":
            call.on_cancel = lambda why, other=other: other.send([bytes(1000)])
        else:
            call.on_cancel = lambda why, other=other: getattr(other, action)()
    scene.protocol.connection_lost(None)
    assert "Traceback" not in caplog.text
    assert scene.service.messages == [b"a", b"a", b"a"]


def test_failing_cancel_is_logged(scene, caplog):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.service.calls[0].on_cancel = lambda why: 1 // 0
    scene.send(frame(wire.RST_STREAM, 0, 1, bytes(4)))
    assert "ZeroDivisionError" in caplog.text
    assert not scene.transport.is_closed


def test_deadline_ends_the_call_and_cancels_it(scene, monkeypatch):
    for stream_id in (1, 3):
        scene.send(scene.request(stream_id, b"a", "/s/Keep", ("grpc-timeout", "2S")))
    scene.send(scene.request(5, b"a", "/s/Keep"))
    first, second, third = scene.service.calls
    assert first.deadline_ns - first.arrival_ns == 2 * SECOND_NS
    assert third.deadline_ns == 0
    timers = [timer for timer in scene.loop.timers if timer.delay_s == 2.0]
    assert len(timers) == 1  # one for both
    deadlines = scene.protocol._calls._deadlines
    deadlines._now_ns = lambda: first.deadline_ns
    second.deadline_ns = first.deadline_ns + SECOND_NS
    timers[0].callback()
    assert scene.status(1) == ("4", "Deadline Exceeded")
    assert scene.service.cancelled == [(first, CancelReason.DEADLINE)]
    assert scene.loop.timers[-1].delay_s == 1.0  # now for the second
    second.respond([b"in time"])
    scene.frames()
    deadlines._now_ns = lambda: second.deadline_ns
    count = len(scene.loop.timers)
    scene.loop.timers[-1].callback()
    assert scene.frames() == []
    assert len(scene.loop.timers) == count


def test_shorter_deadline_rearms_the_timer(scene):
    scene.send(scene.request(1, b"a", "/s/Keep", ("grpc-timeout", "9S")))
    scene.send(scene.request(3, b"a", "/s/Keep", ("grpc-timeout", "1S")))
    long, short = scene.loop.timers[-2:]
    assert long.is_cancelled
    assert short.delay_s == 1.0


def connection_updates(frames):
    return [frame for frame in frames if frame[0] == wire.WINDOW_UPDATE and frame[2] == 0]


def test_waiting_large_messages_stop_window_updates():
    scene = Scene(Http2Limits(outstanding_bytes=190_000, connection_window_bytes=500_000)).open()
    for stream_id in (1, 3):
        scene.send(scene.headers(stream_id, "/s/Keep") + data_frame(stream_id, framed(bytes(100_000)), end=True))
    scene.send(scene.headers(7, "/s/Keep") + data_frame(7, framed(bytes(60_000)), end=True))
    assert connection_updates(scene.frames()) == []
    # Frames of the peer are processed meanwhile.
    scene.send(frame(wire.PING, 0, 0, bytes(8)) + scene.request(9, b"small"))
    assert wire.PING in {kind for kind, _, _, _ in scene.frames()}
    scene.send(frame(wire.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert scene.service.cancelled == [(scene.service.calls[0], CancelReason.CANCELLED)]
    assert len(connection_updates(scene.frames())) == 1
    scene.service.calls[1].finish(13)
    assert scene.protocol._flow.reserved_bytes == 60_000


def test_window_of_waiting_messages_returns_with_response():
    scene = Scene(Http2Limits(outstanding_bytes=190_000, connection_window_bytes=500_000)).open()
    for stream_id in (1, 3):
        scene.send(scene.headers(stream_id, "/s/Keep") + data_frame(stream_id, framed(bytes(100_000)), end=True))
    scene.send(scene.headers(7, "/s/Keep") + data_frame(7, framed(bytes(60_000)), end=True))
    assert connection_updates(scene.frames()) == []
    scene.service.calls[0].respond([b""])
    assert len(connection_updates(scene.frames())) == 1


def paused_scene():
    """A client with windows of 64 KiB that has not read a response of 100 KB."""
    scene = Scene(Http2Limits(queued_bytes=10_000)).open()
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.service.calls[0].respond([bytes(100_000)])
    scene.frames()
    return scene


READ = window_update(0, 10**6) + window_update(1, 10**6)


@pytest.mark.parametrize("size", [3, 100_000])
def test_requests_wait_while_peer_does_not_read(size):
    scene = paused_scene()
    message = bytes(range(256)) * (size // 256) + b"end"
    for stream_id in (3, 5):
        scene.send(scene.headers(stream_id) + data_frame(stream_id, framed(message), end=True))
    assert scene.frames() == []
    scene.send(READ + window_update(3, 10**6) + window_update(5, 10**6))
    assert scene.service.messages == [b"a", message, message]
    answers = scene.answers()
    assert [answers[stream_id][1] for stream_id in (3, 5)] == [framed(message)] * 2
    assert scene.protocol._flow.reserved_bytes == 0


def test_waiting_requests_are_served_after_cancelled_response():
    scene = paused_scene()
    scene.send(scene.request(3, b"b"))
    scene.send(frame(wire.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert scene.service.messages == [b"a", b"b"]
    scene.send(window_update(0, 10))
    assert scene.answers()[3][1] == framed(b"b")


def test_waiting_request_is_not_served_after_reset():
    scene = paused_scene()
    scene.send(scene.request(3, b"b") + frame(wire.RST_STREAM, 0, 3, b"\0\0\0\x08"))
    scene.send(READ)
    assert scene.service.messages == [b"a"]


def test_waiting_request_is_not_served_after_deadline(monkeypatch):
    scene = paused_scene()
    scene.send(scene.request(3, b"b", "/s/Keep", ("grpc-timeout", "1S")))
    monkeypatch.setattr(scene.protocol._calls._deadlines, "_now_ns", lambda: 1 << 62)
    scene.loop.timers[-1].callback()
    assert scene.status(3)[0] == "4"
    scene.send(READ)
    assert scene.service.messages == [b"a"]


def test_requests_that_wait_are_forgotten_with_their_connection():
    scene = paused_scene()
    scene.send(scene.request(3, b"b"))
    scene.protocol.connection_lost(None)
    assert scene.service.messages == [b"a"]
    assert not scene.protocol._flow.waiting


def test_large_response_continues_with_window_update(scene):
    scene.send(settings_frame({4: 2**31 - 1, 5: 2**20}) + window_update(0, 2**30))
    scene.send(scene.request(1, b"a", "/s/Keep"))
    body = bytes(10 * 2**20)
    scene.service.calls[0].respond([body])
    assert scene.answers()[1][1] == framed(body)

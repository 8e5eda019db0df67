"""Frames become calls and messages; streaming calls are paused."""

import gc
import sys

import pytest

from naiad.frontend.context import CancelReason
from naiad.frontend.http2.grpc_request import PausedBody
from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import frame
from support.http2_peer import data_frame
from support.http2_scene import Scene, framed, held_scene


@pytest.fixture
def scene():
    return Scene().open()


def test_unary_call_is_answered_with_status_ok(scene):
    for stream_id in (1, 3, 5):  # by the slow path, then by the fast path
        scene.send(scene.request(stream_id, b"hello"))
        fields, body = scene.answers()[stream_id]
        assert fields[":status"] == "200"
        assert fields["content-type"] == "application/grpc"
        assert fields["grpc-status"] == "0"
        assert body == framed(b"hello")


def test_call_has_path_metadata_and_arrival(scene):
    scene.send(scene.request(1, b"", "/s/Keep", ("x-request", "7")))
    (call,) = scene.service.calls
    assert call.path == "/s/Keep"
    assert (b"x-request", b"7") in call.metadata
    assert not [name for name, _ in call.metadata if name.startswith(b":")]
    assert call.arrival_ns > 0
    assert call.deadline_ns == 0


def test_message_over_several_frames(scene):
    scene.send(scene.headers(1) + data_frame(1, framed(b"hello")[:7]))
    scene.send(data_frame(1, framed(b"hello")[7:]) + data_frame(1, b"", end=True))
    assert scene.answers()[1][1] == framed(b"hello")


@pytest.mark.parametrize("body", [framed(b"a") + framed(b"b"), b""])
def test_unary_call_needs_exactly_one_message(scene, body):
    scene.send(scene.headers(1) + data_frame(1, body, end=True))
    assert scene.status(1)[0] == "12"
    assert scene.service.calls == []


def test_message_cut_short_is_rejected(scene):
    scene.send(scene.headers(1) + data_frame(1, framed(b"hello")[:-1], end=True))
    assert scene.status(1)[0] == "13"


def test_oversized_message_is_rejected_before_arrival():
    scene = Scene(Http2Limits(message_bytes=10)).open()
    scene.send(scene.headers(1) + data_frame(1, framed(bytes(11))[:6]))
    frames = scene.frames()
    assert [kind for kind, _, _, _ in frames] == [wire.HEADERS, wire.RST_STREAM]
    assert dict(scene.decoder.decode(frames[0][3]))["grpc-status"] == "8"
    scene.send(data_frame(1, bytes(11), end=True) + scene.request(3, b"x" * 10))
    assert scene.answers()[3][1] == framed(b"x" * 10)


def test_short_way_keeps_the_limit():
    scene = Scene(Http2Limits(message_bytes=10)).open()
    for stream_id in (1, 3, 5):
        scene.send(scene.request(stream_id, bytes(11)))
        assert scene.status(stream_id)[0] == "8"


def test_incomplete_messages_of_a_connection_are_bounded():
    scene = Scene(Http2Limits(collecting_bytes=100)).open()
    scene.send(scene.headers(1) + data_frame(1, framed(bytes(60))))  # complete, but its stream has not ended
    scene.send(scene.headers(3) + data_frame(3, framed(bytes(200))[:60]))
    assert scene.status(3)[0] == "8"
    scene.send(data_frame(1, b"", end=True))
    assert scene.answers()[1][1] == framed(bytes(60))


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        (("grpc-encoding", "snappy"), "12", "gzip"),
        (("grpc-timeout", "1x"), "13", "grpc-timeout"),
    ],
)
def test_bad_grpc_fields_are_rejected(scene, more, status, words):
    for stream_id in (1, 3, 5):
        scene.send(scene.request(stream_id, b"x", "/s/Echo", more))
        seen, message = scene.status(stream_id)
        assert seen == status
        assert words in message


def test_other_content_is_rejected_with_415(scene):
    block = scene.encoder.encode([(":method", "GET"), (":scheme", "http"), (":path", "/v2"), (":authority", "x")])
    scene.send(frame(wire.HEADERS, 5, 1, block))
    fields, body = scene.answers()[1]
    assert fields[":status"] == "415"
    assert b"gRPC" in body
    assert int(fields["content-length"]) == len(body)


def test_streaming_call_gets_its_messages_one_by_one(scene):
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a") + framed(b"b")[:4]))
    assert scene.service.messages == [b"a"]
    (call,) = scene.service.calls
    call.send([b"one"])
    call.send([b"t", b"wo"])
    assert scene.answers()[1][1] == framed(b"one") + framed(b"two")
    scene.send(data_frame(1, framed(b"b")[4:], end=True))
    assert scene.service.messages == [b"a", b"b"]
    assert scene.service.half_closed == 1
    call.finish(0)
    assert scene.status(1) == ("0", None)


def test_streaming_call_in_one_piece(scene):
    for stream_id in (1, 3, 5):
        scene.send(scene.request(stream_id, b"m", "/s/Stream"))
    assert scene.service.messages == [b"m"] * 3
    assert scene.service.half_closed == 3


def test_paused_call_gets_messages_on_resume():
    scene = held_scene()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a") + framed(b"b") + framed(b"c")[:3]))
    scene.send(data_frame(1, framed(b"c")[3:] + framed(b"d"), end=True))
    assert scene.service.messages == [b"a"]
    (call,) = scene.service.calls
    for messages in ([b"a", b"b"], [b"a", b"b", b"c"], [b"a", b"b", b"c", b"d"]):
        assert scene.service.half_closed == 0
        call.resume()
        assert scene.service.messages == messages
    call.resume()
    assert scene.service.half_closed == 1
    assert call.arrival_ns > 0
    call.resume()
    assert scene.service.half_closed == 1


def test_messages_of_other_calls_continue(scene):
    scene = held_scene(after=1)
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a") + framed(b"b")))
    scene.send(scene.request(3, b"x"))
    assert scene.answers()[3][1] == framed(b"x")
    assert scene.service.messages == [b"a", b"x"]


def test_paused_call_gets_no_window_until_resume():
    scene = held_scene(Http2Limits(stream_window_bytes=65_536, frame_bytes=2**14))
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    for _ in range(3):
        scene.send(data_frame(1, framed(bytes(16_000))))
    assert [f for f in scene.frames() if f[0] == wire.WINDOW_UPDATE and f[2] == 1] == []
    scene.service.held_after = 0
    (call,) = scene.service.calls
    call.resume()
    (update,) = [f for f in scene.frames() if f[0] == wire.WINDOW_UPDATE and f[2] == 1]
    assert int.from_bytes(update[3], "big") == 3 * 16_005 + 6
    assert len(scene.service.messages) == 4


def test_paused_call_exceeding_window_is_reset():
    scene = held_scene(Http2Limits(stream_window_bytes=65_536, frame_bytes=2**14))
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    scene.send(b"".join(data_frame(1, framed(bytes(16_000))) for _ in range(5)))
    assert scene.frames()[-1][0] == wire.RST_STREAM
    assert scene.service.cancelled == [(call, CancelReason.REJECTED) for call in scene.service.calls]


def test_unread_messages_of_paused_call_count_as_incomplete():
    scene = held_scene(Http2Limits(collecting_bytes=100))
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    scene.send(data_frame(1, framed(bytes(40))) + data_frame(1, framed(bytes(60))))
    assert scene.status(1)[0] == "8"
    assert scene.service.cancelled == [(call, CancelReason.REJECTED) for call in scene.service.calls]


def test_paused_call_that_is_reset_is_forgotten():
    scene = held_scene()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a") + framed(b"b")))
    (call,) = scene.service.calls
    scene.send(frame(wire.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    scene.service.writable.clear()
    scene.send(frame(wire.PING, 0, 0, bytes(8)))
    assert scene.service.writable == []
    call.resume()
    call.pause()
    assert scene.service.messages == [b"a"]


def test_invalid_waiting_message_ends_call():
    scene = held_scene()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    scene.send(data_frame(1, b"\x07\0\0\0\0"))
    (call,) = scene.service.calls
    call.resume()
    assert scene.status(1)[0] == "13"


@pytest.mark.parametrize("has_more", [False, True])
def test_call_ended_by_service_releases_collected_bytes(has_more):
    scene = Scene(Http2Limits(collecting_bytes=100)).open()
    for stream_id in (1, 3, 5):
        # The service ends the call while a message is arriving, or with the previous message.
        scene.service.stream_message = lambda call, message: has_more and call.finish(9)
        scene.send(scene.headers(stream_id, "/s/Stream"))
        call = scene.protocol._connection.streams[stream_id]
        scene.send(data_frame(stream_id, framed(b"a") + framed(bytes(70))[:60]))
        call.finish(9)
        assert scene.status(stream_id)[0] == "9"
    scene.send(scene.headers(7) + data_frame(7, framed(bytes(70))[:60]))
    scene.send(data_frame(7, framed(bytes(70))[60:], end=True))
    assert scene.status(7)[0] == "0"


def test_small_pieces_of_a_paused_body_share_memory():
    body = PausedBody()
    for _ in range(100_000):
        body.append(memoryview(b"x"))
    chunks = []
    while body.unread_bytes:
        chunks.append(bytes(body.take_chunk()))
    assert b"".join(chunks) == b"x" * 100_000
    assert len(chunks) == 2


@pytest.mark.parametrize(("code", "said"), [(0, ""), (1, "with PROTOCOL_ERROR"), (8, ""), (99, "with error code 99")])
def test_peer_rejecting_responses_is_logged_once(scene, caplog, code, said):
    for stream_id in (1, 3):
        scene.send(scene.request(stream_id, b"a", "/s/Keep"))
        scene.send(frame(wire.RST_STREAM, 0, stream_id, code.to_bytes(4, "big")))
    lines = [line for line in caplog.messages if "reset" in line]
    assert lines == ([f"the client reset its call of /s/Keep {said}"] if said else [])


@pytest.mark.parametrize("ending", ["lost", "reset"])
@pytest.mark.parametrize("path", ["/s/Echo", "/s/Stream"])
def test_incomplete_message_is_freed_with_its_peer(path, ending):
    scene = Scene().open()
    scene.send(scene.headers(1, path) + data_frame(1, b"\0\0\1\0\0" + bytes(1000)))
    call = scene.protocol._connection.streams[1]
    request = call.request
    assert sys.getrefcount(request) == 3
    gc.disable()  # a connection's objects refer to each other
    try:
        if ending == "lost":
            scene.protocol.connection_lost(None)
        else:
            scene.send(frame(wire.RST_STREAM, 0, 1, bytes(4)))
        assert sys.getrefcount(request) == 2  # this frame and the argument
    finally:
        gc.enable()

"""Messages and bodies over HTTP/2 in the budget of the server."""

import zlib

import pytest

from naiad.core.limits.request_limits import RequestBudget
from naiad.frontend.http2.endpoint import RestSide
from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import frame
from support.http2_peer import data_frame
from support.http2_scene import Scene, framed

KB = 1024


def budgeted(limit, **options):
    budget = RequestBudget(limit)
    scene = Scene(budget=budget, **options).open()
    scene.budget = budget
    return scene


def rest_scene(limit):
    received = []
    scene = budgeted(limit, rest=RestSide(received.append))
    scene.received = received
    return scene


def post(scene, stream_id, *more):
    fields = [(":method", "POST"), (":scheme", "http"), (":path", "/v2/x"), (":authority", "x"), *more]
    return frame(wire.HEADERS, 4, stream_id, scene.encoder.encode(fields))


def test_a_tiny_message_is_not_counted():
    scene = budgeted(1 << 20)
    scene.send(scene.request(1, bytes(100), "/s/Keep"))
    scene.send(scene.request(3, bytes(100), "/s/Keep"))
    assert len(scene.service.calls) == 2
    assert scene.budget.used_bytes == 0


@pytest.mark.parametrize("size", [5 * KB, 60 * KB, 200 * KB])
def test_a_message_counts_until_it_is_answered(size):
    scene = budgeted(1 << 20)
    for stream_id in (1, 3):  # by the slow path, then by the fast path
        scene.send(scene.request(stream_id, bytes(size), "/s/Keep"))
    assert scene.budget.used_bytes == 2 * size
    scene.service.calls[0].respond((b"",))
    assert scene.budget.used_bytes == size
    scene.service.calls[1].finish(13, "no")
    assert scene.budget.used_bytes == 0


@pytest.mark.parametrize("size", [5 * KB, 60 * KB, 200 * KB])
def test_a_message_without_room_is_rejected(size):
    scene = budgeted(size + 3 * KB)
    for stream_id in (1, 3, 5):
        scene.send(scene.request(stream_id, bytes(size), "/s/Keep"))
        if stream_id > 1:
            status, message = scene.status(stream_id)
            assert status == "8"
            assert "--max-request-bytes-in-flight" in message
    assert len(scene.service.calls) == 1
    assert scene.budget.used_bytes == size


def test_incomplete_messages_are_counted_as_they_come():
    scene = budgeted(1 << 20)
    scene.send(scene.headers(1) + data_frame(1, framed(bytes(100 * KB))[: 30 * KB]))
    assert 30 * KB - 5 <= scene.budget.used_bytes <= 31 * KB
    scene.send(frame(wire.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert scene.budget.used_bytes == 0


def test_a_lost_connection_releases_its_bytes():
    scene = budgeted(1 << 20)
    scene.send(scene.request(1, bytes(50 * KB), "/s/Keep"))
    scene.send(scene.headers(3) + data_frame(3, framed(bytes(100 * KB))[: 30 * KB]))
    assert scene.budget.used_bytes >= 80 * KB - 5
    scene.protocol.connection_lost(None)
    assert scene.budget.used_bytes == 0


def test_reset_that_ends_connection_releases_its_call():
    scene = budgeted(1 << 20, limits=Http2Limits(resets_burst=1, resets_per_s=1))
    for stream_id in (1, 3):
        scene.send(scene.request(stream_id, bytes(50 * KB), "/s/Keep"))
    for stream_id in (1, 3):
        scene.send(frame(wire.RST_STREAM, 0, stream_id, b"\0\0\0\x08"))
    assert scene.transport.is_closed
    scene.protocol.connection_lost(None)
    assert [call.id for call, _ in scene.service.cancelled] == [1, 3]
    assert scene.budget.used_bytes == 0


def test_compressed_messages_count_what_they_become():
    scene = budgeted(1 << 20)
    body = zlib.compress(bytes(100 * KB))
    message = b"\1" + len(body).to_bytes(4, "big") + body
    scene.send(scene.headers(1, "/s/Keep", ("grpc-encoding", "deflate")) + data_frame(1, message, end=True))
    (call,) = scene.service.calls
    assert scene.budget.used_bytes == 100 * KB
    call.respond((b"",))
    assert scene.budget.used_bytes == 0


def test_a_streaming_call_counts_what_its_service_reserves():
    scene = budgeted(100 * KB)
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"x")))
    (call,) = scene.service.calls
    assert call.reserve_bytes(90 * KB)
    assert not call.reserve_bytes(20 * KB)
    call.release_bytes(30 * KB)
    assert scene.budget.used_bytes == 60 * KB
    call.finish(0)
    assert scene.budget.used_bytes == 0
    assert call.reserve_bytes(20 * KB)
    assert scene.budget.used_bytes == 0


def test_a_rest_body_without_room_gets_503():
    scene = rest_scene(100 * KB)
    scene.send(post(scene, 1) + data_frame(1, bytes(60 * KB), end=True))
    scene.send(post(scene, 3) + data_frame(3, bytes(60 * KB)))
    fields, _ = scene.answers()[3]
    assert (fields[":status"], fields["retry-after"]) == ("503", "1")
    assert scene.budget.used_bytes == 60 * KB
    scene.received[0].respond(200, (), ())
    assert scene.budget.used_bytes == 0


def test_announced_rest_body_is_rejected_by_headers():
    scene = rest_scene(100 * KB)
    scene.send(post(scene, 1, ("content-length", str(200 * KB))))
    assert scene.answers()[1][0][":status"] == "413"
    scene.send(post(scene, 3) + data_frame(3, bytes(60 * KB), end=True))
    scene.send(post(scene, 5, ("content-length", str(60 * KB))))
    assert scene.answers()[5][0][":status"] == "503"
    assert scene.budget.used_bytes == 60 * KB

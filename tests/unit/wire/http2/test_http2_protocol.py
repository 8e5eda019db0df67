"""Calls of the transport and the server to a connection."""

import gc
import weakref

import pytest

from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import frame
from support.http2_peer import split_frames
from support.http2_scene import FakeTransport, Scene


@pytest.fixture
def scene():
    return Scene().open()


@pytest.mark.parametrize(
    ("size", "took_ns", "pauses"), [(70_000, 3_000_000, True), (70_000, 1, False), (60_000, 3_000_000, False)]
)
def test_peer_with_slow_bytes_yields_to_other_connections(monkeypatch, size, took_ns, pauses):
    scene = Scene().open()
    times = iter(range(10**9, 10**12, took_ns))
    monkeypatch.setattr("naiad.frontend.http2.connection._now_ns", lambda: next(times))
    scene.send(frame(0x77, 0, 0, bytes(size)))
    assert scene.transport.is_reading is not pauses
    scene.loop.run_soon()
    assert scene.transport.is_reading


def test_many_short_reads_let_others_pass(monkeypatch):
    scene = Scene().open()
    times = iter(range(10**9, 10**12, 500_000))
    monkeypatch.setattr("naiad.frontend.http2.connection._now_ns", lambda: next(times))
    was_reading = []
    for _ in range(10):
        scene.send(frame(0x77, 0, 0, bytes(70_000)))
        was_reading.append(scene.transport.is_reading)
        scene.loop.run_soon()
    assert was_reading == [True, True, True, True, False] * 2


def test_slow_frames_are_read_in_slices(monkeypatch):
    scene = Scene().open()
    times = iter(range(10**9, 10**12, 3_000_000))
    monkeypatch.setattr("naiad.frontend.http2.connection._now_ns", lambda: next(times))
    scene.send(scene.headers(1, "/s/Stream"))
    pieces = frame(wire.DATA, 0, 1, b"\0\0\0\0\1x" * 50) * 100
    scene.protocol.data_received(pieces)
    assert not scene.transport.is_reading
    seen = [len(scene.service.messages)]
    while scene.loop.soon:
        scene.loop.run_soon()
        seen.append(len(scene.service.messages))
    assert seen[-1] == 5000
    assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) < 500
    assert scene.transport.is_reading


def test_each_read_begins_with_small_slice(monkeypatch):
    scene, now_ns, step_ns = Scene().open(), 10**9, 1

    def tick():
        nonlocal now_ns
        now_ns += step_ns
        return now_ns

    monkeypatch.setattr("naiad.frontend.http2.connection._now_ns", tick)
    scene.send(scene.headers(1, "/s/Stream"))
    pieces = frame(wire.DATA, 0, 1, b"\0\0\0\0\1x" * 50) * 100
    scene.protocol.data_received(pieces)
    assert len(scene.service.messages) == 5000
    step_ns = 3_000_000
    scene.protocol.data_received(pieces)
    assert len(scene.service.messages) < 5500


def test_unread_slice_waits_while_socket_is_full(monkeypatch):
    scene = Scene().open()
    times = iter(range(10**9, 10**12, 3_000_000))
    monkeypatch.setattr("naiad.frontend.http2.connection._now_ns", lambda: next(times))
    scene.send(scene.headers(1, "/s/Stream"))
    scene.protocol.data_received(frame(wire.DATA, 0, 1, b"\0\0\0\0\1x" * 50) * 100)
    scene.protocol.pause_writing()
    before = len(scene.service.messages)
    scene.loop.run_soon()
    assert len(scene.service.messages) == before
    assert not scene.transport.is_reading
    scene.protocol.resume_writing()
    while scene.loop.soon:
        scene.loop.run_soon()
    assert len(scene.service.messages) == 5000
    assert scene.transport.is_reading


def test_http1_client_gets_readable_error(scene):
    scene = Scene()
    scene.send(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"".join(scene.transport.written).startswith(b"HTTP/1.1 400 ")
    assert scene.transport.is_closed


def test_full_socket_pauses_reading_and_making_frames(scene):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.protocol.pause_writing()
    assert not scene.transport.is_reading
    scene.service.calls[0].send([bytes(1000)])
    assert [kind for kind, _, _, _ in scene.frames()] == [wire.HEADERS]
    scene.protocol.resume_writing()
    assert scene.transport.is_reading
    assert [kind for kind, _, _, _ in scene.frames()] == [wire.DATA]


def test_connection_error_is_sent_and_closes(scene):
    scene.send(frame(wire.PING, 0, 0, b""))
    assert [kind for kind, _, _, _ in scene.frames()] == [wire.GOAWAY]
    assert scene.transport.is_closed


def test_connections_are_counted_and_bounded():
    scene = Scene(limits=Http2Limits(connections=1))
    assert scene.server.connection_count == 1
    second = scene.server.protocol()
    transport = FakeTransport()
    second.connection_made(transport)
    assert transport.is_closed
    assert list(split_frames(b"".join(transport.written)))[-1][0] == wire.GOAWAY
    second.connection_lost(None)
    assert scene.server.connection_count == 1


def test_abort_drops_connections(scene):
    scene.server.abort()
    assert scene.transport.is_aborted


def test_server_without_connections_has_no_timer():
    scene = Scene()
    (timer,) = scene.loop.timers
    scene.protocol.connection_lost(None)
    timer.callback()
    assert len(scene.loop.timers) == 1


@pytest.mark.parametrize("path", ["/s/Hold", "/s/Stream", "/s/Echo"])
def test_lost_connection_is_freed_at_once(path):
    scene = Scene().open()
    scene.send(scene.headers(1, path))
    scene.send(frame(wire.DATA, 0, 1, b"\0\0\0\0\1x"))
    scene.send(scene.headers(3, path) + frame(wire.DATA, wire.FLAG_END_STREAM, 3, b"\0\0\0\0\1x"))
    lost = weakref.ref(scene.protocol)
    parts = [weakref.ref(part) for part in (scene.protocol._connection, scene.protocol._calls)]
    gc.collect()
    gc.disable()
    try:
        scene.protocol.connection_lost(None)
        scene.service.calls.clear()
        scene.service.cancelled.clear()
        scene.loop.soon.clear()
        scene.protocol = None
        assert [lost(), *(part() for part in parts)] == [None, None, None]
    finally:
        gc.enable()

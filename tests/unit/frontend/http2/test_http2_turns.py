"""Bytes that wait for a later turn of the loop: nothing is lost or reordered, and no time limit counts them."""

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.frontend.connections import reading_turns
from naiad.frontend.connections.reading_turns import ReadingTurns
from naiad.frontend.http2 import connection as http2_connection
from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import Http2Limits
from support.http2_peer import OPENING
from support.http2_scene import SECOND_NS, Scene, start_ns

TURN_NS = 10_000_000
LARGE_BYTES = 70_000


class BusyTurns(ReadingTurns):
    """Reads wait when a test says so."""

    is_busy = False

    def is_over(self, now_ns):
        return self.is_busy


@pytest.fixture
def scene():
    scene = Scene().open()
    scene.protocol._turns = BusyTurns(scene.loop.call_soon)
    return scene


def receive_late(scene, data):
    turns = scene.protocol._turns
    turns.is_busy, turns.look_ns = True, 0
    scene.protocol.data_received(data)
    turns.is_busy = False


def test_postponed_requests_are_answered_in_the_next_turn(scene):
    data = b"".join(scene.request(stream_id, b"hello") for stream_id in (1, 3, 5))
    receive_late(scene, data[:-3])
    receive_late(scene, data[-3:])
    assert not scene.transport.written
    assert sorted(scene.answers()) == [1, 3, 5]


def test_reading_pauses_only_with_many_bytes(scene):
    request = scene.request(1, bytes(LARGE_BYTES))
    receive_late(scene, request[:100])
    assert scene.transport.is_reading
    receive_late(scene, request[100:])
    assert not scene.transport.is_reading
    scene.frames()
    assert scene.transport.is_reading
    assert scene.service.messages == [bytes(LARGE_BYTES)]


def test_requests_before_an_end_are_answered(scene):
    receive_late(scene, scene.request(1, b"hello"))
    assert scene.protocol.eof_received()
    scene.loop.run_soon()
    assert scene.transport.written
    assert not scene.transport.is_closed
    scene.loop.run_soon()
    assert scene.transport.is_closed


def test_lost_connection_drops_what_waits(scene):
    receive_late(scene, scene.request(1, b"hello"))
    scene.protocol.connection_lost(None)
    for _ in range(4):
        scene.loop.run_soon()
    assert scene.service.messages == []


def test_paused_output_keeps_what_waits(scene):
    receive_late(scene, scene.request(1, b"hello"))
    scene.protocol.pause_writing()
    scene.frames()
    assert scene.service.messages == []
    scene.protocol.resume_writing()
    assert sorted(scene.answers()) == [1]
    assert scene.transport.is_reading


def test_http1_peer_gets_a_readable_error_also_later():
    scene = Scene()
    scene.protocol._turns = BusyTurns(scene.loop.call_soon)
    receive_late(scene, b"GET / HTTP/1.1\r\n\r\n")
    scene.loop.run_soon()
    assert b"".join(scene.transport.written).startswith(b"HTTP/1.1 400 ")


def test_time_limits_do_not_count_the_wait():
    limits = Http2Limits(preface_timeout_s=5, frame_timeout_s=5)
    scene = Scene(limits)
    scene.protocol._turns = BusyTurns(scene.loop.call_soon)
    receive_late(scene, OPENING)
    scene.protocol.sweep(start_ns(scene) + 20 * SECOND_NS)
    assert not scene.transport.is_closed
    scene.frames()
    request = scene.request(1, b"hello")
    scene.send(request[:5])
    receive_late(scene, request[5:])
    scene.protocol.sweep(start_ns(scene) + 40 * SECOND_NS)
    assert not scene.transport.is_closed
    assert sorted(scene.answers()) == [1]


def test_connection_with_waiting_bytes_is_not_idle(scene):
    scene.send(scene.request(1, b"hello"))
    assert scene.protocol.idle_since_ns
    receive_late(scene, scene.request(3, b"hello")[:4])
    assert not scene.protocol.idle_since_ns


def test_drain_serves_what_has_arrived_before(scene):
    receive_late(scene, scene.request(1, b"hello"))
    scene.protocol.drain()
    frames = scene.frames()
    assert wire.GOAWAY in [kind for kind, _, _, _ in frames]
    assert scene.service.messages == [b"hello"]


READS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 400), st.sampled_from([0, 1, TURN_NS])), max_size=60)


@given(READS, st.lists(st.integers(0, 3), min_size=3, max_size=3))
@settings(max_examples=60, deadline=None)
def test_every_connection_gets_its_requests_in_order(reads, request_counts):
    now_ns = [SECOND_NS]
    with (
        patch.object(http2_connection, "_now_ns", lambda: now_ns[0]),
        patch.multiple(reading_turns, _LONGEST_NS=TURN_NS, _UNWATCHED_NS=0),
    ):
        scenes = [Scene() for _ in range(3)]
        loop = scenes[0].loop
        turns = ReadingTurns(loop.call_soon, lambda: now_ns[0])
        pending = []
        for scene, count in zip(scenes, request_counts, strict=True):
            scene.protocol._turns = turns
            sent = [b"%d" % number * 50 for number in range(count)]
            pending.append(OPENING + b"".join(scene.request(2 * i + 1, text) for i, text in enumerate(sent)))
        for which, size, takes_ns in [*reads, *((which, 10_000, 0) for which in range(3))]:
            now_ns[0] += takes_ns
            if takes_ns == 1:
                loop.run_soon()
            data, pending[which] = pending[which][:size], pending[which][size:]
            if data:
                scenes[which].protocol.data_received(data)
        while turns.waiting_count:
            loop.run_soon()
    for scene, count in zip(scenes, request_counts, strict=True):
        assert scene.service.messages == [b"%d" % number * 50 for number in range(count)]
        assert sorted(scene.answers()) == [2 * number + 1 for number in range(count)]

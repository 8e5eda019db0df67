"""Connections that end at the same time are closed and freed a few per turn of the loop."""

import gc
import itertools
import weakref

import pytest

from naiad.frontend.connections.endpoint import ClosingQueue
from naiad.frontend.http1.connection import Http1Server
from naiad.frontend.http2.connection import Http2Server
from support.http1_scene import Transport as Http1Transport
from support.http2_peer import OPENING
from support.http2_scene import FakeTransport as Http2Transport
from support.http2_scene import Scene

COUNT = 1000
MOST_AT_ONCE = 300


class Loop:
    def __init__(self):
        self.soon = []

    def call_soon(self, callback):
        self.soon.append(callback)

    def call_later(self, delay_s, callback):
        return None

    def turn(self):
        """Run the callbacks of one turn of an event loop; callbacks added meanwhile run in the next turn."""
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


class TlsTransport(Http2Transport):
    def can_write_eof(self):
        return False


class Http1SocketTransport(Http1Transport):
    def can_write_eof(self):
        return True


def counts_by_turn(loop, count):
    """Run the loop until it is idle; return the change of `count` in each turn."""
    counts = [count()]
    while loop.soon:
        loop.turn()
        counts.append(count())
    return [later - earlier for earlier, later in itertools.pairwise(counts)]


def test_steps_run_in_order_over_several_turns():
    loop, done = Loop(), []
    queue = ClosingQueue(loop.call_soon)
    for number in range(COUNT):
        queue.add(lambda number=number: done.append(number))
    assert not done
    found = counts_by_turn(loop, lambda: len(done))
    assert max(found) <= MOST_AT_ONCE
    assert done == list(range(COUNT))


def test_step_that_fails_keeps_later_steps():
    loop, done = Loop(), []
    queue = ClosingQueue(loop.call_soon)
    queue.add(lambda: 1 / 0)
    queue.add(lambda: done.append(1))
    with pytest.raises(ZeroDivisionError):
        loop.turn()
    loop.turn()
    assert done == [1]


def test_step_that_adds_a_step_schedules_one_turn():
    loop, done = Loop(), []
    queue = ClosingQueue(loop.call_soon)
    queue.add(lambda: queue.add(lambda: done.append(1)))
    loop.turn()
    assert len(loop.soon) == 1
    loop.turn()
    assert done == [1]
    assert not loop.soon


@pytest.mark.parametrize(
    ("server_type", "transport_type", "opening"),
    [(Http1Server, Http1SocketTransport, b""), (Http2Server, Http2Transport, OPENING)],
)
def test_peers_that_disconnect_together_are_closed_in_slices(server_type, transport_type, opening):
    loop = Loop()
    server = server_type(None, loop)
    transports = [transport_type() for _ in range(COUNT)]
    for transport in transports:
        protocol = server.protocol()
        protocol.connection_made(transport)
        if opening:
            protocol.data_received(opening)
        assert protocol.eof_received()
    found = counts_by_turn(loop, lambda: sum(transport.is_closing() for transport in transports))
    assert sum(found) == COUNT
    assert max(found) <= MOST_AT_ONCE


def test_http2_connections_with_tls_close_at_once():
    server = Http2Server(None, Loop())
    protocol = server.protocol()
    protocol.connection_made(TlsTransport())
    assert not protocol.eof_received()


def test_lost_idle_http2_connections_are_freed_in_slices():
    loop = Loop()
    server = Http2Server(None, loop)
    protocols = [server.protocol() for _ in range(COUNT)]
    for protocol in protocols:
        protocol.connection_made(Http2Transport())
        protocol.data_received(OPENING)
    references = [weakref.ref(protocol) for protocol in protocols]
    gc.disable()
    try:
        while protocols:
            protocols.pop().connection_lost(None)
        protocol = None
        assert server.connection_count == 0
        found = counts_by_turn(loop, lambda: sum(reference() is None for reference in references))
    finally:
        gc.enable()
    assert sum(found) == COUNT
    assert max(found) <= MOST_AT_ONCE


def test_lost_http1_connection_is_freed_at_once():
    server = Http1Server(lambda context: None, Loop())
    protocol = server.protocol()
    protocol.connection_made(Http1SocketTransport())
    reference = weakref.ref(protocol)
    gc.disable()
    try:
        protocol.connection_lost(None)
        del protocol
        assert reference() is None
    finally:
        gc.enable()


def test_lost_http2_connection_cancels_its_calls_at_once():
    scene = Scene().open()
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.protocol.connection_lost(None)
    assert len(scene.service.cancelled) == 1

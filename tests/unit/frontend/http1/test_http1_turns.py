"""Bytes that wait for a later turn of the loop: nothing is lost or reordered, and no time limit counts them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.frontend.connections.reading_turns import ReadingTurns
from naiad.frontend.http1.connection import Http1Server
from support.http1_scene import GET, Loop, Peer, answer, post


class BusyTurns(ReadingTurns):
    """Reads wait when a test says so."""

    is_busy = False

    def is_over(self, now_ns):
        return self.is_busy


def late_peer(**limits):
    peer = Peer(**limits)
    peer.connection._turns = BusyTurns(peer.loop.call_soon)
    return peer


def send_late(peer, data):
    turns = peer.connection._turns
    turns.is_busy, turns.look_ns = True, 0
    peer.send(data)
    turns.is_busy = False


def run_turns(loop):
    while loop.next:
        callbacks, loop.next = loop.next, []
        for callback in callbacks:
            callback()


@pytest.fixture
def peer():
    return late_peer()


def test_postponed_requests_are_read_in_a_later_turn(peer):
    send_late(peer, GET + GET + GET[:5])
    assert not peer.contexts
    assert not peer.transport.reading, "its end would otherwise precede its requests"
    run_turns(peer.loop)
    peer.send(GET[5:])
    assert len(peer.contexts) == 3
    assert peer.transport.reading


def test_nothing_else_makes_it_go_on(peer):
    peer.send(GET)
    send_late(peer, GET)
    answer(peer.contexts[0])
    peer.connection.pause_writing()
    peer.connection.resume_writing()
    assert (len(peer.contexts), peer.transport.reading) == (1, False)
    run_turns(peer.loop)
    assert (len(peer.contexts), peer.transport.reading) == (2, True)


def test_pipelined_requests_keep_their_limit():
    peer = late_peer(pipelined_requests=2)
    send_late(peer, GET * 5)
    run_turns(peer.loop)
    assert (len(peer.contexts), peer.transport.reading) == (2, False)
    for number in range(5):
        answer(peer.contexts[number])
    assert peer.statuses == [200] * 5
    assert peer.transport.reading


def test_time_limits_do_not_count_the_wait():
    peer = late_peer(idle_timeout_s=10)
    send_late(peer, GET)
    peer.sweep(*range(1, 60))
    assert not peer.transport.closed
    assert not peer.connection.idle_since_ns
    run_turns(peer.loop)
    assert len(peer.contexts) == 1


def test_lost_connection_drops_what_waits(peer):
    send_late(peer, GET)
    peer.transport.abort()
    peer.connection.connection_lost(None)
    run_turns(peer.loop)
    assert not peer.contexts


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 200), st.booleans()), max_size=40),
    st.lists(st.lists(st.integers(0, 300), max_size=4), min_size=3, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_every_connection_gets_its_requests_in_order(reads, bodies):
    loop, contexts = Loop(), []
    server = Http1Server(contexts.append, loop)
    server.reading_turns = turns = BusyTurns(loop.call_soon)
    peers = [Peer(server) for _ in range(3)]
    pending = [b"".join(post(b"%03d" % size * size) for size in sizes) for sizes in bodies]
    for which, size, is_late in [*reads, *((which, 10_000, False) for which in range(3))]:
        if not peers[which].transport.reading:
            run_turns(loop)
        data, pending[which] = pending[which][:size], pending[which][size:]
        turns.is_busy, turns.look_ns = is_late, 0
        peers[which].send(data)
    turns.is_busy = False
    run_turns(loop)
    for peer, sizes in zip(peers, bodies, strict=True):
        mine = [bytes(context.body) for context in contexts if context.client is peer.connection._responses]
        assert mine == [b"%03d" % size * size for size in sizes]

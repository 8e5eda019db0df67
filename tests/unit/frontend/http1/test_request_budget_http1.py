"""Bodies over HTTP/1.1 in the budget of the server."""

import zlib

import pytest

from naiad.core.limits.request_limits import RequestBudget
from naiad.frontend.http1.connection import Http1Server
from naiad.wire.http1 import Http1Limits, HttpError
from support.http1_scene import Loop, Peer, answer, post

KB = 1024


class BudgetedPeer(Peer):
    def __init__(self, limit, **limits):
        self.budget = RequestBudget(limit)
        self.received = []
        super().__init__(Http1Server(self.received.append, Loop(), Http1Limits(**limits), self.budget))


def test_a_tiny_body_is_not_counted():
    peer = BudgetedPeer(1)
    peer.send(post(bytes(4 * KB)))
    assert len(peer.received) == 1
    assert peer.budget.peak_bytes == 0


def test_a_body_counts_until_it_is_answered():
    peer = BudgetedPeer(100 * KB)
    peer.send(post(bytes(40 * KB)) * 2)
    assert peer.budget.used_bytes == 80 * KB
    answer(peer.received[0])
    assert peer.budget.used_bytes == 40 * KB
    answer(peer.received[1])
    assert peer.budget.used_bytes == 0


def test_a_body_without_room_gets_503():
    peer = BudgetedPeer(60 * KB)
    peer.send(post(bytes(40 * KB)))
    other = Peer(peer.server)
    other.send(post(bytes(40 * KB)))
    assert other.statuses == [503]
    assert b"Retry-After: 1\r\n" in other.output
    assert len(peer.received) == 1
    assert peer.budget.used_bytes == 40 * KB


def test_a_body_without_memory_releases_its_reservation(monkeypatch):
    def refuse(length, offset):
        raise HttpError(413, "no memory")

    monkeypatch.setattr("naiad.frontend.http1.request_reader.allocate_body", refuse)
    peer = BudgetedPeer(100 * KB)
    peer.send(post(bytes(40 * KB), b"Inference-Header-Content-Length: 10"))
    assert peer.statuses == [413]
    assert peer.budget.used_bytes == 0
    assert not peer.received


def test_a_body_above_the_whole_budget_gets_413():
    peer = BudgetedPeer(60 * KB)
    peer.send(post(bytes(100 * KB))[:200])
    assert peer.statuses == [413]
    assert peer.budget.peak_bytes == 0


def test_an_announced_length_alone_reserves_little():
    peer = BudgetedPeer(1 << 30)
    peer.send(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
    assert peer.budget.used_bytes == 64 * KB


def test_reservations_stay_near_what_has_come():
    peer = BudgetedPeer(1 << 30)
    peer.send(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    for sent in range(0, 1_000_000, 50_000):
        assert peer.budget.used_bytes <= 2 * sent + 128 * KB
        peer.send(bytes(50_000))
        assert peer.budget.used_bytes >= sent + 50_000
    assert peer.budget.used_bytes == 1_000_000
    answer(peer.received[0])
    assert peer.budget.used_bytes == 0


def test_body_reaching_limit_during_arrival_is_rejected():
    peer = BudgetedPeer(300 * KB)
    peer.send(post(bytes(300 * KB))[: 100 * KB])
    other = Peer(peer.server)
    other.send(post(bytes(60 * KB)))
    assert len(peer.received) == 1
    peer.send(bytes(190 * KB))
    assert peer.statuses == [503]
    assert peer.budget.used_bytes == 60 * KB


def test_chunks_are_counted_as_they_come():
    peer = BudgetedPeer(200 * KB)
    peer.send(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"%x\r\n%s\r\n" % (50 * KB, bytes(50 * KB))
    peer.send(chunk)
    assert 50 * KB <= peer.budget.used_bytes <= 150 * KB
    peer.send(b"0\r\n\r\n")
    assert peer.budget.used_bytes == 50 * KB
    other = Peer(peer.server)
    other.send(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + 5 * chunk)
    assert other.statuses == [503]
    assert peer.budget.used_bytes == 50 * KB


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_lost_connection_releases_its_bytes(is_complete):
    peer = BudgetedPeer(1 << 20)
    peer.send(post(bytes(100 * KB))[: None if is_complete else 50 * KB])
    assert peer.budget.used_bytes >= 50 * KB
    peer.connection.connection_lost(None)
    assert peer.budget.used_bytes == 0


def test_decompressed_bytes_are_released_with_the_response():
    peer = BudgetedPeer(100 * KB)
    peer.send(post(zlib.compress(bytes(10))))
    (context,) = peer.received
    assert context.reserve_bytes(90 * KB)
    assert not context.reserve_bytes(20 * KB)
    context.release_bytes(30 * KB)
    assert peer.budget.used_bytes == 60 * KB
    answer(context)
    assert peer.budget.used_bytes == 0


def test_bytes_after_response_are_not_counted():
    peer = BudgetedPeer(100 * KB)
    peer.send(post(b""))
    (context,) = peer.received
    answer(context)
    assert context.reserve_bytes(50 * KB)
    context.release_bytes(50 * KB)
    assert peer.budget.used_bytes == 0


def test_a_streamed_response_releases_at_its_end():
    peer = BudgetedPeer(100 * KB)
    peer.send(post(bytes(50 * KB)))
    (context,) = peer.received
    context.start_stream(200, ())
    context.send((b"x",))
    assert peer.budget.used_bytes == 50 * KB
    context.end()
    assert peer.budget.used_bytes == 0

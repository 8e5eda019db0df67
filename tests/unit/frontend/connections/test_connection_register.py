"""Connection limits: the connection with the longest idle time is closed, and addresses are counted."""

import time

import pytest

from naiad.frontend.connections.endpoint import AddressLimit, Endpoint
from naiad.frontend.http1.connection import Http1Server
from naiad.wire.http1 import Http1Limits
from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import Http2Limits
from support.http1_scene import GET, Loop, Peer, Transport, answer
from support.http2_scene import FakeTransport, Scene

SECOND_NS = 10**9


class Connection:
    def __init__(self, idle_s=None):
        self.idle_since_ns = 0 if idle_s is None else time.monotonic_ns() - int(idle_s * SECOND_NS)
        self.is_replaced = False

    def close_idle(self):
        self.is_replaced = True


class From:
    def __init__(self, peer):
        self.peer = peer

    def get_extra_info(self, name):
        return self.peer if name == "peername" else None


UNIX = From("")


class Register(Endpoint):
    def __init__(self, most, addresses=None):
        super().__init__(Loop(), most, addresses)

    def set_date(self, wall_s):
        pass


def full(*connections):
    register = Register(len(connections))
    for connection in connections:
        assert register.register(connection, UNIX) == ""
    return register


def test_longest_idle_connection_is_closed():
    idle = [Connection(30), Connection(50), Connection(40), Connection()]
    register = full(*idle)
    for _ in range(2):
        assert register.register(Connection(), UNIX) == ""
    assert [connection.is_replaced for connection in idle] == [False, True, True, False]
    assert len(register.connections) == 4


def test_busy_connections_stay_and_new_one_is_rejected():
    busy = Connection()
    assert "the limit is 1" in full(busy).register(Connection(), UNIX)
    assert not busy.is_replaced


def test_a_connection_that_has_just_begun_stays():
    young = Connection(0.1)
    assert "the limit is 1" in full(young).register(Connection(), UNIX)
    assert not young.is_replaced


def test_a_connection_that_was_used_since_stays():
    used, idle = Connection(50), Connection(40)
    other = Connection(60)
    register = full(used, idle, other)
    assert register.register(Connection(), UNIX) == ""
    assert other.is_replaced
    used.idle_since_ns = 0
    assert register.register(Connection(), UNIX) == ""
    assert (used.is_replaced, idle.is_replaced) == (False, True)


def test_connections_are_sorted_at_most_once_a_second():
    class Counting(Connection):
        looks = 0

        @property
        def idle_since_ns(self):
            Counting.looks += 1
            return 0

        @idle_since_ns.setter
        def idle_since_ns(self, value):
            pass

    register = full(*(Counting() for _ in range(10)))
    for _ in range(100):
        assert register.register(Connection(), UNIX)
    assert Counting.looks == 10


@pytest.mark.parametrize(
    ("first", "second", "third"),
    [
        (("10.0.0.1", 1), ("10.0.0.1", 2), ("10.0.0.2", 1)),
        (("::ffff:10.0.0.1", 1, 0, 0), ("10.0.0.1", 2), ("::ffff:10.0.0.2", 1, 0, 0)),
        (("2001:db8::1", 1, 0, 0), ("2001:db8::ffff", 1, 0, 0), ("2001:db8:0:1::1", 1, 0, 0)),
        (("fe80::1%eth0", 1, 0, 2), ("fe80::2%eth0", 1, 0, 2), ("10.0.0.1", 1)),
    ],
)
def test_connections_of_an_address_are_bounded(first, second, third):
    limit = AddressLimit(1)
    register, other_port = Register(10, limit), Register(10, limit)
    held = Connection()
    assert register.register(held, From(first)) == ""
    assert "one address; the limit is 1" in other_port.register(Connection(), From(second))
    assert other_port.register(Connection(), From(third)) == ""
    register.unregister(held)
    assert other_port.register(Connection(), From(second)) == ""


def test_address_over_its_limit_closes_no_idle_connection():
    idle, own = Connection(50), Connection()
    register = Register(2, AddressLimit(1))
    assert register.register(idle, UNIX) == ""
    assert register.register(own, From(("10.0.0.1", 1))) == ""
    assert "one address; the limit is 1" in register.register(Connection(), From(("10.0.0.1", 2)))
    assert not idle.is_replaced
    assert register.connections == {idle, own}


def test_rejected_connection_does_not_count_for_its_address():
    busy, later = Connection(), Connection()
    register = Register(1, AddressLimit(1))
    assert register.register(busy, UNIX) == ""
    assert "too many connections; the limit is 1" in register.register(Connection(), From(("10.0.0.1", 1)))
    register.unregister(busy)
    assert register.register(later, From(("10.0.0.1", 2))) == ""


def test_unix_sockets_are_not_counted():
    register = Register(10, AddressLimit(1))
    assert [register.register(Connection(), UNIX) for _ in range(3)] == ["", "", ""]


# --- the connections of both protocols ------------------------------------------------------------------------------


def test_idle_http1_connection_is_closed_for_new_one():
    first = Peer(connections=2)
    busy = Peer(first.server)
    busy.send(GET)
    for peer in (first, busy):
        peer.sweep(5, 6)  # seconds of a clock that began long ago
    newer = Peer(first.server)
    assert first.transport.closed
    assert not busy.transport.closed
    assert newer.statuses == []
    first.connection.connection_lost(None)
    assert first.server.connection_count == 2
    answer(first.contexts[0])


def test_idle_http2_connection_is_closed_for_new_one(monkeypatch):
    scene = Scene(limits=Http2Limits(connections=1)).open()
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns + 60 * SECOND_NS)
    second = scene.server.protocol()
    transport = FakeTransport()
    second.connection_made(transport)
    assert not transport.is_closed
    assert scene.transport.is_closed
    assert wire.GOAWAY in {kind for kind, _, _, _ in scene.frames()}
    scene.protocol.connection_lost(None)
    assert scene.server.connection_count == 1


def test_an_http2_connection_with_a_call_stays(monkeypatch):
    scene = Scene(limits=Http2Limits(connections=1)).open()
    scene.send(scene.request(1, b"a", "/s/Keep"))
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns + 60 * SECOND_NS)
    transport = FakeTransport()
    scene.server.protocol().connection_made(transport)
    assert transport.is_closed
    assert not scene.transport.is_closed


def test_too_many_connections_of_an_address_get_503():
    class Remote(Transport):
        def get_extra_info(self, name, default=None):
            return ("10.0.0.1", 1) if name == "peername" else super().get_extra_info(name, default)

    server = Http1Server(lambda context: None, Loop(), Http1Limits(), addresses=AddressLimit(1))
    transports = [Remote(), Remote()]
    for transport in transports:
        server.protocol().connection_made(transport)
    assert [transport.closed for transport in transports] == [False, True]
    assert b" 503 " in transports[1].output

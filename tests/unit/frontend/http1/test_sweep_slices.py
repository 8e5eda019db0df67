"""Thousands of connections are swept a few at a time, all of them within one turn of the timer."""

import asyncio

from naiad.frontend.http1.connection import Http1Server
from naiad.frontend.http2.connection import Http2Server
from support.http2_peer import OPENING

COUNT = 1000
MOST_AT_ONCE = 300


class Timer:
    def __init__(self, callback):
        self.callback = callback

    def cancel(self):
        pass


class Loop:
    def __init__(self):
        self.soon = []
        self.timers = []

    def call_soon(self, callback, *args):
        self.soon.append((callback, args))

    def call_later(self, delay_s, callback, *args):
        self.timers.append(Timer(callback))
        return self.timers[-1]


class Transport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.asked = 0

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        self.asked += 1
        return 0

    def write(self, data):
        pass

    def is_closing(self):
        return False


def slices(loop, visited):
    """Run the timer and return the number of connections in each callback."""
    found = []
    loop.timers[-1].callback()
    found.append(visited())
    while loop.soon:
        callback, args = loop.soon.pop(0)
        callback(*args)
        found.append(visited() - sum(found))
    return found


def test_http_1():
    loop = Loop()
    server = Http1Server(lambda context: None, loop)
    connections = [server.protocol() for _ in range(COUNT)]
    seen = []
    for connection in connections:
        connection.connection_made(Transport())
        connection.sweep = seen.append
    found = slices(loop, lambda: len(seen))
    assert sum(found) == COUNT
    assert max(found) <= MOST_AT_ONCE


def test_http1_connection_lost_between_slices_is_skipped():
    loop = Loop()
    server = Http1Server(lambda context: None, loop)
    connections = [server.protocol() for _ in range(COUNT)]
    seen = []
    for connection in connections:
        connection.connection_made(Transport())
        connection.sweep = lambda now_ns, connection=connection: seen.append(connection)
    loop.timers[-1].callback()
    lost = [connection for connection in connections if connection not in seen]
    for connection in lost:
        connection.connection_lost(None)
    while loop.soon:
        callback, args = loop.soon.pop(0)
        callback(*args)
    assert lost
    assert len(seen) == COUNT - len(lost)


def test_http_2():
    loop = Loop()
    server = Http2Server(None, loop)
    transports = [Transport() for _ in range(COUNT)]
    for transport in transports:
        protocol = server.protocol()
        protocol.connection_made(transport)
        protocol.data_received(OPENING)
    loop.soon.clear()
    found = slices(loop, lambda: sum(transport.asked for transport in transports))
    assert sum(found) == COUNT
    assert max(found) <= MOST_AT_ONCE

"""A client, a server's HTTP/1.1 connection with a fake loop and transport, and contexts that tests answer."""

import asyncio
import re
import socket

from naiad.frontend.http1.connection import Http1Server
from naiad.wire.http1 import Http1Limits

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
SECOND_NS = 1_000_000_000


class Transport(asyncio.Transport):
    """Records what a connection does to it."""

    family = socket.AF_UNIX  # so that nothing but the size of the buffer shows what the peer has taken

    def __init__(self):
        super().__init__()
        self.output = b""
        self.writes = 0
        self.closed = self.aborted = self.eof_written = False
        self.reading = True
        self.pauses = 0
        self.unsent = 0
        self.socket_error = 0

    def get_extra_info(self, name, default=None):
        return self if name == "socket" else default

    def fileno(self):
        raise OSError("no such socket")

    def getsockopt(self, level, option):
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR)
        return self.socket_error

    def write(self, data):
        self.output += bytes(data)
        self.writes += 1

    def writelines(self, parts):
        self.output += b"".join(parts)
        self.writes += 1

    def set_write_buffer_limits(self, high=None, low=None):
        self.high = high

    def get_write_buffer_size(self):
        return self.unsent

    def can_write_eof(self):
        return True

    def write_eof(self):
        self.eof_written = True

    def pause_reading(self):
        assert self.reading
        self.reading = False
        self.pauses += 1

    def resume_reading(self):
        assert not self.reading
        self.reading = True

    def close(self):
        self.closed = True

    def abort(self):
        self.aborted = True

    def is_closing(self):
        return self.closed or self.aborted


class Timer:
    def cancel(self):
        pass


class Loop:
    """Never fires; the tests sweep themselves, and run what is to come with the next turn."""

    def __init__(self):
        self.next = []
        self.later = []

    def call_soon(self, callback, *args):
        self.next.append(callback)

    def call_later(self, delay, callback, *args):
        if not delay:
            self.next.append(callback)
        elif delay < 1:  # longer ones are the sweeps
            self.later.append(callback)
        return Timer()

    def run_later(self):
        later, self.later = self.later, []
        for callback in later:
            callback()

    def call_soon_threadsafe(self, callback, *args):
        raise AssertionError


class Peer:
    """A client of one connection of a server that keeps contexts until the test answers them."""

    def __init__(self, server=None, **limits):
        self.contexts = []
        self.loop = Loop()
        self.server = server or Http1Server(self.contexts.append, self.loop, Http1Limits(**limits))
        self.transport = Transport()
        self.connection = self.server.protocol()
        self.connection.connection_made(self.transport)

    def send(self, data):
        while data and not self.transport.is_closing():
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    def sweep(self, *seconds):
        for second in seconds:
            self.server.sweep(second * SECOND_NS)

    @property
    def statuses(self):
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", self.transport.output)]

    @property
    def output(self):
        return self.transport.output


def post(body, *fields):
    head = b"\r\n".join([b"POST /a HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *fields, b"", b""])
    return head + body


def answer(context, text=b"ok", status=200):
    context.respond(status, ((b"Content-Type", b"text/plain"),), (text,))

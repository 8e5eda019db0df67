"""A transport whose protocol can be exchanged, and the two protocols that it may end up with."""

import asyncio


class FakeHttp1(asyncio.BufferedProtocol):
    """Stands for `Http1Connection`: receives into a shared buffer."""

    def __init__(self):
        self.buffer = bytearray(256)
        self.received = bytearray()
        self.is_connected = False
        self.saw_eof = False

    def connection_made(self, transport):
        self.is_connected = True

    def connection_lost(self, exc):
        self.is_connected = False

    def get_buffer(self, sizehint):
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes):
        self.received += self.buffer[:nbytes]

    def eof_received(self):
        self.saw_eof = True
        return False


class FakeHttp2(asyncio.Protocol):
    """Stands for `Http2Server` and its one protocol."""

    def __init__(self):
        self.received = bytearray()
        self.is_connected = False

    def protocol(self):
        return self

    def connection_made(self, transport):
        self.is_connected = True

    def data_received(self, data):
        assert self.is_connected
        assert isinstance(data, bytes)
        self.received += data


class FakeTls:
    def __init__(self, agreed):
        self._agreed = agreed

    def selected_alpn_protocol(self):
        return self._agreed


class SwitchingTransport(asyncio.Transport):
    """Delivers to whichever protocol is set, in the way that it asks for."""

    def __init__(self, protocol, tls=None):
        super().__init__({"ssl_object": tls} if tls else {})
        self.protocol = protocol
        self.reading_restarts = 0
        self.is_closed = False

    def connect(self):
        self.protocol.connection_made(self)

    def deliver(self, data):
        if not data or self.is_closed:
            return
        if isinstance(self.protocol, asyncio.BufferedProtocol):
            buffer = self.protocol.get_buffer(65536)
            assert len(buffer) >= len(data)
            buffer[: len(data)] = data
            self.protocol.buffer_updated(len(data))
        else:
            self.protocol.data_received(data)

    def eof(self):
        self.protocol.eof_received()

    def set_protocol(self, protocol):
        self.protocol = protocol

    def pause_reading(self):
        pass

    def resume_reading(self):
        self.reading_restarts += 1

    def is_closing(self):
        return self.is_closed

    def close(self):
        self.is_closed = True

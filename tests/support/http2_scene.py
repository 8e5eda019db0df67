"""A client, a server's HTTP/2 protocol object with a fake loop and transport, and a service that tests look at."""

import hpack

from naiad.frontend.http2.connection import Http2Server
from naiad.wire.http2 import frames as wire
from naiad.wire.http2.frames import frame
from support.http2_peer import GRPC_FIELDS, OPENING, data_frame, split_frames

SECOND_NS = 10**9


class FakeHandle:
    def __init__(self, delay_s, callback):
        self.delay_s = delay_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self):
        self.is_cancelled = True


class FakeLoop:
    """Collects what is scheduled; tests run it."""

    def __init__(self):
        self.soon = []
        self.timers = []

    def call_soon(self, callback):
        self.soon.append(callback)

    def call_later(self, delay_s, callback):
        self.timers.append(FakeHandle(delay_s, callback))
        return self.timers[-1]

    def run_soon(self):
        callbacks, self.soon = self.soon, []
        for callback in callbacks:
            callback()


class FakeTransport:
    def __init__(self):
        self.written = []
        self.unsent_bytes = 0
        self.is_reading = True
        self.is_closed = False
        self.is_aborted = False
        self.is_ended = False

    def write(self, data):
        self.written.append(bytes(data))

    def writelines(self, pieces):
        self.written.append(b"".join(pieces))

    def close(self):
        self.is_closed = True

    def abort(self):
        self.is_closed = self.is_aborted = True

    def is_closing(self):
        return self.is_closed

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True

    def get_extra_info(self, name):
        return None

    def get_write_buffer_size(self):
        return self.unsent_bytes

    def can_write_eof(self):
        return True

    def write_eof(self):
        self.is_ended = True

    def set_write_buffer_limits(self, high, low):
        assert low < high


class FakeService:
    """Keeps the calls; answers those whose path says so."""

    def __init__(self):
        self.calls = []
        self.messages = []
        self.cancelled = []
        self.half_closed = 0
        self.held_after = 0
        """Messages of a stream that it takes before it holds the call; 0 for any number."""
        self.writable = []
        self.draining = []

    def unary(self, call, message):
        self.calls.append(call)
        self.messages.append(bytes(message))
        call.on_cancel = lambda why: self.cancelled.append((call, why))
        if call.path == "/s/Echo":
            call.respond((message,))
        if call.path == "/s/Broken":
            raise ZeroDivisionError

    def message_began(self, call, beginning):
        pass

    def rejection(self, path):
        return None

    def is_streaming(self, path):
        return path == "/s/Stream"

    def stream_message(self, call, message):
        if call not in self.calls:
            self.calls.append(call)
        self.messages.append(bytes(message))
        call.on_cancel = lambda why: self.cancelled.append((call, why))
        if self.held_after and len(self.messages) % self.held_after == 0:
            call.pause()

    def stream_half_closed(self, call):
        self.half_closed += 1

    def stream_writable(self, call):
        self.writable.append((call, call.queued_bytes))

    def stream_draining(self, call):
        self.draining.append(call)


class Scene:
    """A client, a server with a fake loop and transport, and the service behind it."""

    def __init__(self, limits=None, **options):
        self.loop = FakeLoop()
        self.service = FakeService()
        self.server = Http2Server(self.service, self.loop, limits, **options)
        self.protocol = self.server.protocol()
        self.transport = FakeTransport()
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.protocol.connection_made(self.transport)

    def open(self):
        self.send(OPENING)
        self.frames()
        return self

    def send(self, data):
        self.protocol.data_received(data)
        while self.protocol._connection.has_unread and not self.protocol.output.is_paused:
            self.loop.run_soon()

    def headers(self, stream_id, path="/s/Echo", *more):
        fields = [field for field in GRPC_FIELDS if field[0] != ":path"]
        return frame(
            wire.HEADERS, 4, stream_id, self.encoder.encode([*fields[:3], (":path", path), *fields[3:], *more])
        )

    def request(self, stream_id, message, path="/s/Echo", *more):
        return self.headers(stream_id, path, *more) + data_frame(stream_id, framed(message), end=True)

    def frames(self):
        self.loop.run_soon()
        written, self.transport.written = self.transport.written, []
        return list(split_frames(b"".join(written)))

    def answers(self):
        """Return {stream: (fields, body)} of what was written since."""
        answers = {}
        for kind, _, stream_id, payload in self.frames():
            fields, body = answers.setdefault(stream_id, ({}, bytearray()))
            if kind == wire.HEADERS:
                fields.update(self.decoder.decode(payload))
            elif kind == wire.DATA:
                body += payload
        return {stream_id: (fields, bytes(body)) for stream_id, (fields, body) in answers.items() if fields}

    def status(self, stream_id):
        fields, _ = self.answers()[stream_id]
        return fields.get("grpc-status"), fields.get("grpc-message")


def framed(message):
    return b"\0" + len(message).to_bytes(4, "big") + message


def held_scene(limits=None, after=1):
    scene = Scene(limits).open()
    scene.service.held_after = after
    return scene


def start_ns(scene):
    return scene.protocol._clock._begin_ns

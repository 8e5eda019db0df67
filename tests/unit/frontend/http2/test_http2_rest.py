import itertools
import json

import hpack
import pytest

from naiad.core.tensor import Buffer
from naiad.frontend.access.access import Closed
from naiad.frontend.context import CancelReason
from naiad.frontend.http2.connection import Http2Server
from naiad.frontend.http2.endpoint import Http2ResponseHeaders, RestSide
from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import frame, settings, window_update
from support.http2_peer import GRPC_FIELDS, OPENING, data_frame, split_frames

SECOND_NS = 10**9


class Handle:
    def cancel(self):
        pass


class Loop:
    def __init__(self):
        self.soon = []

    def call_soon(self, callback):
        self.soon.append(callback)

    def call_later(self, delay_s, callback):
        return Handle()


class Transport:
    def __init__(self):
        self.written = bytearray()
        self.is_closed = False

    def write(self, data):
        self.written += data

    def writelines(self, pieces):
        self.written += b"".join(pieces)

    def close(self):
        self.is_closed = True

    def is_closing(self):
        return self.is_closed

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def get_extra_info(self, name):
        return None

    def get_write_buffer_size(self):
        return 0

    def set_write_buffer_limits(self, high, low):
        pass


class NoCalls:
    def is_streaming(self, path):
        return False

    def unary(self, call, message):
        raise AssertionError("no gRPC call was made")


class Scene:
    """A client of HTTP/2, a server, and the contexts that its routes received."""

    def __init__(self, limits=None, *, body_bytes=1 << 20, echo=False, **options):
        self.loop = Loop()
        self.contexts = []
        self.echo = echo
        self.side = RestSide(self.handle, body_bytes)
        self.server = Http2Server(NoCalls(), self.loop, limits, rest=self.side, **options)
        self.transport = Transport()
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.protocol = self.server.protocol()
        self.protocol.connection_made(self.transport)
        self.send(OPENING)
        self.frames()

    def handle(self, context):
        self.contexts.append(context)
        if self.echo:
            context.respond(200, ((b"Content-Type", b"text/plain"),), (context.body,))

    def send(self, data):
        self.protocol.data_received(data)

    def head(self, stream_id=1, method="GET", path="/v2", *more, end=True):
        fields = [(":method", method), (":scheme", "http"), (":authority", "host:1"), (":path", path), *more]
        return frame(wire.HEADERS, 4 | (1 if end else 0), stream_id, self.encoder.encode(fields))

    def frames(self):
        soon, self.loop.soon = self.loop.soon, []
        for callback in soon:
            callback()
        written, self.transport.written = bytes(self.transport.written), bytearray()
        return list(split_frames(written))

    def answer(self, stream_id=1):
        """Return status, fields and body of one stream's response, and whether it is complete."""
        fields, body, is_complete = {}, b"", False
        for kind, flags, stream, payload in self.frames():
            if kind == wire.HEADERS:
                decoded = dict(self.decoder.decode(payload))
                fields |= decoded if stream == stream_id else {}
            elif kind == wire.DATA and stream == stream_id:
                body += payload
            elif kind == wire.RST_STREAM and stream == stream_id:
                fields["reset"] = int.from_bytes(payload, "big")
            if stream == stream_id and kind in (wire.HEADERS, wire.DATA) and flags & 1:
                is_complete = True
        return fields, body, is_complete


def exchange_of(scene, *frames):
    for each in frames:
        scene.send(each)
    (context,) = scene.contexts
    return context


# --- requests


def test_request_without_body_reaches_route():
    scene = Scene()
    context = exchange_of(scene, scene.head(1, "GET", "/v2/models/a%20b?x=1", ("x-Custom".lower(), "1")))
    assert (context.method, context.path, context.body) == ("GET", "/v2/models/a b", b"")
    assert context.headers == {b"host": b"host:1", b"x-custom": b"1"}
    assert context.headers.written == [(b"x-custom", b"1")]
    assert context.arrival_ns > 0


def test_repeated_fields_are_joined_cookies_with_semicolons():
    scene = Scene()
    more = [("x-a", "1"), ("x-a", "2"), ("cookie", "a=1"), ("cookie", "b=2"), ("host", "other")]
    headers = exchange_of(scene, scene.head(1, "GET", "/", *more)).headers
    assert (headers[b"x-a"], headers[b"cookie"], headers[b"host"]) == (b"1, 2", b"a=1; b=2", b"host:1")


@pytest.mark.parametrize("cuts", [[], [1], [3, 5]])
@pytest.mark.parametrize("with_length", [True, False])
def test_body_arrives_whole_however_it_is_framed(cuts, with_length):
    scene, body = Scene(), b"0123456789"
    length = [("content-length", "10")] if with_length else []
    edges = [0, *cuts, len(body)]
    pieces = [data_frame(1, body[a:b]) for a, b in itertools.pairwise(edges)]
    context = exchange_of(
        scene, scene.head(1, "POST", "/p", *length, end=False), *pieces, frame(wire.DATA, wire.FLAG_END_STREAM, 1)
    )
    assert bytes(context.body) == body


def test_request_in_one_piece():
    scene = Scene()
    head = scene.head(1, "POST", "/p", end=False)
    scene.send(head + data_frame(1, b"first", end=True))
    repeated = frame(
        wire.HEADERS, 4, 3, scene.encoder.encode([(":method", "POST"), (":scheme", "http"), (":path", "/p")])
    )
    scene.send(repeated + data_frame(3, b"second", end=True))
    assert [bytes(context.body) for context in scene.contexts] == [b"first", b"second"]


@pytest.mark.parametrize("pieces", [1, 3])
def test_binary_tensors_of_a_large_body_are_aligned(pieces):
    scene, json_bytes, size = Scene(), 33, 9000
    fields = [("content-length", str(size)), ("inference-header-content-length", str(json_bytes))]
    body = bytes(range(250)) * (size // 250)
    step = size // pieces
    parts = [data_frame(1, body[i : i + step]) for i in range(0, size, step)]
    context = exchange_of(
        scene, scene.head(1, "POST", "/p", *fields, end=False), b"".join(parts), data_frame(1, b"", end=True)
    )
    assert bytes(context.body) == body
    assert context.body.readonly
    assert _address(context.body) % 64 == -json_bytes % 64


def _address(view: Buffer) -> int:
    import numpy as np

    return np.frombuffer(view, np.uint8).ctypes.data


def test_path_that_is_no_text_is_rejected():
    scene = Scene()
    scene.send(scene.head(1, "GET", "/%ff"))
    fields, body, is_complete = scene.answer()
    assert (fields[":status"], is_complete) == ("400", True)
    assert b"UTF-8" in body
    assert not scene.contexts


@pytest.mark.parametrize("with_length", [True, False])
def test_oversized_body_gets_413_without_route(with_length):
    scene = Scene(body_bytes=8)
    length = [("content-length", "9")] if with_length else []
    scene.send(scene.head(1, "POST", "/p", *length, end=False) + data_frame(1, b"123456789", end=True))
    fields, body, is_complete = scene.answer()
    assert (fields[":status"], is_complete) == ("413", True)
    assert "limit of 8" in json.loads(body)["error"]
    assert not scene.contexts


def test_bodies_of_a_connection_together_are_limited():
    scene = Scene(Http2Limits(collecting_bytes=10))
    scene.send(scene.head(1, "POST", "/p", end=False) + data_frame(1, b"12345678"))
    scene.send(scene.head(3, "POST", "/p", end=False) + data_frame(3, b"12345678"))
    fields, _, _ = scene.answer(3)
    assert fields[":status"] == "413"
    scene.send(data_frame(1, b"", end=True))
    assert bytes(scene.contexts[0].body) == b"12345678"


def test_body_that_makes_no_progress_is_408():
    scene = Scene(Http2Limits(body_timeout_s=5))
    scene.send(scene.head(1, "POST", "/p", end=False) + data_frame(1, b"1"))
    scene.protocol.sweep(scene.protocol._flow.arrival_ns + 6 * SECOND_NS)
    fields, body, _ = scene.answer()
    assert fields[":status"] == "408"
    assert "too slow" in json.loads(body)["error"]


def test_peer_with_expectation_gets_100_continue():
    scene = Scene(echo=True)
    scene.send(scene.head(1, "POST", "/p", ("expect", "100-continue"), ("content-length", "2"), end=False))
    (kind, flags, stream_id, payload) = scene.frames()[0]
    assert (kind, flags, stream_id) == (wire.HEADERS, wire.FLAG_END_HEADERS, 1)
    assert scene.decoder.decode(payload) == [(":status", "100")]
    scene.send(data_frame(1, b"ok", end=True))
    assert scene.answer()[1] == b"ok"


# --- responses


def test_response_has_lower_case_fields_date_and_length():
    scene = Scene(echo=True)
    scene.send(scene.head(1, "POST", "/p", end=False) + data_frame(1, b"hello", end=True))
    fields, body, is_complete = scene.answer()
    assert (body, is_complete) == (b"hello", True)
    assert list(fields) == [":status", "content-type", "date", "content-length"]
    assert (fields[":status"], fields["content-length"]) == ("200", "5")


def test_response_without_a_body_ends_with_its_head():
    scene = Scene(echo=True)
    scene.send(scene.head())
    frames = scene.frames()
    assert [(kind, flags) for kind, flags, _, _ in frames] == [(wire.HEADERS, 5)]


def test_head_response_has_fields_without_body():
    scene = Scene()
    exchange_of(scene, scene.head(1, "HEAD")).respond(200, (), (b"12345",))
    fields, body, is_complete = scene.answer()
    assert (fields["content-length"], body, is_complete) == ("5", b"", True)


def test_later_response_is_written_at_callback_end():
    scene = Scene()
    context = exchange_of(scene, scene.head())
    assert not scene.frames()
    context.respond(404, ((b"X", b"y"),), (b"a", b"b"))
    fields, body, _ = scene.answer()
    assert (fields[":status"], fields["x"], body) == ("404", "y", b"ab")


def test_response_larger_than_window_waits():
    scene = Scene()
    scene.send(settings({wire.SETTING_INITIAL_WINDOW_SIZE: 3}))
    context = exchange_of(scene, scene.head())
    context.respond(200, (), (b"12345",))
    assert scene.answer()[1:] == (b"123", False)
    scene.send(window_update(1, 10))
    assert scene.answer()[1:] == (b"45", True)


def test_only_the_first_response_counts():
    scene = Scene()
    context = exchange_of(scene, scene.head())
    context.respond(200, (), (b"a",))
    context.respond(500, (), (b"b",))
    context.end()
    assert scene.answer()[1] == b"a"


def test_streamed_response():
    scene = Scene()
    context = exchange_of(scene, scene.head())
    context.start_stream(200, ((b"Content-Type", b"text/event-stream"),))
    context.send((b"one", b"two"))
    fields, body, is_complete = scene.answer()
    assert ("content-length" in fields, body, is_complete) == (False, b"onetwo", False)
    context.send((b"three",))
    context.end()
    assert scene.answer()[1:] == (b"three", True)


def test_unread_streamed_response_is_cancelled():
    scene = Scene(Http2Limits(queued_bytes=4))
    scene.send(settings({wire.SETTING_INITIAL_WINDOW_SIZE: 0}))
    context = exchange_of(scene, scene.head())
    gone = []
    context.on_disconnect = gone.append
    context.start_stream(200, ())
    context.send((b"12345",))
    context.send((b"more",))
    fields, _, _ = scene.answer()
    assert (fields["reset"], gone) == (wire.Http2Code.ENHANCE_YOUR_CALM, [CancelReason.DROPPED])
    context.send((b"unsent",))
    context.end()
    assert not scene.frames()


def test_streaming_route_is_paused_and_resumed_with_peer():
    scene = Scene()
    context = exchange_of(scene, scene.head())
    pauses = []
    context.on_pause = pauses.append
    context.start_stream(200, ())
    for _ in range(5):
        context.send((bytes(100_000),))
    assert pauses == [True]
    assert context.unread_bytes == 500_000 - 65_535
    scene.frames()
    scene.send(window_update(0, 1 << 20) + window_update(1, 300_000))
    assert pauses == [True]
    scene.send(window_update(1, 100_000))
    assert pauses == [True, False]
    assert not scene.protocol._flow.watching


def test_ending_paused_response_does_not_call_route():
    scene = Scene()
    context = exchange_of(scene, scene.head())
    pauses = []
    context.on_pause = pauses.append
    context.start_stream(200, ())
    context.send((bytes(500_000),))
    context.end()
    scene.send(window_update(0, 1 << 20) + window_update(1, 1 << 20))
    assert scene.answer()[2]
    assert pauses == [True]


def test_failing_route_gets_500_and_keeps_connection(caplog):
    scene = Scene()
    scene.side.handle = lambda context: 1 / 0
    scene.send(scene.head())
    fields, body, _ = scene.answer()
    assert (fields[":status"], json.loads(body)["error"]) == ("500", "internal error; see the server log")
    assert "the route of GET /v2 failed" in caplog.text
    scene.side.handle = scene.handle
    scene.echo = True
    scene.send(scene.head(3))
    assert scene.answer(3)[0][":status"] == "200"


def test_route_failing_during_response_resets_stream(caplog):
    def fail(context):
        context.start_stream(200, ())
        context.send((b"half",))
        raise ZeroDivisionError

    scene = Scene()
    scene.side.handle = fail
    scene.send(scene.head())
    fields, _, is_complete = scene.answer()
    assert "reset" in fields
    assert not is_complete


# --- disconnects


@pytest.mark.parametrize("why", [CancelReason.CANCELLED, CancelReason.DISCONNECTED])
def test_route_is_notified_when_peer_disconnects(why):
    scene = Scene()
    context = exchange_of(scene, scene.head())
    gone = []
    context.on_disconnect = gone.append
    if why is CancelReason.CANCELLED:
        scene.send(wire.rst_stream(1, wire.Http2Code.CANCEL))
    else:
        scene.protocol.connection_lost(None)
    assert gone == [why]
    context.respond(200, (), (b"late",))
    assert not scene.frames()


def test_context_with_response_is_not_notified():
    scene = Scene()
    context = exchange_of(scene, scene.head())
    gone = []
    context.on_disconnect = gone.append
    context.respond(200, (), ())
    assert context.on_disconnect is None
    scene.protocol.connection_lost(None)
    assert not gone


# --- together with gRPC


def test_grpc_is_rejected_with_grpc_status_without_grpc():
    scene = Scene(rule=Closed("--allow-grpc=false"))
    scene.send(frame(wire.HEADERS, 4, 1, scene.encoder.encode(GRPC_FIELDS)) + data_frame(1, bytes(5), end=True))
    fields, _, is_complete = scene.answer()
    assert (fields[":status"], fields["grpc-status"], is_complete) == ("200", "12", True)
    assert "--allow-grpc=false" in fields["grpc-message"]


def test_rest_is_rejected_where_it_is_not_served():
    scene = Scene()
    scene.server.rest = None
    protocol = scene.server.protocol()
    transport = Transport()
    protocol.connection_made(transport)
    encoder = hpack.Encoder()
    block = encoder.encode([(":method", "GET"), (":scheme", "http"), (":path", "/v2")])
    protocol.data_received(OPENING + frame(wire.HEADERS, 5, 1, block))
    assert b"REST is served on the HTTP port" in transport.written


def test_response_headers_are_cached_within_bounds():
    heads = Http2ResponseHeaders()
    first = heads.complete(200, ((b"A", b"b"),), 1)
    for number in range(1000):
        heads.complete(200, ((b"A", b"%d" % number),), 1)
    assert heads.complete(200, ((b"A", b"b"),), 1) == first
    assert len(heads._prefixes) <= 256
    heads.set_date(1e9)
    assert heads.complete(200, ((b"A", b"b"),), 1) != first

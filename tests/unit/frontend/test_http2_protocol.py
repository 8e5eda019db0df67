import hpack
import pytest

from naiad.frontend.departure import Departure
from naiad.frontend.http2 import Http2Server
from naiad.frontend.http2_hold import HeldBody
from naiad.wire import http2_frames as wire
from naiad.wire.http2_frames import frame, window_update
from naiad.wire.keepalive import KeepaliveRules
from naiad.wire.limits import Http2Limits
from support.http2_peer import GRPC_FIELDS, OPENING, data_frame, settings_frame, split_frames

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

    def is_streaming(self, path):
        return path == "/s/Stream"

    def stream_message(self, call, message):
        if call not in self.calls:
            self.calls.append(call)
        self.messages.append(bytes(message))
        call.on_cancel = lambda why: self.cancelled.append((call, why))
        if self.held_after and len(self.messages) % self.held_after == 0:
            call.hold()

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


@pytest.fixture
def scene():
    return Scene().open()


@pytest.mark.parametrize(
    ("size", "took_ns", "pauses"), [(70_000, 3_000_000, True), (70_000, 1, False), (60_000, 3_000_000, False)]
)
def test_peer_whose_bytes_take_long_lets_others_pass(monkeypatch, size, took_ns, pauses):
    scene = Scene().open()
    times = iter(range(10**9, 10**12, took_ns))
    monkeypatch.setattr("naiad.frontend.http2_protocol._now_ns", lambda: next(times))
    scene.send(frame(0x77, 0, 0, bytes(size)))
    assert scene.transport.is_reading is not pauses
    scene.loop.run_soon()
    assert scene.transport.is_reading


def test_unary_call_is_answered_with_status_ok(scene):
    for stream_id in (1, 3, 5):  # by the long way, then by the short one
        scene.send(scene.request(stream_id, b"hello"))
        fields, body = scene.answers()[stream_id]
        assert fields[":status"] == "200"
        assert fields["content-type"] == "application/grpc"
        assert fields["grpc-status"] == "0"
        assert body == framed(b"hello")


def test_call_tells_path_metadata_and_arrival(scene):
    scene.send(scene.request(1, b"", "/s/Keep", ("x-request", "7")))
    (call,) = scene.service.calls
    assert call.path == "/s/Keep"
    assert (b"x-request", b"7") in call.metadata
    assert not [name for name, _ in call.metadata if name.startswith(b":")]
    assert call.arrival_ns > 0
    assert call.deadline_ns == 0


def test_answers_of_one_callback_leave_with_one_write(scene):
    scene.send(scene.request(1, b"a"))
    scene.send(scene.request(3, b"a"))
    scene.frames()
    scene.send(b"".join(scene.request(i, b"a") for i in (5, 7, 9)))
    assert len(scene.transport.written) == 1
    assert sorted(scene.answers()) == [5, 7, 9]


def test_answers_from_later_callbacks_leave_with_one_write(scene):
    scene.send(scene.request(1, b"a", "/s/Keep") + scene.request(3, b"b", "/s/Keep"))
    for call in scene.service.calls:
        call.respond([b"later"])
    assert scene.transport.written == []
    assert len(scene.loop.soon) == 1
    scene.loop.run_soon()
    assert len(scene.transport.written) == 1


def test_second_answer_does_nothing(scene):
    scene.send(scene.request(1, b"a"))
    (call,) = scene.service.calls
    scene.frames()
    call.respond([b"again"])
    call.send([b"again"])
    call.finish(0)
    assert scene.frames() == []


def test_failed_call_is_trailers_only(scene):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.service.calls[0].finish(3, "bad: ü%", ((b"x-more", b"1"),))
    (headers,) = scene.frames()
    assert headers[1] == wire.FLAG_END_HEADERS | wire.FLAG_END_STREAM
    fields = dict(scene.decoder.decode(headers[3]))
    assert fields["grpc-status"] == "3"
    assert fields["grpc-message"] == "bad: %C3%BC%25"
    assert fields["x-more"] == "1"


def test_message_over_several_frames(scene):
    scene.send(scene.headers(1) + data_frame(1, framed(b"hello")[:7]))
    scene.send(data_frame(1, framed(b"hello")[7:]) + data_frame(1, b"", end=True))
    assert scene.answers()[1][1] == framed(b"hello")


@pytest.mark.parametrize("body", [framed(b"a") + framed(b"b"), b""])
def test_unary_call_needs_exactly_one_message(scene, body):
    scene.send(scene.headers(1) + data_frame(1, body, end=True))
    assert scene.status(1)[0] == "12"
    assert scene.service.calls == []


def test_message_cut_short_is_refused(scene):
    scene.send(scene.headers(1) + data_frame(1, framed(b"hello")[:-1], end=True))
    assert scene.status(1)[0] == "13"


def test_message_above_the_limit_is_refused_before_it_has_come():
    scene = Scene(Http2Limits(message_bytes=10)).open()
    scene.send(scene.headers(1) + data_frame(1, framed(bytes(11))[:6]))
    frames = scene.frames()
    assert [kind for kind, _, _, _ in frames] == [wire.HEADERS, wire.RST_STREAM]
    assert dict(scene.decoder.decode(frames[0][3]))["grpc-status"] == "8"
    scene.send(data_frame(1, bytes(11), end=True) + scene.request(3, b"x" * 10))
    assert scene.answers()[3][1] == framed(b"x" * 10)


def test_short_way_keeps_the_limit():
    scene = Scene(Http2Limits(message_bytes=10)).open()
    for stream_id in (1, 3, 5):
        scene.send(scene.request(stream_id, bytes(11)))
        assert scene.status(stream_id)[0] == "8"


def test_incomplete_messages_of_a_connection_are_bounded():
    scene = Scene(Http2Limits(collecting_bytes=100)).open()
    scene.send(scene.headers(1) + data_frame(1, framed(bytes(60))))  # complete, but its stream has not ended
    scene.send(scene.headers(3) + data_frame(3, framed(bytes(200))[:60]))
    assert scene.status(3)[0] == "8"
    scene.send(data_frame(1, b"", end=True))
    assert scene.answers()[1][1] == framed(bytes(60))


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        (("grpc-encoding", "snappy"), "12", "gzip"),
        (("grpc-timeout", "1x"), "13", "grpc-timeout"),
    ],
)
def test_bad_grpc_fields_are_refused(scene, more, status, words):
    for stream_id in (1, 3, 5):
        scene.send(scene.request(stream_id, b"x", "/s/Echo", more))
        seen, message = scene.status(stream_id)
        assert seen == status
        assert words in message


def test_other_content_is_refused_with_415(scene):
    block = scene.encoder.encode([(":method", "GET"), (":scheme", "http"), (":path", "/v2"), (":authority", "x")])
    scene.send(frame(wire.HEADERS, 5, 1, block))
    fields, body = scene.answers()[1]
    assert fields[":status"] == "415"
    assert b"gRPC" in body
    assert int(fields["content-length"]) == len(body)


def test_http1_client_is_told(scene):
    scene = Scene()
    scene.send(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"".join(scene.transport.written).startswith(b"HTTP/1.1 400 ")
    assert scene.transport.is_closed


def test_defect_of_the_service_costs_one_call(scene, caplog):
    for stream_id in (1, 3, 5):
        scene.send(scene.request(stream_id, b"x", "/s/Broken"))
        assert scene.status(stream_id)[0] == "13"
    scene.send(scene.request(7, b"x"))
    assert scene.answers()[7][1] == framed(b"x")
    assert "ZeroDivisionError" in caplog.text


# Streaming


def test_streaming_call_gets_its_messages_one_by_one(scene):
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a") + framed(b"b")[:4]))
    assert scene.service.messages == [b"a"]
    (call,) = scene.service.calls
    call.send([b"one"])
    call.send([b"t", b"wo"])
    assert scene.answers()[1][1] == framed(b"one") + framed(b"two")
    scene.send(data_frame(1, framed(b"b")[4:], end=True))
    assert scene.service.messages == [b"a", b"b"]
    assert scene.service.half_closed == 1
    call.finish(0)
    assert scene.status(1) == ("0", None)


def test_streaming_call_in_one_piece(scene):
    for stream_id in (1, 3, 5):
        scene.send(scene.request(stream_id, b"m", "/s/Stream"))
    assert scene.service.messages == [b"m"] * 3
    assert scene.service.half_closed == 3


def test_call_whose_peer_does_not_read_tells_what_waits_and_is_ended():
    scene = Scene(Http2Limits(queued_bytes=100_000)).open()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    (call,) = scene.service.calls
    call.send([bytes(100_000)])
    assert 0 < call.queued_bytes < 100_000
    call.send([bytes(100_000)])
    call.send([bytes(100_000)])
    assert scene.service.cancelled == [(call, Departure.DROPPED)]
    assert scene.frames()[-1][0] == wire.RST_STREAM
    assert scene.protocol.output.queued_bytes == 0


# Streaming calls that are held


def held_scene(limits=None, after=1):
    scene = Scene(limits).open()
    scene.service.held_after = after
    return scene


def test_held_call_gets_its_messages_when_it_is_released():
    scene = held_scene()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a") + framed(b"b") + framed(b"c")[:3]))
    scene.send(data_frame(1, framed(b"c")[3:] + framed(b"d"), end=True))
    assert scene.service.messages == [b"a"]
    (call,) = scene.service.calls
    for messages in ([b"a", b"b"], [b"a", b"b", b"c"], [b"a", b"b", b"c", b"d"]):
        assert scene.service.half_closed == 0
        call.release()
        assert scene.service.messages == messages
    call.release()
    assert scene.service.half_closed == 1
    assert call.arrival_ns > 0
    call.release()
    assert scene.service.half_closed == 1


def test_messages_of_other_calls_go_on(scene):
    scene = held_scene(after=1)
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a") + framed(b"b")))
    scene.send(scene.request(3, b"x"))
    assert scene.answers()[3][1] == framed(b"x")
    assert scene.service.messages == [b"a", b"x"]


def test_held_call_gets_no_window_until_it_is_released():
    scene = held_scene(Http2Limits(stream_window_bytes=65_536, frame_bytes=2**14))
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    for _ in range(3):
        scene.send(data_frame(1, framed(bytes(16_000))))
    assert [f for f in scene.frames() if f[0] == wire.WINDOW_UPDATE and f[2] == 1] == []
    scene.service.held_after = 0
    (call,) = scene.service.calls
    call.release()
    (update,) = [f for f in scene.frames() if f[0] == wire.WINDOW_UPDATE and f[2] == 1]
    assert int.from_bytes(update[3], "big") == 3 * 16_005 + 6
    assert len(scene.service.messages) == 4


def test_held_call_whose_peer_sends_beyond_the_window_is_reset():
    scene = held_scene(Http2Limits(stream_window_bytes=65_536, frame_bytes=2**14))
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    scene.send(b"".join(data_frame(1, framed(bytes(16_000))) for _ in range(5)))
    assert scene.frames()[-1][0] == wire.RST_STREAM
    assert scene.service.cancelled == [(call, Departure.REFUSED) for call in scene.service.calls]


def test_what_a_held_call_has_not_taken_counts_as_incomplete():
    scene = held_scene(Http2Limits(collecting_bytes=100))
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    scene.send(data_frame(1, framed(bytes(40))) + data_frame(1, framed(bytes(60))))
    assert scene.status(1)[0] == "8"
    assert scene.service.cancelled == [(call, Departure.REFUSED) for call in scene.service.calls]


def test_held_call_that_is_reset_is_forgotten():
    scene = held_scene()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a") + framed(b"b")))
    (call,) = scene.service.calls
    scene.send(frame(wire.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    scene.service.writable.clear()
    scene.send(frame(wire.PING, 0, 0, bytes(8)))
    assert scene.service.writable == []
    call.release()
    call.hold()
    assert scene.service.messages == [b"a"]


def test_bad_message_among_those_that_waited_ends_the_call():
    scene = held_scene()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    scene.send(data_frame(1, b"\x07\0\0\0\0"))
    (call,) = scene.service.calls
    call.release()
    assert scene.status(1)[0] == "13"


def test_held_call_is_told_when_bytes_have_left():
    scene = held_scene()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    (call,) = scene.service.calls
    call.send([bytes(100_000)])
    scene.frames()
    queued_bytes = call.queued_bytes
    assert queued_bytes > 0
    scene.service.writable.clear()
    scene.send(window_update(0, 100_000) + window_update(1, 100_000))
    assert scene.service.writable == [(call, 0)]


def test_held_call_is_told_of_what_leaves_while_others_are_told():
    """An answer that the service sends when it is told may leave at once: that is to be told as well."""
    scene = held_scene()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"a")))
    (call,) = scene.service.calls
    told = []

    def writable(call):
        told.append(call.queued_bytes)
        if len(told) == 1:
            call.send((bytes(10_000_000),))  # more than the transport is handed at a time

    scene.service.stream_writable = writable
    scene.send(settings_frame({4: 2**31 - 1}) + window_update(0, 2**30))
    assert told == [0, 0]
    assert call.queued_bytes == 0


@pytest.mark.parametrize("has_more", [False, True])
def test_call_that_the_service_ends_gives_back_what_was_collected(has_more):
    scene = Scene(Http2Limits(collecting_bytes=100)).open()
    for stream_id in (1, 3, 5):
        # The service ends the call while a message is on its way, or with the message that came before it.
        scene.service.stream_message = lambda call, message: has_more and call.finish(9)
        scene.send(scene.headers(stream_id, "/s/Stream"))
        call = scene.protocol._connection.streams[stream_id]
        scene.send(data_frame(stream_id, framed(b"a") + framed(bytes(70))[:60]))
        call.finish(9)
        assert scene.status(stream_id)[0] == "9"
    scene.send(scene.headers(7) + data_frame(7, framed(bytes(70))[:60]))
    scene.send(data_frame(7, framed(bytes(70))[60:], end=True))
    assert scene.status(7)[0] == "0"


def test_small_pieces_of_a_held_body_share_memory():
    body = HeldBody()
    for _ in range(100_000):
        body.append(memoryview(b"x"))
    chunks = []
    while body.unread_bytes:
        chunks.append(bytes(body.take_chunk()))
    assert b"".join(chunks) == b"x" * 100_000
    assert len(chunks) == 2


def test_draining_reaches_streaming_calls(scene):
    scene.send(scene.request(1, b"a", "/s/Keep") + scene.headers(3, "/s/Stream") + data_frame(3, framed(b"a")))
    scene.server.drain()
    stream = scene.service.calls[1]
    assert scene.service.draining == [stream]
    scene.server.sweep(1)
    assert scene.service.draining == [stream] * 2
    stream.finish(14)
    scene.server.sweep(2)
    assert scene.service.draining == [stream] * 2


# Cancellation and deadlines


def test_reset_cancels_the_call(scene):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.send(frame(wire.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert scene.service.cancelled == [(call, Departure.CANCELLED) for call in scene.service.calls]
    scene.service.calls[0].respond([b"late"])
    assert scene.frames() == []


@pytest.mark.parametrize(("code", "said"), [(0, ""), (1, "with PROTOCOL_ERROR"), (8, ""), (99, "with error code 99")])
def test_a_peer_that_finds_fault_with_its_answer_is_in_the_log_once(scene, caplog, code, said):
    for stream_id in (1, 3):
        scene.send(scene.request(stream_id, b"a", "/s/Keep"))
        scene.send(frame(wire.RST_STREAM, 0, stream_id, code.to_bytes(4, "big")))
    lines = [line for line in caplog.messages if "reset" in line]
    assert lines == ([f"the client reset its call of /s/Keep {said}"] if said else [])


def test_lost_connection_cancels_all_calls(scene):
    scene.send(scene.request(1, b"a", "/s/Keep") + scene.request(3, b"a", "/s/Keep"))
    scene.protocol.connection_lost(None)
    assert scene.service.cancelled == [(call, Departure.DISCONNECTED) for call in scene.service.calls]
    scene.service.calls[0].respond([b"late"])
    scene.loop.run_soon()
    assert scene.server.connection_count == 0


def test_failing_cancel_is_logged(scene, caplog):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.service.calls[0].on_cancel = lambda why: 1 // 0
    scene.send(frame(wire.RST_STREAM, 0, 1, bytes(4)))
    assert "ZeroDivisionError" in caplog.text
    assert not scene.transport.is_closed


def test_deadline_ends_the_call_and_cancels_it(scene, monkeypatch):
    for stream_id in (1, 3):
        scene.send(scene.request(stream_id, b"a", "/s/Keep", ("grpc-timeout", "2S")))
    scene.send(scene.request(5, b"a", "/s/Keep"))
    first, second, third = scene.service.calls
    assert first.deadline_ns - first.arrival_ns == 2 * SECOND_NS
    assert third.deadline_ns == 0
    timers = [timer for timer in scene.loop.timers if timer.delay_s == 2.0]
    assert len(timers) == 1  # one for both
    deadlines = scene.protocol._deadlines
    deadlines._now_ns = lambda: first.deadline_ns
    second.deadline_ns = first.deadline_ns + SECOND_NS
    timers[0].callback()
    assert scene.status(1) == ("4", "Deadline Exceeded")
    assert scene.service.cancelled == [(first, Departure.DEADLINE)]
    assert scene.loop.timers[-1].delay_s == 1.0  # now for the second
    second.respond([b"in time"])
    scene.frames()
    deadlines._now_ns = lambda: second.deadline_ns
    count = len(scene.loop.timers)
    scene.loop.timers[-1].callback()
    assert scene.frames() == []
    assert len(scene.loop.timers) == count


def test_shorter_deadline_rearms_the_timer(scene):
    scene.send(scene.request(1, b"a", "/s/Keep", ("grpc-timeout", "9S")))
    scene.send(scene.request(3, b"a", "/s/Keep", ("grpc-timeout", "1S")))
    long, short = scene.loop.timers[-2:]
    assert long.is_cancelled
    assert short.delay_s == 1.0


# Back pressure


def test_full_socket_pauses_reading_and_making_frames(scene):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.protocol.pause_writing()
    assert not scene.transport.is_reading
    scene.service.calls[0].send([bytes(1000)])
    assert [kind for kind, _, _, _ in scene.frames()] == [wire.HEADERS]
    scene.protocol.resume_writing()
    assert scene.transport.is_reading
    assert [kind for kind, _, _, _ in scene.frames()] == [wire.DATA]


def connection_updates(frames):
    return [frame for frame in frames if frame[0] == wire.WINDOW_UPDATE and frame[2] == 0]


def test_large_messages_that_wait_get_no_window_for_more():
    scene = Scene(Http2Limits(outstanding_bytes=150_000, connection_window_bytes=500_000)).open()
    for stream_id in (1, 3):
        scene.send(scene.headers(stream_id, "/s/Keep") + data_frame(stream_id, framed(bytes(100_000)), end=True))
    scene.send(scene.headers(7, "/s/Keep") + data_frame(7, framed(bytes(60_000)), end=True))
    assert connection_updates(scene.frames()) == []
    # What the peer says meanwhile is heard.
    scene.send(frame(wire.PING, 0, 0, bytes(8)) + scene.request(9, b"small"))
    assert wire.PING in {kind for kind, _, _, _ in scene.frames()}
    scene.send(frame(wire.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert scene.service.cancelled == [(scene.service.calls[0], Departure.CANCELLED)]
    assert len(connection_updates(scene.frames())) == 1
    scene.service.calls[1].finish(13)
    assert scene.protocol._held_bytes == 0


def test_window_of_messages_that_wait_comes_back_with_an_answer():
    scene = Scene(Http2Limits(outstanding_bytes=150_000, connection_window_bytes=500_000)).open()
    for stream_id in (1, 3):
        scene.send(scene.headers(stream_id, "/s/Keep") + data_frame(stream_id, framed(bytes(100_000)), end=True))
    scene.send(scene.headers(7, "/s/Keep") + data_frame(7, framed(bytes(60_000)), end=True))
    assert connection_updates(scene.frames()) == []
    scene.service.calls[0].respond([b""])
    assert len(connection_updates(scene.frames())) == 1


def congested_scene():
    """A client with windows of 64 KiB that has not read an answer of 100 KB."""
    scene = Scene(Http2Limits(queued_bytes=10_000)).open()
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.service.calls[0].respond([bytes(100_000)])
    scene.frames()
    return scene


READ = window_update(0, 10**6) + window_update(1, 10**6)


@pytest.mark.parametrize("size", [3, 100_000])
def test_requests_wait_while_the_peer_does_not_take_answers(size):
    scene = congested_scene()
    message = bytes(range(256)) * (size // 256) + b"end"
    for stream_id in (3, 5):
        scene.send(scene.headers(stream_id) + data_frame(stream_id, framed(message), end=True))
    assert scene.frames() == []
    scene.send(READ + window_update(3, 10**6) + window_update(5, 10**6))
    assert scene.service.messages == [b"a", message, message]
    answers = scene.answers()
    assert [answers[stream_id][1] for stream_id in (3, 5)] == [framed(message)] * 2
    assert scene.protocol._held_bytes == 0


def test_requests_that_wait_are_served_when_the_answer_before_them_is_given_up():
    scene = congested_scene()
    scene.send(scene.request(3, b"b"))
    scene.send(frame(wire.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert scene.service.messages == [b"a", b"b"]
    scene.send(window_update(0, 10))
    assert scene.answers()[3][1] == framed(b"b")


def test_request_that_is_reset_while_it_waits_is_not_served():
    scene = congested_scene()
    scene.send(scene.request(3, b"b") + frame(wire.RST_STREAM, 0, 3, b"\0\0\0\x08"))
    scene.send(READ)
    assert scene.service.messages == [b"a"]


def test_request_whose_deadline_passes_while_it_waits_is_not_served(monkeypatch):
    scene = congested_scene()
    scene.send(scene.request(3, b"b", "/s/Keep", ("grpc-timeout", "1S")))
    monkeypatch.setattr(scene.protocol._deadlines, "_now_ns", lambda: 1 << 62)
    scene.loop.timers[-1].callback()
    assert scene.status(3)[0] == "4"
    scene.send(READ)
    assert scene.service.messages == [b"a"]


def test_requests_that_wait_are_forgotten_with_their_connection():
    scene = congested_scene()
    scene.send(scene.request(3, b"b"))
    scene.protocol.connection_lost(None)
    assert scene.service.messages == [b"a"]
    assert not scene.protocol._waiting


def test_large_answer_goes_on_when_the_peer_opens_its_window(scene):
    scene.send(settings_frame({4: 2**31 - 1, 5: 2**20}) + window_update(0, 2**30))
    scene.send(scene.request(1, b"a", "/s/Keep"))
    body = bytes(10 * 2**20)
    scene.service.calls[0].respond([body])
    assert scene.answers()[1][1] == framed(body)


# Time limits


def start_ns(scene):
    return scene.protocol._clock._begin_ns


def test_peer_that_says_nothing_is_closed():
    scene = Scene(Http2Limits(preface_timeout_s=5))
    scene.server.sweep(start_ns(scene) + 4 * SECOND_NS)
    assert not scene.transport.is_closed
    scene.server.sweep(start_ns(scene) + 5 * SECOND_NS)
    assert scene.transport.is_closed


def test_idle_connection_stays_open(scene):
    scene.server.sweep(start_ns(scene) + 10**6 * SECOND_NS)
    assert not scene.transport.is_closed


def test_frame_that_is_never_completed_closes_the_connection(scene):
    scene.send(scene.headers(1)[:-1])
    scene.server.sweep(start_ns(scene) + 40 * SECOND_NS)
    assert scene.transport.is_closed


def test_body_without_progress_ends_the_call_not_the_connection(scene):
    scene.send(scene.headers(1) + data_frame(1, framed(b"abc")[:6]))
    scene.send(scene.headers(3, "/s/Stream"))
    scene.server.sweep(start_ns(scene) + 200 * SECOND_NS)
    answers = scene.answers()
    assert answers[1][0]["grpc-status"] == "4"
    assert 3 not in answers
    assert not scene.transport.is_closed


def test_body_that_gets_no_window_is_not_late():
    scene = Scene(Http2Limits(outstanding_bytes=100_000)).open()
    scene.send(scene.headers(1, "/s/Keep") + data_frame(1, framed(bytes(200_000)), end=True))
    scene.send(scene.headers(3) + data_frame(3, framed(b"abc")[:6]))
    begin_ns = start_ns(scene)
    scene.server.sweep(begin_ns + 200 * SECOND_NS)
    scene.service.calls[0].respond([b""])
    scene.server.sweep(begin_ns + 201 * SECOND_NS)
    scene.send(data_frame(3, framed(b"abc")[6:], end=True))
    assert scene.answers()[3][0]["grpc-status"] == "0"


def test_frame_whose_rest_is_not_read_is_not_late(scene):
    scene.send(scene.headers(1)[:-1])
    scene.protocol.pause_writing()
    scene.server.sweep(start_ns(scene) + 40 * SECOND_NS)
    scene.protocol.resume_writing()
    scene.server.sweep(start_ns(scene) + 41 * SECOND_NS)
    assert not scene.transport.is_closed
    scene.server.sweep(start_ns(scene) + 80 * SECOND_NS)
    assert scene.transport.is_closed


def test_answer_to_a_ping_that_is_not_read_is_no_sign_of_death():
    rules = KeepaliveRules(time_s=10, timeout_s=5, permits_without_calls=True)
    scene = Scene(Http2Limits(keepalive=rules)).open()
    begin_ns = start_ns(scene)
    scene.server.sweep(begin_ns + 11 * SECOND_NS)
    assert [kind for kind, _, _, _ in scene.frames()] == [wire.PING]
    scene.protocol.pause_writing()
    scene.server.sweep(begin_ns + 30 * SECOND_NS)
    scene.protocol.resume_writing()
    scene.server.sweep(begin_ns + 31 * SECOND_NS)
    assert not scene.transport.is_aborted


def test_answers_that_wait_for_their_turn_on_a_slow_line_are_kept(scene):
    scene.send(settings_frame({4: 2**31 - 1}))
    for stream_id in (1, 3, 5, 7):
        scene.send(scene.request(stream_id, b"a", "/s/Keep"))
        scene.service.calls[-1].respond([bytes(10**6)])
    begin_ns = start_ns(scene)
    for turn in range(20):
        scene.server.sweep(begin_ns + turn * 30 * SECOND_NS)
        scene.send(window_update(0, 10))
    kinds = {kind for kind, _, _, _ in scene.frames()}
    assert wire.RST_STREAM not in kinds
    for turn in range(20, 24):
        scene.server.sweep(begin_ns + turn * 30 * SECOND_NS)
    assert [kind for kind, _, _, _ in scene.frames()].count(wire.RST_STREAM) == 4


def test_answer_that_the_peer_does_not_take_is_dropped(scene):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.service.calls[0].respond([bytes(10**6)])
    begin_ns = start_ns(scene)
    scene.server.sweep(begin_ns + SECOND_NS)
    scene.send(window_update(0, 10) + window_update(1, 10))  # progress
    scene.server.sweep(begin_ns + 2 * SECOND_NS)
    scene.server.sweep(begin_ns + 61 * SECOND_NS)
    assert scene.protocol.output.queued_bytes > 0
    scene.server.sweep(begin_ns + 62 * SECOND_NS)
    assert scene.protocol.output.queued_bytes == 0
    assert scene.frames()[-1][0] == wire.RST_STREAM


def test_socket_that_takes_nothing_is_dropped(scene):
    scene.transport.unsent_bytes = 1000
    begin_ns = start_ns(scene)
    scene.server.sweep(begin_ns)
    scene.transport.unsent_bytes = 999
    scene.server.sweep(begin_ns + 60 * SECOND_NS)
    assert not scene.transport.is_aborted
    scene.server.sweep(begin_ns + 120 * SECOND_NS)
    assert scene.transport.is_aborted


# The end


def test_drain_lets_calls_finish(scene):
    scene.send(scene.request(1, b"a", "/s/Keep"))
    scene.server.drain()
    first, ping = scene.frames()
    assert first[0] == wire.GOAWAY
    scene.send(frame(wire.PING, wire.FLAG_ACK, 0, ping[3]))
    assert not scene.transport.is_closed
    scene.service.calls[0].respond([b"last"])
    assert scene.answers()[1][1] == framed(b"last")
    assert scene.transport.is_closed


def test_drain_does_not_wait_for_a_peer_that_answers_no_ping(scene):
    scene.server.drain()
    for _ in range(2):
        scene.server.sweep(start_ns(scene))
    assert scene.transport.is_closed


def test_goaway_of_the_peer_closes_after_its_calls(scene):
    scene.send(scene.request(1, b"a", "/s/Keep") + frame(wire.GOAWAY, 0, 0, bytes(8)))
    assert not scene.transport.is_closed
    scene.service.calls[0].respond([b"x"])
    scene.frames()
    assert scene.transport.is_closed


def test_connection_error_is_told_and_closes(scene):
    scene.send(frame(wire.PING, 0, 0, b""))
    assert [kind for kind, _, _, _ in scene.frames()] == [wire.GOAWAY]
    assert scene.transport.is_closed


def test_connections_are_counted_and_bounded():
    scene = Scene(max_connections=1)
    assert scene.server.connection_count == 1
    second = scene.server.protocol()
    transport = FakeTransport()
    second.connection_made(transport)
    assert transport.is_closed
    assert list(split_frames(b"".join(transport.written)))[-1][0] == wire.GOAWAY
    second.connection_lost(None)
    assert scene.server.connection_count == 1


def test_abort_drops_connections(scene):
    scene.server.abort()
    assert scene.transport.is_aborted


def test_server_without_connections_has_no_timer():
    scene = Scene()
    (timer,) = scene.loop.timers
    scene.protocol.connection_lost(None)
    timer.callback()
    assert len(scene.loop.timers) == 1


# Keepalive and age; the rules themselves are tested with `wire.keepalive`


def test_silent_peer_gets_a_ping_and_is_then_dropped():
    scene = Scene(Http2Limits(keepalive=KeepaliveRules(time_s=10, timeout_s=5, permits_without_calls=True))).open()
    heard_ns = scene.protocol._arrival_ns
    scene.protocol.sweep(heard_ns + 10 * SECOND_NS)
    ((kind, flags, _, _),) = scene.frames()
    assert (kind, flags) == (wire.PING, 0)
    scene.protocol.sweep(heard_ns + 15 * SECOND_NS)
    assert scene.transport.is_aborted


def test_old_connection_is_asked_to_go_and_closes_after_its_last_answer():
    scene = Scene(Http2Limits(keepalive=KeepaliveRules(age_s=10))).open()
    scene.send(scene.request(1, b"x", "/s/Later"))
    begin_ns = scene.protocol._arrival_ns
    scene.protocol.sweep(begin_ns + 12 * SECOND_NS)
    assert [kind for kind, *_ in scene.frames()] == [wire.GOAWAY, wire.PING]
    scene.protocol.sweep(begin_ns + 13 * SECOND_NS)
    assert [kind for kind, *_ in scene.frames()] == [wire.GOAWAY]
    assert not scene.transport.is_closed
    scene.service.calls[0].respond((b"x",))
    assert scene.answers()[1][1] == framed(b"x")
    assert scene.transport.is_closed
    assert not scene.transport.is_aborted


def test_calls_of_an_old_connection_end_with_its_grace():
    scene = Scene(Http2Limits(keepalive=KeepaliveRules(age_s=10, age_grace_s=5))).open()
    scene.send(scene.request(1, b"x", "/s/Later"))
    begin_ns = scene.protocol._arrival_ns
    scene.protocol.sweep(begin_ns + 12 * SECOND_NS)
    assert not scene.transport.is_closed
    scene.protocol.sweep(begin_ns + 17 * SECOND_NS)
    assert scene.transport.is_aborted


def test_streaming_calls_are_left_alone_by_age():
    scene = Scene(Http2Limits(keepalive=KeepaliveRules(age_s=10))).open()
    scene.send(scene.headers(1, "/s/Stream") + data_frame(1, framed(b"x")))
    scene.service.stream_draining = lambda call: pytest.fail("an old connection is no draining server")
    for second in (12, 13, 14):
        scene.protocol.sweep(scene.protocol._arrival_ns + second * SECOND_NS)
    assert not scene.transport.is_closed

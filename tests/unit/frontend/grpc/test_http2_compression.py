"""Compressed messages of gRPC: requests are decompressed on a thread, responses are compressed."""

import gzip
import logging
import random
import zlib

import pytest

from naiad.frontend.context import CancelReason
from naiad.frontend.grpc.compression import GrpcCompression
from naiad.wire.http2.connection_limits import Http2Limits
from support.http2_conversation import ECHO, STREAM, Conversation
from support.raw_http2 import DATA, END_STREAM, RST_STREAM, frame, grpc_message
from support.side_work import Aside

LARGE = random.Random(1).randbytes(60_000)
ZEROS = bytes(500_000)
GZIP = ("grpc-encoding", "gzip")


class Service:
    """Keeps calls and messages; pauses a stream on request."""

    def __init__(self):
        self.calls = []
        self.messages = []
        self.ended = 0
        self.holds = False

    def unary(self, call, message):
        self.calls.append(call)
        self.messages.append(bytes(message))

    def message_began(self, call, beginning):
        pass

    def rejection(self, path):
        return None

    def is_streaming(self, path):
        return path == STREAM

    def stream_message(self, call, message):
        self.unary(call, message)
        if self.holds:
            call.pause()

    def stream_half_closed(self, call):
        self.ended += 1

    def stream_writable(self, call):
        pass


class Scene:
    def __init__(self, **limits):
        self.service = Service()
        self.aside = Aside()
        self.talk = Conversation(limits=Http2Limits(**limits), service=self.service, run_in_thread=self.aside)

    def send(self, path, *messages, end=True, more=()):
        body = b"".join(grpc_message(data, flag=flag) for flag, data in messages)
        self.talk.send(self.talk.headers(1, path, GZIP, *more))
        pieces = [body[i : i + 16_000] for i in range(0, len(body), 16_000)] or [b""]
        for piece in pieces:
            is_last = end and piece is pieces[-1]
            self.talk.send(frame(DATA, END_STREAM if is_last else 0, 1, piece))

    def status(self):
        fields = self.talk.fields(self.talk.frames())
        return fields.get("grpc-status"), fields.get("grpc-message", "")


@pytest.fixture
def scene():
    return Scene()


def test_small_message_is_plain_at_once(scene):
    scene.send(ECHO, (1, gzip.compress(b"small")))
    assert scene.service.messages == [b"small"]
    assert scene.aside.waiting == []


@pytest.mark.parametrize("plain", [LARGE, ZEROS])
def test_large_unary_message_is_decompressed_on_thread(scene, plain):
    scene.send(ECHO, (1, gzip.compress(plain)))
    assert scene.service.messages == []
    scene.aside.go()
    assert scene.service.messages == [plain]
    scene.service.calls[0].respond([b"done"])
    assert scene.talk.body(scene.talk.frames()) == grpc_message(b"done")


@pytest.mark.parametrize(
    ("limit", "aside_count"),
    [(1000, 0), (100_000, 1)],
)
def test_bomb_is_rejected(limit, aside_count):
    scene = Scene(decompressed_bytes=limit)
    scene.send(ECHO, (1, gzip.compress(ZEROS)))
    assert len(scene.aside.waiting) == aside_count
    for _ in range(aside_count):
        scene.aside.go()
    status, text = scene.status()
    assert status == "8"
    assert f"exceeds the limit of {limit} bytes when it is decompressed" in text
    assert scene.service.messages == []


@pytest.mark.parametrize("data", [b"no gzip", LARGE])
def test_damaged_message_is_rejected(scene, data):
    scene.send(ECHO, (1, data))
    for _ in scene.aside.waiting:
        scene.aside.go()
    assert scene.status()[0] == "13"


def test_messages_of_a_stream_keep_their_order(scene):
    messages = [LARGE, b"a", ZEROS, b"b"]
    scene.send(STREAM, *((1, gzip.compress(message)) for message in messages))
    assert scene.service.messages == []
    scene.aside.go()
    assert scene.service.messages == messages[:2]
    assert scene.service.ended == 0
    scene.aside.go()
    assert scene.service.messages == messages
    assert scene.service.ended == 1


def test_plain_messages_wait_for_earlier_compressed_one(scene):
    scene.send(STREAM, (0, b"first"), (1, gzip.compress(LARGE)), (0, b"last"), end=False)
    assert scene.service.messages == [b"first"]
    scene.aside.go()
    assert scene.service.messages == [b"first", LARGE, b"last"]


def test_stream_that_its_service_holds_meanwhile_stays_paused(scene):
    scene.send(STREAM, (0, b"first"), (1, gzip.compress(LARGE)), (0, b"last"))
    (call,) = scene.service.calls
    call.pause()
    scene.aside.go()
    assert scene.service.messages == [b"first"]
    call.resume()
    assert scene.service.messages == [b"first", LARGE, b"last"]
    assert scene.service.ended == 1


def test_resuming_stream_meanwhile_keeps_order(scene):
    scene.send(STREAM, (0, b"first"), (1, gzip.compress(LARGE)), (0, b"last"))
    (call,) = scene.service.calls
    call.pause()
    call.resume()
    assert scene.service.messages == [b"first"]
    scene.aside.go()
    assert scene.service.messages == [b"first", LARGE, b"last"]


def test_service_may_hold_at_the_message_itself(scene):
    scene.service.holds = True
    scene.send(STREAM, (1, gzip.compress(LARGE)), (0, b"last"))
    scene.aside.go()
    assert scene.service.messages == [LARGE]
    scene.service.calls[0].resume()
    assert scene.service.messages == [LARGE, b"last"]


def test_bad_message_of_a_stream_ends_it(scene):
    scene.send(STREAM, (1, gzip.compress(LARGE)[:-1]), (0, b"last"))
    scene.aside.go()
    assert scene.status()[0] == "13"
    assert scene.service.messages == []


@pytest.mark.parametrize("path", [ECHO, STREAM])
def test_call_that_is_cancelled_meanwhile_is_dropped(scene, path):
    scene.send(path, (1, gzip.compress(LARGE)))
    scene.talk.send(frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
    scene.aside.go()
    assert scene.service.messages == []


def test_defect_costs_one_call(scene, caplog):
    scene.send(ECHO, (1, gzip.compress(LARGE)))
    _, _, failed = scene.aside.waiting.pop()
    with caplog.at_level(logging.ERROR, "naiad"):
        failed(MemoryError("no memory"))
    assert scene.status()[0] == "13"
    assert "no memory" in caplog.text


def test_decompression_runs_inline_without_threads():
    service = Service()
    talk = Conversation(service=service)
    talk.send(talk.headers(1, STREAM, GZIP))
    body = b"".join(grpc_message(gzip.compress(m), flag=1) for m in (LARGE[:30_000], b"a", ZEROS, b"b"))
    for i in range(0, len(body), 16_000):
        talk.send(frame(DATA, 0, 1, body[i : i + 16_000]))
    talk.send(frame(DATA, END_STREAM, 1, b""))
    assert service.messages == [LARGE[:30_000], b"a", ZEROS, b"b"]
    assert service.ended == 1


# --- responses ------------------------------------------------------------------------------------------------------


def answered(scene, accept, parts, level=1):
    more = () if accept is None else (("grpc-accept-encoding", accept),)
    scene.send(ECHO, (0, b"ask"), more=more)
    GrpcCompression(level, scene.aside).respond(scene.service.calls[0], parts)
    for _ in scene.aside.waiting:
        scene.aside.go()
    frames = scene.talk.frames()
    return scene.talk.fields(frames), scene.talk.body(frames)


@pytest.mark.parametrize(
    ("accept", "encoding", "unpack"),
    [
        ("identity, deflate, gzip", "gzip", gzip.decompress),
        ("gzip", "gzip", gzip.decompress),
        ("identity,deflate", "deflate", zlib.decompress),
    ],
)
@pytest.mark.parametrize("plain", [LARGE, b"ab" * 500])
def test_response_is_compressed_if_its_client_accepts_that(scene, accept, encoding, unpack, plain):
    fields, body = answered(scene, accept, [plain[:7], memoryview(plain[7:])])
    assert fields["grpc-encoding"] == encoding
    assert fields["grpc-status"] == "0"
    assert body[0] == 1
    assert int.from_bytes(body[1:5], "big") == len(body) - 5
    assert unpack(body[5:]) == plain


@pytest.mark.parametrize(("accept", "plain"), [(None, LARGE), ("identity", LARGE), ("gzip", b"small")])
def test_other_responses_stay_as_they_are(scene, accept, plain):
    fields, body = answered(scene, accept, [plain])
    assert "grpc-encoding" not in fields
    assert body == grpc_message(plain)


def test_response_for_disconnected_client_is_dropped(scene):
    scene.send(ECHO, (0, b"ask"), more=(("grpc-accept-encoding", "gzip"),))
    GrpcCompression(1, scene.aside).respond(scene.service.calls[0], [LARGE])
    scene.talk.send(frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
    scene.aside.go()
    assert scene.talk.frames() == []


def test_response_that_cannot_be_compressed_is_a_failure(scene, caplog):
    scene.send(ECHO, (0, b"ask"), more=(("grpc-accept-encoding", "gzip"),))
    GrpcCompression(1, scene.aside).respond(scene.service.calls[0], [LARGE])
    _, _, failed = scene.aside.waiting.pop()
    with caplog.at_level(logging.ERROR, "naiad"):
        failed(MemoryError("no memory"))
    assert scene.status()[0] == "13"


# --- streamed responses ---------------------------------------------------------------------------------------------


class Streamed:
    """A stream with compressed responses."""

    def __init__(self, scene, accept="gzip"):
        scene.send(STREAM, (0, b"ask"), end=False, more=(("grpc-accept-encoding", accept),))
        self.scene = scene
        self.call = scene.service.calls[0]
        self.sender = GrpcCompression(1, scene.aside).sender(self.call)

    def received(self):
        """Return the fields, and each message with its compressed flag."""
        frames = self.scene.talk.frames()
        body, messages = self.scene.talk.body(frames), []
        while body:
            end = 5 + int.from_bytes(body[1:5], "big")
            messages.append((body[0] == 1, gzip.decompress(body[5:end]) if body[0] else body[5:end]))
            body = body[end:]
        return self.scene.talk.fields(frames), messages


def test_stream_messages_are_compressed_if_useful(scene):
    stream = Streamed(scene)
    stream.sender.send([b"small"])
    stream.sender.send([b"ab" * 500, memoryview(b"c")])
    stream.sender.finish(0)
    fields, messages = stream.received()
    assert fields["grpc-encoding"] == "gzip"
    assert fields["grpc-status"] == "0"
    assert messages == [(False, b"small"), (True, b"ab" * 500 + b"c")]


def test_messages_and_status_wait_behind_large_message(scene):
    stream = Streamed(scene)
    large = LARGE[:20_000] * 3
    for message in (b"first", large, b"between", large[::-1], b"last"):
        stream.sender.send([message])
    stream.sender.finish(8, "enough")
    assert stream.sender.queued_bytes > 2 * len(large)
    assert stream.received()[1] == [(False, b"first")]
    scene.aside.go()
    assert stream.received()[1] == [(True, large), (False, b"between")]
    scene.aside.go()
    fields, messages = stream.received()
    assert messages == [(True, large[::-1]), (False, b"last")]
    assert (fields["grpc-status"], fields["grpc-message"]) == ("8", "enough")
    assert stream.sender.queued_bytes == 0
    assert scene.aside.waiting == []


def test_client_without_encodings_gets_plain_call(scene):
    stream = Streamed(scene, "identity")
    assert stream.sender is stream.call


def test_more_than_can_be_compressed_ends_the_stream(scene):
    stream = Streamed(scene)
    reasons = []
    stream.call.on_cancel = reasons.append
    for _ in range(200):
        stream.sender.send([ZEROS])
    assert reasons == [CancelReason.DROPPED]
    assert stream.sender.queued_bytes < 70_000_000
    fields, messages = stream.received()
    assert messages == []
    assert fields["grpc-status"] == "8"
    assert "faster than they can be compressed" in fields["grpc-message"]
    scene.aside.go()
    assert stream.received()[1] == []


def test_compression_failure_ends_stream(scene, caplog):
    stream = Streamed(scene)
    stream.sender.send([LARGE])
    _, _, failed = scene.aside.waiting.pop()
    with caplog.at_level(logging.ERROR, "naiad"):
        failed(MemoryError("no memory"))
    assert stream.received()[0]["grpc-status"] == "13"

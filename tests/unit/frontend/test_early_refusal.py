"""Requests that are rejected by their headers, before their body is buffered."""

import json
import time
from types import SimpleNamespace

import pytest

from naiad.core.errors import not_found
from naiad.core.limits.request_limits import RequestBudget, unlimited
from naiad.frontend.access.access import RejectionResponse
from naiad.frontend.http1.connection import Http1Server
from naiad.frontend.http2.endpoint import RestSide
from naiad.frontend.rest.cors import Cors
from naiad.frontend.rest.infer import InferRoute
from naiad.frontend.router import Route, Router
from naiad.wire.grpc import GrpcStatus
from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import frame
from support.http1_scene import Loop, Peer
from support.http2_peer import data_frame
from support.http2_scene import SECOND_NS, Scene, framed
from support.one_engine import OneEngine

MODEL = "/v2/models/{}/infer"
ADD = MODEL.format("add")
LARGE = 1_000_000


class Engine(OneEngine):
    """Has a model `add` and a decoupled one, `repeat`; keeps submitted requests."""

    def __init__(self):
        self.submitted = []

    def served(self, name, version=""):
        if name not in ("add", "repeat"):
            raise not_found(f"Request for unknown model: '{name}' is not found")
        return SimpleNamespace(is_decoupled=name == "repeat")

    def request_limits(self, name, version=""):
        return unlimited(name, version)

    def submit(self, request, served=None):
        self.submitted.append(request)

    def cancel(self, request):
        return True


class KeyRule:
    def concerns(self, category):
        return True

    def rejection(self, category, field):
        return (
            None if field(b"key") == b"x" else RejectionResponse(401, GrpcStatus.UNAUTHENTICATED, "a key is needed")
        )


def make_router(engine, rule=None):
    route = InferRoute(engine, max_input_bytes=2 * LARGE)
    router = Router(
        [Route(r"/v2/models/(?P<model>[^/]+)(?P<version>)/infer", "inference", {"POST": route.handle}, route.check)]
    )
    if rule is not None:
        router.restrict(rule)
    return router


class Case:
    """A request with a large body: its headers, and how it is rejected."""

    def __init__(self, status, words, path=ADD, method="POST", length=LARGE, rule=None, fields=()):
        self.status, self.words, self.path, self.method = status, words, path, method
        self.length, self.rule, self.fields = length, rule, fields


CASES = {
    "unknown route": Case(404, "Not Found", path="/v3/x"),
    "wrong method": Case(405, "Method Not Allowed", method="PUT"),
    "missing key": Case(401, "a key is needed", rule=KeyRule()),
    "key before model": Case(401, "a key is needed", path=MODEL.format("none"), rule=KeyRule()),
    "unknown model": Case(404, "unknown model: 'none'", path=MODEL.format("none")),
    "model before coding": Case(
        404, "unknown model: 'none'", path=MODEL.format("none"), fields=[("content-encoding", "br")]
    ),
    "decoupled model": Case(501, "decoupled transaction policy", path=MODEL.format("repeat")),
    "unknown coding": Case(501, "Unsupported compression type 'br'", fields=[("content-encoding", "br")]),
    "large JSON": Case(400, "request JSON size of 3000000 bytes", length=3 * LARGE),
    "large JSON part": Case(
        400,
        "request JSON size of 2500000 bytes",
        length=3 * LARGE,
        fields=[("inference-header-content-length", "2500000")],
    ),
    "large raw body": Case(
        400, "raw binary size of 3000000", length=3 * LARGE, fields=[("inference-header-content-length", "0")]
    ),
}


@pytest.fixture(params=CASES, ids=[name.replace(" ", "-") for name in CASES])
def case(request):
    return CASES[request.param]


def http1_peer(rule=None):
    engine, budget = Engine(), RequestBudget()
    router = make_router(engine, rule)
    peer = Peer(Http1Server(router.handle, Loop(), budget=budget, reject=router.reject))
    peer.engine, peer.budget = engine, budget
    return peer


def head_of(path, *fields, method="POST", length=LARGE):
    size = [("content-length", length)] if length is not None else [("transfer-encoding", "chunked")]
    lines = [f"{method} {path} HTTP/1.1", "host: x", *(f"{name}: {value}" for name, value in [*size, *fields])]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_rejected_headers_get_response_over_http1(case):
    peer = http1_peer(case.rule)
    peer.send(head_of(case.path, *case.fields, method=case.method, length=case.length))
    assert peer.statuses == [case.status]
    head, _, body = peer.output.partition(b"\r\n\r\n")
    assert case.words in json.loads(body)["error"]
    assert b"Connection: close" in head
    assert peer.budget.peak_bytes == 0


def test_rejected_headers_get_response_over_http2(case):
    router, budget = make_router(Engine(), case.rule), RequestBudget()
    scene = Scene(budget=budget, rest=RestSide(router.handle, reject=router.reject)).open()
    fields = [(":method", case.method), (":scheme", "http"), (":path", case.path), (":authority", "x")]
    fields += [("content-length", str(case.length)), *case.fields]
    scene.send(frame(wire.HEADERS, 4, 1, scene.encoder.encode(fields)))
    frames = scene.frames()
    assert [kind for kind, _, _, _ in frames if kind != wire.DATA] == [wire.HEADERS]
    assert frames[-1][1] & 1  # END_STREAM
    assert dict(scene.decoder.decode(frames[0][3]))[":status"] == str(case.status)
    assert case.words.encode() in b"".join(payload for kind, _, _, payload in frames if kind == wire.DATA)
    scene.send(data_frame(1, bytes(10_000)))
    assert scene.frames() == []
    assert budget.peak_bytes == 0


NO_ERROR = b"\0\0\0\0"


def refused_scene(limits=None, length=3 * LARGE):
    """A stream that was answered before its body came."""
    router = make_router(Engine())
    scene = Scene(limits, rest=RestSide(router.handle, reject=router.reject)).open()
    fields = [(":method", "POST"), (":scheme", "http"), (":path", "/v3/x"), (":authority", "x")]
    scene.send(frame(wire.HEADERS, 4, 1, scene.encoder.encode([*fields, ("content-length", str(length))])))
    assert [kind for kind, _, _, _ in scene.frames()] == [wire.HEADERS, wire.DATA, wire.DATA]
    return scene


def resets(scene):
    return [payload for kind, _, stream_id, payload in scene.frames() if kind == wire.RST_STREAM and stream_id == 1]


def test_body_after_its_answer_is_dropped() -> None:
    scene = refused_scene()
    scene.send(data_frame(1, bytes(10_000)))
    scene.send(data_frame(1, b"", end=True))
    assert resets(scene) == []
    assert scene.protocol.output.dropping == {}
    scene.send(data_frame(1, b"late"))
    assert resets(scene) == [b"\0\0\0\x05"]  # STREAM_CLOSED


def test_body_is_dropped_up_to_a_window() -> None:
    scene = refused_scene(Http2Limits(stream_window_bytes=2**20, frame_bytes=2**19))
    scene.send(data_frame(1, bytes(2**19)))
    assert resets(scene) == []
    scene.send(data_frame(1, bytes(2**19)))
    assert resets(scene) == [NO_ERROR]
    scene.send(data_frame(1, b"on its way"))
    assert resets(scene) == []


def test_body_beyond_the_window_is_a_mistake() -> None:
    scene = refused_scene(Http2Limits(stream_window_bytes=2**20, frame_bytes=2**19))
    scene.send(data_frame(1, bytes(2**19)) + data_frame(1, bytes(2**19 - 1)) + data_frame(1, bytes(2)))
    assert resets(scene) == [b"\0\0\0\x03"]  # FLOW_CONTROL_ERROR


def test_body_that_does_not_come_ends_soon() -> None:
    scene = refused_scene()
    now_ns = time.monotonic_ns()
    scene.protocol.sweep(now_ns)
    assert resets(scene) == []
    scene.protocol.sweep(now_ns + SECOND_NS)
    assert resets(scene) == [NO_ERROR]
    scene.protocol.sweep(now_ns + 2 * SECOND_NS)
    assert resets(scene) == []


def test_peer_that_gives_up_its_body_is_forgotten() -> None:
    for end in (frame(wire.RST_STREAM, 0, 1, NO_ERROR), None):
        scene = refused_scene()
        scene.send(end or frame(wire.HEADERS, 5, 1, scene.encoder.encode([("trailer", "x")])))
        assert scene.protocol.output.dropping == {}
        assert resets(scene) == []


def test_answered_streams_with_a_body_are_bounded() -> None:
    scene = refused_scene()
    fields = [(":method", "POST"), (":scheme", "http"), (":path", "/v3/x"), (":authority", "x")]
    for stream_id in range(3, 1203, 2):
        block = scene.encoder.encode([*fields, ("content-length", "100000")])
        scene.send(frame(wire.HEADERS, 4, stream_id, block))
    assert len(scene.protocol.output.dropping) == 256


def test_small_body_is_read_before_the_answer() -> None:
    router, budget = make_router(Engine()), RequestBudget()
    scene = Scene(budget=budget, rest=RestSide(router.handle, reject=router.reject)).open()
    fields = [(":method", "POST"), (":scheme", "http"), (":path", "/v3/x"), (":authority", "x")]
    scene.send(frame(wire.HEADERS, 4, 1, scene.encoder.encode([*fields, ("content-length", "300")])))
    assert scene.frames() == []
    scene.send(data_frame(1, bytes(300), end=True))
    assert scene.answers()[1][0][":status"] == "404"
    # Without a length the answer comes amid the body once that is not small.
    scene.send(frame(wire.HEADERS, 4, 3, scene.encoder.encode(fields)) + data_frame(3, bytes(1000)))
    assert scene.frames() == []
    scene.send(data_frame(3, bytes(2**16)))
    assert scene.answers()[3][0][":status"] == "404"
    assert budget.used_bytes == 0


def test_early_response_equals_full_request_response(case):
    whole, early = http1_peer(case.rule), http1_peer(case.rule)
    if case.length == LARGE:
        fields = [field for field in case.fields if field[0] != "inference-header-content-length"]
        whole.send(head_of(case.path, *fields, method=case.method, length=10) + bytes(10))
        early.send(head_of(case.path, *fields, method=case.method))
        assert whole.output.partition(b"\r\n\r\n")[2] == early.output.partition(b"\r\n\r\n")[2]


def test_a_small_rejected_request_keeps_its_connection():
    peer = http1_peer()
    request = head_of(MODEL.format("none"), length=10_000)
    for _ in range(2):
        peer.send(request)
        peer.send(bytes(10_000))
    assert peer.statuses == [404, 404]
    assert not peer.transport.closed
    assert peer.budget.used_bytes == 0


def test_a_request_that_may_pass_is_read():
    peer = http1_peer()
    tensors = {"inputs": [{"name": "IN", "datatype": "UINT8", "shape": [LARGE], "parameters": {}}]}
    tensors["inputs"][0]["parameters"]["binary_data_size"] = LARGE
    text = json.dumps(tensors).encode()
    fields = [("inference-header-content-length", len(text))]
    peer.send(head_of(MODEL.format("add"), *fields, length=LARGE + len(text)) + text + bytes(LARGE))
    assert len(peer.engine.submitted) == 1
    assert peer.output == b""


def test_rejection_replaces_100_continue():
    peer = http1_peer()
    peer.send(head_of(MODEL.format("none"), ("expect", "100-continue"), length=10))
    assert peer.statuses == [404]
    other = http1_peer()
    other.send(head_of(MODEL.format("add"), ("expect", "100-continue"), length=10))
    assert other.statuses == [100]


def test_chunked_body_is_rejected_once_large():
    peer = http1_peer()
    peer.send(head_of(MODEL.format("none"), length=None))
    chunk = b"%x\r\n%s\r\n" % (30_000, bytes(30_000))
    peer.send(chunk)
    assert peer.output == b""
    peer.send(5 * chunk)
    assert peer.statuses == [404]
    assert peer.budget.used_bytes == 0


def test_rejected_peer_may_send_body_for_limited_time():
    peer = http1_peer()
    peer.send(head_of(MODEL.format("none"), length=100 * LARGE))
    assert peer.transport.eof_written
    for second in range(1, 25):
        peer.send(bytes(10_000))
        peer.sweep(second)
    assert not peer.transport.aborted
    peer.sweep(26, 28)
    assert peer.transport.aborted


def test_a_rejected_peer_that_never_stops_is_dropped():
    peer = http1_peer()
    peer.send(head_of(MODEL.format("none"), length=100 * LARGE))
    for second in range(1, 40):
        peer.send(bytes(10_000))
        peer.sweep(second)
    assert peer.transport.aborted


def test_a_rejected_page_may_read_its_response():
    router = make_router(Engine())
    cors = Cors(("https://a.example",), router.handle, router.reject)
    peer = Peer(Http1Server(cors.handle, Loop(), reject=cors.reject))
    peer.send(head_of(MODEL.format("none"), ("origin", "https://a.example")))
    assert peer.statuses == [404]
    assert b"Access-Control-Allow-Origin: https://a.example\r\n" in peer.output


def test_earlier_responses_precede_rejection():
    contexts = []
    router = make_router(Engine())
    peer = Peer(Http1Server(contexts.append, Loop(), reject=router.reject))
    peer.send(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" + head_of(MODEL.format("none")))
    assert peer.output == b""
    contexts[0].respond(200, (), (b"ok",))
    assert peer.statuses == [200, 404]


def test_an_unknown_method_is_rejected_before_its_message():
    scene = Scene()
    scene.service.rejection = lambda path: not_found("unknown method") if path == "/s/None" else None
    scene.open()
    scene.send(scene.headers(1, "/s/None"))
    frames = scene.frames()
    assert [kind for kind, _, _, _ in frames] == [wire.HEADERS, wire.RST_STREAM]
    assert dict(scene.decoder.decode(frames[0][3]))["grpc-status"] == "5"


def test_a_large_message_is_rejected_by_its_beginning():
    scene = Scene(budget=RequestBudget()).open()
    asked = []

    def message_began(call, beginning):
        asked.append(bytes(beginning[:5]))
        call.finish(5, "unknown model")

    scene.service.message_began = message_began
    message = framed(b"model" + bytes(500_000))
    scene.send(scene.headers(1, "/s/Keep") + data_frame(1, message[:50_000]))
    assert asked == []
    scene.send(data_frame(1, message[50_000:80_000]))
    assert asked == [b"model"]
    assert [kind for kind, _, _, _ in scene.frames()] == [wire.HEADERS, wire.RST_STREAM]
    scene.send(data_frame(1, message[80_000:100_000]))
    assert scene.server.budget.used_bytes == 0

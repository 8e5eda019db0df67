"""Every limit that has a flag, one step beyond it; the server goes on serving others."""

from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from support.model_repository import write_identity
from support.raw_http1 import HttpPeer
from support.raw_http2 import ACK, PING, RST_STREAM, Http2Peer, frame
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

ENHANCE_YOUR_CALM, REFUSED_STREAM, CANCEL = 11, 7, 8
FLAGS = (
    "--http-max-connections=20",
    "--http-max-header-size=2048",
    "--http-max-header-count=10",
    "--http-max-body-size=100000",
    "--http-max-pipelined-requests=2",
    "--grpc-max-connections=3",
    "--grpc-max-concurrent-streams=2",
    "--grpc-max-message-size=1000",
    "--grpc-max-header-size=2048",
    "--grpc-max-resets-per-second=1",
    "--grpc-max-control-frames-per-second=1",
    "--grpc-http2-max-ping-strikes=0",
)
SECONDS = {"header": 1, "body": 1, "idle": 2}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    write_identity(root)
    write_identity(root, "slow", parameters={"execute_delay_ms": "400"})
    with serving(tmp_path_factory.mktemp("narrow") / "log", f"--model-repository={root}", *FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for slow clients alone, so that no other client has to hurry."""
    root = tmp_path_factory.mktemp("nothing")
    write_identity(root)
    flags = [f"--http-{name}-timeout-seconds={seconds}" for name, seconds in SECONDS.items()]
    running = ServerProcess(tmp_path_factory.mktemp("impatient") / "log", f"--model-repository={root}", *flags)
    try:
        running.wait_started()
        yield running
    finally:
        running.stop()


@pytest.fixture(autouse=True)
def _others_are_served(request: pytest.FixtureRequest) -> Iterator[None]:
    server = request.getfixturevalue("impatient" if "impatient" in request.fixturenames else "narrow")
    yield
    # While clients that have just left still count, it may be one connection too many.
    wait_until(lambda: server.get("/v2/health/ready").status == 200)


def wait_alone(server: ServerProcess, url: str) -> None:
    """Wait until the server has done with all earlier connections."""
    port = int(url.rpartition(":")[2])
    process = psutil.Process(server.process.pid)
    wait_until(lambda: all(each.laddr.port != port or not each.raddr for each in process.net_connections("tcp")))


def get(*fields: str) -> bytes:
    return "\r\n".join(["GET /v2 HTTP/1.1", "Host: localhost", *fields, "", ""]).encode()


# --- HTTP/1.1


@pytest.mark.parametrize(
    "request_text",
    [get("A: " + "b" * 2048), get(*["A: b"] * 10)],
    ids=["size", "count"],
)
def test_heads(narrow: ServerProcess, request_text: bytes) -> None:
    with HttpPeer(narrow.http_url) as peer:
        peer.send(request_text)
        assert peer.answer().status == 431


def test_request_line(narrow: ServerProcess) -> None:
    with HttpPeer(narrow.http_url) as peer:
        peer.send(b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert peer.answer().status == 414


def test_body(narrow: ServerProcess) -> None:
    with HttpPeer(narrow.http_url) as peer:
        peer.send(b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\n\r\n")
        answer = peer.answer()
        assert answer.status == 413
        assert b"100000" in answer.body


def test_connections(narrow: ServerProcess) -> None:
    wait_alone(narrow, narrow.http_url)
    with ExitStack() as stack:
        peers = [stack.enter_context(HttpPeer(narrow.http_url)) for _ in range(20)]
        for peer in peers:
            peer.send(get())
            assert peer.answer().status == 200
        surplus = stack.enter_context(HttpPeer(narrow.http_url))
        answer = surplus.answer()
        assert answer.status == 503
        assert b"the limit is 20" in answer.body


def test_pipelined_requests_are_all_answered(narrow: ServerProcess) -> None:
    with HttpPeer(narrow.http_url) as peer:
        peer.send(get() * 30)
        for _ in range(30):
            assert peer.answer().status == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /v2 HTTP/1.1\r\nHost", 408),
        (b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n1", 408),
    ],
    ids=["head", "body"],
)
def test_slow_requests(impatient: ServerProcess, data: bytes, status: int) -> None:
    with HttpPeer(impatient.http_url) as peer:
        peer.send(data)
        assert peer.answer().status == status


@pytest.mark.parametrize("begun", [b"", b"PRI * HTTP"], ids=["silent", "half a preface"])
def test_connections_that_never_ask_anything_are_closed(impatient: ServerProcess, begun: bytes) -> None:
    with HttpPeer(impatient.http_url) as peer:
        peer.send(begun)
        assert peer.is_closed_by_server()


@pytest.mark.parametrize(
    ("depth", "reason"),
    [(2_000, "nested more than 512 levels deep"), (40_000, "maximum allowed limit (100) in 'inputs'")],
    ids=["a short document", "a long document, read in slices"],
)
def test_nested_json(narrow: ServerProcess, depth: int, reason: str) -> None:
    body = b'{"inputs":' + b"[" * depth + b"]" * depth + b"}"
    answer = narrow.request("POST", "/v2/models/identity/infer", body)
    assert answer.status == 400
    assert reason in answer.json["error"]


@pytest.mark.parametrize("path", ["repository/index", "logging", "repository/models/identity/load"])
def test_nested_json_of_control_calls(narrow: ServerProcess, path: str) -> None:
    answer = narrow.request("POST", f"/v2/{path}", b'{"ready":' + b"[" * 600 + b"]" * 600 + b"}")
    assert answer.status == 400
    assert "nested more than 512 levels deep" in answer.json["error"]


# --- HTTP/2


def test_calls_of_a_connection(narrow: ServerProcess) -> None:
    with Http2Peer(narrow.grpc_url) as peer:
        peer.send(b"".join(peer.headers(stream_id) for stream_id in (1, 3, 5)))
        assert peer.answer(5).reset_code == REFUSED_STREAM


@pytest.mark.parametrize("port", ["http_url", "grpc_url"])
def test_http2_connections(narrow: ServerProcess, port: str) -> None:
    wait_alone(narrow, getattr(narrow, port))
    with ExitStack() as stack:
        for _ in range(3):
            peer = stack.enter_context(Http2Peer(getattr(narrow, port)))
            peer.send(frame(PING, 0, 0, bytes(8)))
            peer.wait_ping(bytes(8))
        surplus = stack.enter_context(Http2Peer(getattr(narrow, port)))
        assert surplus.wait_goaway() == ENHANCE_YOUR_CALM
        assert surplus.goaway_text == b"too many connections"


def test_message(narrow: ServerProcess) -> None:
    with Http2Peer(narrow.grpc_url) as peer:
        answer = peer.call(1, "/inference.GRPCInferenceService/ServerLive", bytes(1001))
        assert answer.grpc_status == 8
        assert "1000" in answer.grpc_message


def test_header_list(narrow: ServerProcess) -> None:
    with Http2Peer(narrow.grpc_url) as peer:
        for number, size in enumerate((2048, 5000)):
            answer = peer.call(1 + 4 * number, "/inference.GRPCInferenceService/ServerLive", b"", a="b" * size)
            assert (answer.fields[":status"], answer.grpc_status) == ("200", 8)
            assert "--grpc-max-header-size" in answer.grpc_message
            # The connection goes on.
            assert peer.call(3 + 4 * number, "/inference.GRPCInferenceService/ServerLive", b"").grpc_status == 0


def test_resets(narrow: ServerProcess) -> None:
    with Http2Peer(narrow.grpc_url) as peer:
        for number in range(25):
            stream_id = 1 + 2 * number
            peer.send(peer.headers(stream_id) + frame(RST_STREAM, 0, stream_id, CANCEL.to_bytes(4, "big")))
        assert peer.wait_goaway() == ENHANCE_YOUR_CALM


def test_control_frames(narrow: ServerProcess) -> None:
    with Http2Peer(narrow.grpc_url) as peer:
        peer.send(frame(PING, ACK, 0, bytes(8)) * 25)
        assert peer.wait_goaway() == ENHANCE_YOUR_CALM
        assert b"too many PING frames" in peer.goaway_text

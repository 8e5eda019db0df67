"""gRPC's keepalive and connection age between a real server and real grpcio channels, and by hand."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import KeepAliveOptions, service_pb2, service_pb2_grpc

from support.http2_peer import OPENING
from support.model_repository import write_identity
from support.raw_http2 import PING, Http2Peer, frame, grpc_head
from support.server_process import ServerProcess
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]
ENHANCE_YOUR_CALM = 11
SLOW_S = 2.5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_identity(root)
    write_identity(root, "slow", parameters={"execute_delay_ms": str(int(SLOW_S * 1000))})
    return root


def tensor() -> triton_grpc.InferInput:
    made = triton_grpc.InferInput("INPUT0", [1, 4], "FP32")
    made.set_data_from_numpy(np.ones((1, 4), np.float32))
    return made


def test_peer_that_answers_pings_keeps_its_call(models: Path, start_server: StartServer) -> None:
    server = start_server(
        models, "--grpc-keepalive-time=500", "--grpc-keepalive-timeout=1500", "--grpc-http2-max-pings-without-data=0"
    )
    server.wait_ready()
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        answer = client.infer("slow", [tensor()], client_timeout=60)
    assert answer.as_numpy("OUTPUT0").shape == (1, 4)


def test_peer_that_does_not_answer_pings_is_dropped(models: Path, start_server: StartServer) -> None:
    server = start_server(
        models,
        "--grpc-keepalive-time=500",
        "--grpc-keepalive-timeout=500",
        "--grpc-keepalive-permit-without-calls=true",
    )
    server.wait_ready()
    host, port = server.grpc_url.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as deaf:
        deaf.sendall(OPENING)
        received = b""
        try:
            while piece := deaf.recv(4096):
                received += piece
        except ConnectionResetError:
            pass
    assert frame(PING, 0, 0, b"alive..?") in received
    server.wait_log("no reply to a keepalive PING")


def test_pings_that_come_too_soon_get_goaway(models: Path, start_server: StartServer) -> None:
    server = start_server(models, "--grpc-http2-max-ping-strikes=1")
    server.wait_ready()
    with Http2Peer(server.grpc_url) as peer:
        peer.send(frame(PING, 0, 0, bytes(8)) * 3)
        assert peer.wait_goaway() == ENHANCE_YOUR_CALM


def test_pings_are_welcome_where_the_flags_say_so(models: Path, start_server: StartServer) -> None:
    server = start_server(models, "--grpc-http2-max-ping-strikes=0")
    server.wait_ready()
    with Http2Peer(server.grpc_url) as peer:
        for number in range(20):
            payload = number.to_bytes(8, "big")
            peer.send(frame(PING, 0, 0, payload))
            peer.wait_ping(payload)


def test_grpcio_learns_to_ping_less_often(models: Path, start_server: StartServer) -> None:
    server = start_server(
        models, "--grpc-http2-max-ping-strikes=1", "--grpc-http2-min-recv-ping-interval-without-data=100000"
    )
    server.wait_ready()
    eager = KeepAliveOptions(
        keepalive_time_ms=100,
        keepalive_timeout_ms=5000,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=0,
    )
    with triton_grpc.InferenceServerClient(server.grpc_url, keepalive_options=eager) as client:
        assert client.is_server_live()
        server.wait_log("too_many_pings")
        # Over a new connection, once the client has read why it has lost the other one.
        wait_until(lambda: is_live(client))


def is_live(client: triton_grpc.InferenceServerClient) -> bool:
    try:
        return bool(client.is_server_live())
    except triton_grpc.InferenceServerException as error:
        if error.status() != "StatusCode.UNAVAILABLE":
            raise
        return False


def test_aged_connection_is_replaced_without_a_failed_call(models: Path, start_server: StartServer) -> None:
    server = start_server(models, "--grpc-max-connection-age=500", "--log-verbose=1")
    server.wait_ready()
    request = service_pb2.ServerLiveRequest()
    ports = set()
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        end = time.monotonic() + 60
        while len(ports) < 3 and time.monotonic() < end:
            assert stub.ServerLive(request, timeout=60).live
            ports |= _client_ports(server)
            time.sleep(0.01)
    assert len(ports) >= 3


def _client_ports(server: ServerProcess) -> set[int]:
    port = int(server.grpc_url.rpartition(":")[2])
    found = psutil.Process(server.process.pid).net_connections("tcp")
    return {each.raddr.port for each in found if each.laddr.port == port and each.raddr}


def test_call_of_an_aged_connection_is_answered(models: Path, start_server: StartServer) -> None:
    server = start_server(models, "--grpc-max-connection-age=500")
    server.wait_ready()
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        answer = client.infer("slow", [tensor()], client_timeout=60)
    assert answer.as_numpy("OUTPUT0").shape == (1, 4)


def test_call_that_outlasts_the_grace_is_unavailable(models: Path, start_server: StartServer) -> None:
    server = start_server(models, "--grpc-max-connection-age=200", "--grpc-max-connection-age-grace=200")
    server.wait_ready()
    with Http2Peer(server.grpc_url) as peer:
        peer.send(frame(1, 4, 1, peer.block(grpc_head())))
        assert peer.wait_goaway() == 0
    server.wait_log("the grace time after its maximum age is over")

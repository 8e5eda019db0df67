"""`grpc.health.v1.Health/Watch` of a real server, watched by grpcio."""

import signal
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from support.model_repository import write_identity, write_model
from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]

CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
GATED = """
import os, time

class TritonPythonModel:
    def initialize(self, args):
        while os.path.exists(os.path.join(args["model_repository"], "gate")):
            time.sleep(0.01)

    def execute(self, requests):
        return []
"""
WATCH = "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING, UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
OTHER_SERVICE = b"\x0a\x05other"


def watch(channel: grpc.Channel, request: bytes = b"") -> "grpc.Call":
    return channel.unary_stream(WATCH)(request, timeout=120)


def test_changes_are_sent_until_the_server_ends(tmp_path: Path, start_server: StartServer) -> None:
    write_model(tmp_path, "gated", CONFIG, {"1/model.py": GATED})
    gate = tmp_path / "gated" / "gate"
    gate.touch()
    server = start_server(tmp_path)
    server.wait_log("Started GRPCInferenceService")
    with grpc.insecure_channel(server.grpc_url) as channel:
        calls = [watch(channel), watch(channel)]
        assert [next(call) for call in calls] == [NOT_SERVING, NOT_SERVING]
        gate.unlink()
        assert [next(call) for call in calls] == [SERVING, SERVING]
        server.signal(signal.SIGTERM)
        for call in calls:
            assert next(call) == NOT_SERVING
            with pytest.raises(grpc.RpcError) as raised:
                next(call)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "Server exiting" in raised.value.details()
    assert server.wait_exit() == 0


@pytest.fixture
def server(tmp_path: Path, start_server: StartServer) -> ServerProcess:
    write_identity(tmp_path)
    running = start_server(tmp_path)
    running.wait_ready()
    return running


def test_unknown_service_is_shown_and_watched_on(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = watch(channel, OTHER_SERVICE)
        assert next(call) == UNKNOWN
        assert call.is_active()
        call.cancel()
        known = watch(channel, b"\x0a\x1einference.GRPCInferenceService")
        assert next(known) == SERVING
        known.cancel()
        assert next(watch(channel)) == SERVING


def test_calls_without_exactly_one_message_end(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        for requests, text in (([], "got none"), ([b"", b""], "got more")):
            with pytest.raises(grpc.RpcError) as raised:
                list(channel.stream_stream(WATCH)(iter(requests), timeout=60))
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert text in raised.value.details()


def test_deadline_ends_a_watching_call(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel, pytest.raises(grpc.RpcError) as raised:
        assert list(channel.unary_stream(WATCH)(b"", timeout=0.3)) == [SERVING]
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_broken_message_ends_only_its_call(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = watch(channel)
        assert next(call) == SERVING
        with pytest.raises(grpc.RpcError):
            list(watch(channel, b"\x0a\xff"))
        assert call.is_active()
        assert next(watch(channel)) == SERVING
        call.cancel()

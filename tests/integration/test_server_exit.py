"""End of a server: drain, requests in flight, exit status, signals at every moment."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from support.departures import json_body
from support.held_models import Notes, write_held
from support.model_repository import write_identity, write_python_add_sub
from support.ports import free_port
from support.server_process import SOURCE, ServerProcess
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]

INPUT = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
BODY = json.dumps({"inputs": [INPUT]}).encode()


def signal_while_executing(running: ServerProcess, notes: Notes) -> None:
    """Have the server end while a held model executes the request "last", and let that go."""
    notes.wait("last", "began")
    running.signal()
    running.wait_log("Waiting for in-flight requests")
    notes.release("last")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_server_exits_with_status_0(start_server: StartServer, tmp_path: Path, number: signal.Signals) -> None:
    write_identity(tmp_path / "models")
    write_python_add_sub(tmp_path / "models")
    running = start_server(tmp_path / "models")
    running.wait_ready()
    running.signal(number)
    assert running.wait_exit() == 0
    assert f"Signal ({int(number)}) received." in running.log_text()
    assert "Traceback" not in running.log_text()


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("processes", [1, 2])
def test_server_exits_when_its_log_is_not_read(tmp_path: Path, is_full: bool, processes: int) -> None:
    write_identity(tmp_path / "models")
    reader, writer = os.pipe()
    if is_full:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        os.set_blocking(writer, True)
    else:
        os.close(reader)
    port = free_port()
    command = [sys.executable, "-m", "naiad", "serve", str(tmp_path / "models"), f"--processes={processes}"]
    command += [f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(command, stdout=writer, stderr=writer, env=environment) as process:
        try:
            wait_until(lambda: is_http_ready(port))
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
    os.close(writer)


def is_http_ready(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False


def test_request_in_flight_is_answered_before_the_exit(start_server: StartServer, tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    write_held(tmp_path / "models", "slow", notes.where)
    running = start_server(tmp_path / "models")
    running.wait_ready()
    connection = http.client.HTTPConnection(running.http_url, timeout=60)
    connection.request("POST", "/v2/models/slow/infer", json_body("last", (1, 2, 3, 4)))
    signal_while_executing(running, notes)
    response = connection.getresponse()
    assert response.status == 200
    assert response.getheader("Connection", "").lower() == "close"
    assert json.loads(response.read())["outputs"][0]["data"] == [2, 4, 6, 8]
    assert running.wait_exit() == 0


def test_kept_connection_is_served_until_exit_timeout(start_server: StartServer, tmp_path: Path) -> None:
    """Triton 2.51 answers it in the same way, without `Connection: close`."""
    write_identity(tmp_path / "models")
    running = start_server(tmp_path / "models", "--exit-timeout-secs=6")
    running.wait_ready()
    connections = [http.client.HTTPConnection(running.http_url, timeout=60) for _ in range(2)]
    for connection in connections:
        connection.connect()
    running.signal()
    running.wait_log("Waiting for in-flight requests to complete")
    for _ in range(3):
        time.sleep(1.1)  # longer than an idle connection used to be kept
        for connection in connections:
            connection.request("POST", "/v2/models/identity/infer", BODY)
            response = connection.getresponse()
            assert response.status == 200
            assert response.getheader("Connection") is None
            response.read()
    connections[0].close()
    assert running.wait_exit() == 0  # the other one is idle, and is closed in time


def test_expired_exit_timeout_ends_with_status_1(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "slow", parameters={"execute_delay_ms": "100000"})
    running = start_server(tmp_path / "models", "--exit-timeout-secs=1")
    running.wait_ready()
    connection = http.client.HTTPConnection(running.http_url, timeout=60)
    connection.request("POST", "/v2/models/slow/infer", BODY)
    running.wait_requests("slow", executing=1)
    running.signal()
    answer = connection.getresponse()
    assert answer.status == 503
    assert (
        "the server exits, and the request did not finish within the exit timeout of 1 s"
        in json.loads(answer.read())["error"]
    )
    assert running.wait_exit() == 1
    assert "Exit timeout expired. Exiting immediately." in running.log_text()
    connection.close()


def test_draining_server_is_not_ready_but_serves(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    running = start_server(tmp_path / "models", "--drain-seconds=30")
    running.wait_ready()
    running.signal()
    running.wait_log("Signal \\(15\\) received")
    wait_until(lambda: running.get("/v2/health/ready").status != 200)
    assert running.get("/v2/health/ready").status == 503
    assert running.get("/v2/health/live").status == 200
    answer = running.request("POST", "/v2/models/identity/infer", BODY)
    assert answer.status == 200
    running.signal()
    assert running.wait_exit() == 1


def test_second_signal_ends_the_server_at_once(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    running = start_server(tmp_path / "models", "--drain-seconds=600")
    running.wait_ready()
    running.signal()
    running.wait_log("Signal \\(15\\) received")
    running.signal()
    assert running.wait_exit() == 1


def test_signal_during_start_exits_with_status_0(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models", parameters={"creation_delay_sec": "300"})
    running = start_server(tmp_path / "models")
    running.wait_log("loading: identity:1")
    running.signal()
    assert running.wait_exit() == 0
    assert '"ready: ' not in running.log_text()


def send_over_http(url: str) -> None:
    """Infer once with a connection that stays open, and once with one of its own."""
    connection = http.client.HTTPConnection(url, timeout=60)
    for _ in range(2):
        connection.request("POST", "/v2/models/identity/infer", BODY)
        response = connection.getresponse()
        response.read()
        assert response.status == 200
    connection.close()


def send_over_grpc(url: str) -> None:
    """Infer twice over one channel of stock tritonclient."""
    with grpc_client.InferenceServerClient(url) as client:
        tensor = grpc_client.InferInput("INPUT0", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        for _ in range(2):
            result = client.infer("identity", [tensor], client_timeout=60)
            assert result.as_numpy("OUTPUT0").tolist() == [[1, 1, 1, 1]]


class Load:
    """Clients that send until `stop`, and what went wrong."""

    def __init__(self, send: Callable[[str], None], url: str, clients: int) -> None:
        self._send = send
        self._url = url
        self.stop = threading.Event()
        self.answered = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self.stop.is_set():
            try:
                self._send(self._url)
                self.answered += 1
            except Exception as error:
                self.failures.append(repr(error))
                return
            time.sleep(0.005)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_no_request_fails_when_clients_leave_during_drain(
    start_server: StartServer, tmp_path: Path, protocol: str
) -> None:
    write_identity(tmp_path / "models")
    running = start_server(tmp_path / "models", "--drain-seconds=6")
    running.wait_ready()
    send, url = (send_over_http, running.http_url) if protocol == "http" else (send_over_grpc, running.grpc_url)
    load = Load(send, url, clients=4)
    running.signal()
    wait_until(lambda: running.get("/v2/health/ready").status != 200)
    before = load.answered
    wait_until(lambda: load.answered > before + 40)
    load.stop.set()
    load.join()
    assert load.failures == []
    assert running.wait_exit() == 0


def test_grpc_call_in_flight_is_answered_before_exit(start_server: StartServer, tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    write_held(tmp_path / "models", "slow", notes.where)
    running = start_server(tmp_path / "models")
    running.wait_ready()
    answers: list[object] = []
    with grpc_client.InferenceServerClient(running.grpc_url) as client:
        tensor = grpc_client.InferInput("IN", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        client.async_infer(
            "slow", [tensor], callback=lambda result, error: answers.append(error or result), request_id="last"
        )
        signal_while_executing(running, notes)
        assert running.wait_exit() == 0
        wait_until(lambda: answers)
    assert [type(answer).__name__ for answer in answers] == ["InferResult"]

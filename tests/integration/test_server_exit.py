"""End of a server: drain, requests in flight, exit status, signals at every moment."""

import http.client
import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.model_repository import write_identity, write_python_add_sub
from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]

INPUT = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
BODY = json.dumps({"inputs": [INPUT]}).encode()


def wait_executing(running: ServerProcess) -> None:
    """Wait until the model `slow` executes a request."""
    line = b'naiad_inference_executing_request_count{model="slow",version="1"} 1'
    while line not in running.get("/metrics", url=running.metrics_url).body:
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_server_exits_with_status_0(start_server: StartServer, tmp_path: Path, number: signal.Signals) -> None:
    write_identity(tmp_path / "models")
    write_python_add_sub(tmp_path / "models")
    running = start_server(tmp_path / "models")
    running.wait_ready()
    running.signal(number)
    assert running.wait_exit(20) == 0
    assert f"Signal ({int(number)}) received." in running.log_text()
    assert "Traceback" not in running.log_text()


def test_request_in_flight_is_answered_before_the_exit(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "slow", parameters={"execute_delay_ms": "1000"})
    running = start_server(tmp_path / "models")
    running.wait_ready()
    connection = http.client.HTTPConnection(running.http_url, timeout=30)
    connection.request("POST", "/v2/models/slow/infer", BODY)
    wait_executing(running)
    running.signal()
    response = connection.getresponse()
    assert response.status == 200
    assert response.getheader("Connection", "").lower() == "close"
    assert json.loads(response.read())["outputs"][0]["data"] == [1, 2, 3, 4]
    assert running.wait_exit(20) == 0


def test_expired_exit_timeout_ends_with_status_1(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "slow", parameters={"execute_delay_ms": "20000"})
    running = start_server(tmp_path / "models", "--exit-timeout-secs=1")
    running.wait_ready()
    connection = http.client.HTTPConnection(running.http_url, timeout=30)
    connection.request("POST", "/v2/models/slow/infer", BODY)
    wait_executing(running)
    running.signal()
    assert running.wait_exit(10) == 1
    assert "Exit timeout expired. Exiting immediately." in running.log_text()
    connection.close()


def test_draining_server_is_not_ready_but_serves(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    running = start_server(tmp_path / "models", "--drain-seconds=30")
    running.wait_ready()
    running.signal()
    running.wait_log("Signal \\(15\\) received")
    while running.get("/v2/health/ready").status == 200:
        time.sleep(0.01)
    assert running.get("/v2/health/ready").status == 503
    assert running.get("/v2/health/live").status == 200
    answer = running.request("POST", "/v2/models/identity/infer", BODY)
    assert answer.status == 200
    running.signal()
    assert running.wait_exit(5) == 1


def test_second_signal_ends_the_server_at_once(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    running = start_server(tmp_path / "models", "--drain-seconds=600")
    running.wait_ready()
    running.signal()
    running.wait_log("Signal \\(15\\) received")
    running.signal()
    assert running.wait_exit(5) == 1


def test_signal_during_start_up_ends_the_server_with_status_0(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models", parameters={"creation_delay_sec": "30"})
    running = start_server(tmp_path / "models")
    running.wait_log("loading: identity:1")
    running.signal()
    assert running.wait_exit(10) == 0
    assert "Started HTTPService" not in running.log_text()


class Load:
    """Clients that send until they are told that the server is not ready any more, and a little longer."""

    def __init__(self, url: str, clients: int) -> None:
        self._url = url
        self.stop = threading.Event()
        self.answered = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._send) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        connection = http.client.HTTPConnection(self._url, timeout=30)
        while not self.stop.is_set():
            try:
                connection.request("POST", "/v2/models/identity/infer", BODY)
                response = connection.getresponse()
                response.read()
                if response.status != 200:
                    self.failures.append(f"status {response.status}")
                self.answered += 1
            except OSError as error:
                self.failures.append(repr(error))
                return
            time.sleep(0.005)
        connection.close()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def test_no_request_fails_when_clients_leave_during_the_drain(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    running = start_server(tmp_path / "models", "--drain-seconds=3")
    running.wait_ready()
    load = Load(running.http_url, clients=4)
    running.signal()
    while running.get("/v2/health/ready").status == 200:
        time.sleep(0.01)
    before = load.answered
    time.sleep(1.0)
    assert load.answered > before
    load.stop.set()
    load.join()
    assert load.failures == []
    assert running.wait_exit(20) == 0

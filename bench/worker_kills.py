"""Kills one of several workers of a Python model again and again under load: which requests fail, and which wait.

python -m bench.worker_kills [KILLS [WORKERS [CLIENTS]]]
"""

import http.client
import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench.peers import Naiad, Running

KILLS, WORKERS, CLIENTS = 5, 2, 24
_CONFIG = """
name: "mortal" backend: "python"
input [ {{ name: "X" data_type: TYPE_INT64 dims: [ 1 ] }} ]
output [ {{ name: "PID" data_type: TYPE_INT64 dims: [ 1 ] }} ]
instance_group [ {{ count: {} kind: KIND_CPU }} ]
parameters {{ key: "restart_limit" value {{ string_value: "1000" }} }}
"""
_MODEL = """
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.002)
        pid = np.array([os.getpid()], np.int64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PID", pid)]) for _ in requests]
"""
_PAYLOAD = json.dumps({"inputs": [{"name": "X", "datatype": "INT64", "shape": [1], "data": [1]}]}).encode()
_OWN = "was killed by SIGKILL while it executed this request"


class Client(threading.Thread):
    """Asks over one connection until it is stopped, and keeps what it was answered."""

    def __init__(self, server: Running, stopped: threading.Event) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._stopped = stopped
        self.answered_count = 0
        self.longest_s = 0.0
        self.pid = 0
        """Worker of the last answer."""
        self.failures: list[str] = []

    def run(self) -> None:
        """Ask until stopped."""
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=60)
        while not self._stopped.is_set():
            began_s = time.perf_counter()
            connection.request("POST", "/v2/models/mortal/infer", _PAYLOAD)
            answer = connection.getresponse()
            content: Any = json.loads(answer.read())
            self.longest_s = max(self.longest_s, time.perf_counter() - began_s)
            if answer.status == 200:
                self.answered_count += 1
                self.pid = content["outputs"][0]["data"][0]
            else:
                self.failures.append(f"{answer.status} {content['error']}")
        connection.close()


def restart_count(server: Running) -> int:
    """Return how many workers have started again, by the log."""
    return server.log.read_text(errors="replace").count("has started again")


def kill_under_load(server: Running, kills: int, clients: int) -> list[Client]:
    """Kill the worker that answered last, a second after the one before is back; return the clients."""
    stopped = threading.Event()
    asking = [Client(server, stopped) for _ in range(clients)]
    for client in asking:
        client.start()
    for number in range(1, kills + 1):
        time.sleep(1)
        os.kill(asking[0].pid, signal.SIGKILL)
        while restart_count(server) < number:
            time.sleep(0.01)
    time.sleep(1)
    stopped.set()
    for client in asking:
        client.join()
    return asking


def main(kills: int = KILLS, workers: int = WORKERS, clients: int = CLIENTS) -> int:
    """Print what became of the requests; return how many failed that no killed worker had."""
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "models" / "mortal"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(_CONFIG.format(workers))
        (model / "1" / "model.py").write_text(_MODEL)
        server = Naiad().start(model.parent, Path(directory) / "log")
        try:
            asking = kill_under_load(server, kills, clients)
        finally:
            server.stop()
    failures = [failure for client in asking for failure in client.failures]
    others = [failure for failure in failures if _OWN not in failure]
    print(
        f"{kills} kills of {workers} workers, {clients} clients: {sum(c.answered_count for c in asking)} answered, "
        f"{len(failures) - len(others)} failed in a killed worker, {len(others)} others failed; "
        f"longest answer {max(c.longest_s for c in asking):.2f} s"
    )
    for failure in others[:10]:
        print(f"  {failure}")
    return len(others)


if __name__ == "__main__":
    sys.exit(1 if main(*map(int, sys.argv[1:])) else 0)

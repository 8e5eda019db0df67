"""Requests that fail while servers behind one port (SO_REUSEPORT) are restarted one after the other.

    python -m bench.rolling_restarts [--restarts 20] [--clients 8] [--kept]

Each client opens a new connection for each request, or with `--kept` uses one until the server closes it. A restart
starts a server, waits until it is ready, and ends the oldest with SIGTERM. A request that is not answered with
200 counts as failed; no client tries again.
"""

import argparse
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import models
from bench.peers import free_ports

_MODEL = "add_sub"
_START_S = 120.0
_PATIENCE_S = 10.0


@dataclass
class Outcome:
    """What the clients saw."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)
    slowest_ms: float = 0.0
    over_500_ms: int = 0


def main() -> int:
    """Run the restarts, print the outcome as JSON, and return 1 when a request failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--kept", action="store_true", help="clients keep their connections")
    parser.add_argument("--requests-per-second", type=float, default=200.0, help="of all clients together")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        repository = Path(directory) / "models"
        models.write_repository(repository, (_MODEL,))
        outcome = _restart(repository, Path(directory), options)
    seen = {
        "restarts": options.restarts,
        "answered": outcome.answered,
        "failed": len(outcome.failures),
        "failures": outcome.failures[:10],
        "slowest_ms": round(outcome.slowest_ms, 1),
        "over_500_ms": outcome.over_500_ms,
    }
    print(json.dumps(seen, indent=2))
    return 1 if outcome.failures else 0


def _restart(repository: Path, directory: Path, options: argparse.Namespace) -> Outcome:
    port = free_ports(1)[0]
    servers = deque([_start(repository, directory, port, number) for number in range(2)])
    try:
        with _load(port, options) as outcome:
            for number in range(options.restarts):
                servers.append(_start(repository, directory, port, number + 2))
                oldest = servers.popleft()
                oldest.send_signal(signal.SIGTERM)
                status = oldest.wait(_START_S)
                print(f"restart {number + 1}: status {status}, {len(outcome.failures)} failed", flush=True)
                if status:
                    outcome.failures.append(f"a server exited with {status}")
        return outcome
    finally:
        for server in servers:
            server.kill()
            server.wait()


def _start(repository: Path, directory: Path, port: int, number: int) -> "subprocess.Popen[bytes]":
    """Start a server and wait until it accepts on the port that all share."""
    log = directory / f"server{number}.log"
    own = [f"--{name}-port=0" for name in ("grpc", "metrics")]
    flags = [f"--http-port={port}", "--http-address=127.0.0.1", "--reuse-http-port=true", "--exit-timeout-secs=10"]
    command = [sys.executable, "-m", "naiad", "serve", str(repository), *own, *flags]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=dict(os.environ))
    end_s = time.monotonic() + _START_S
    while b'"ready: ' not in log.read_bytes():
        if server.poll() is not None or time.monotonic() > end_s:
            raise RuntimeError(f"the server did not start:\n{log.read_text()}")
        time.sleep(0.02)
    return server


@contextlib.contextmanager
def _load(port: int, options: argparse.Namespace) -> Iterator[Outcome]:
    """Send requests until the block ends."""
    outcome, stop, lock = Outcome(), threading.Event(), threading.Lock()
    pause_s = options.clients / options.requests_per_second

    def run() -> None:
        connection: http.client.HTTPConnection | None = None
        while not stop.is_set():
            began_s = time.monotonic()
            connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
            failure = _infer(connection)
            took_ms = (time.monotonic() - began_s) * 1000
            if failure or not options.kept or connection.sock is None:
                connection.close()
                connection = None
            with lock:
                outcome.answered += not failure
                outcome.slowest_ms = max(outcome.slowest_ms, took_ms)
                outcome.over_500_ms += took_ms > 500
                if failure:
                    outcome.failures.append(failure)
            time.sleep(max(0.0, pause_s - took_ms / 1000))

    threads = [threading.Thread(target=run) for _ in range(options.clients)]
    for thread in threads:
        thread.start()
    try:
        yield outcome
    finally:
        stop.set()
        for thread in threads:
            thread.join()


_BODY = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16} for name in ("INPUT0", "INPUT1")
        ]
    }
)


def _infer(connection: http.client.HTTPConnection) -> str:
    """Send a request; return how it failed, or an empty text."""
    try:
        connection.request("POST", f"/v2/models/{_MODEL}/infer", _BODY)
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    return "" if response.status == 200 else f"{response.status} {text[:100]!r}"


if __name__ == "__main__":
    sys.exit(main())

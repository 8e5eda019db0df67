"""A naiad server as a process of its own, for integration tests."""

import contextlib
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from support.fork_server import ForkedProcess, fork_server
from support.waiting import wait_until

START_S = 150.0
"""A server that loads libraries and models has started after this, however busy the machine is."""
SOURCE = Path(__file__).resolve().parents[2] / "src"
_STARTED = {
    "http": re.compile(r"Started HTTPService at ([^\s\"]+)"),
    "grpc": re.compile(r"Started GRPCInferenceService at ([^\s\"]+)"),
    "metrics": re.compile(r"Started Metrics Service at ([^\s\"]+)"),
}
_READ_AT_START = ("PYTHON", "LD_", "OMP_", "OPENBLAS_", "MALLOC_", "LC_", "LANG", "TZ")
"""What Python, libc and libraries read before or while they are imported: a forked process would not see them."""
_CLOUDS = re.compile(r"Started (?:Sagemaker|Vertex AI|Azure ML) HTTPService at ([^\s\"]+)")


class Answer:
    """An HTTP response."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ServerProcess:
    """`python -m naiad serve ...`; its ports are free ones unless the flags say otherwise."""

    def __init__(
        self, log: Path, *flags: str, environment: Mapping[str, str] | None = None, is_bare: bool = False
    ) -> None:
        """`is_bare`: with these flags only."""
        self.log = log
        self.tls: ssl.SSLContext | None = None
        """Set it for a server whose HTTP speaks TLS."""
        ports = [f"--{name}-port=0" for name in _STARTED if not any(f.startswith(f"--{name}-port") for f in flags)]
        addresses = ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
        arguments = ["serve", *flags] if is_bare else ["serve", *addresses, *ports, *flags]
        variables = {**os.environ, "PYTHONPATH": str(SOURCE), **(environment or {})}
        self.process: ForkedProcess | subprocess.Popen[bytes]
        with log.open("wb") as output:
            if any(name.startswith(_READ_AT_START) for name in environment or ()):
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "naiad", *arguments],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=variables,
                )
            else:
                self.process = fork_server().start(arguments, output, variables)

    # --- waiting ----------------------------------------------------------------------------------------------------

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_log(self, pattern: str, timeout_s: float = 60.0) -> "re.Match[str]":
        """Wait until the log has a line that matches; fails with the log when the process ends before."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            found = re.search(pattern, self.log_text())
            if found:
                return found
            if ended:
                raise AssertionError(f"exited with {self.process.returncode} before {pattern!r}:\n{self.log_text()}")
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r} within {timeout_s} s:\n{self.log_text()}")

    def wait_started(self, timeout_s: float = START_S) -> None:
        """Wait until the models of the start are loaded or have failed."""
        self.wait_log('"(ready|serving, not ready): ', timeout_s)

    def is_ready(self) -> bool:
        """Return whether the server says that it is ready; one that ends may not answer at all."""
        try:
            return self.get("/v2/health/ready").status == 200
        except (OSError, http.client.HTTPException):
            return False

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait until the server says it is ready."""
        self.wait_started(timeout_s)
        deadline = time.monotonic() + timeout_s
        while self.get("/v2/health/ready").status != 200:
            if time.monotonic() > deadline:
                raise AssertionError(f"not ready within {timeout_s} s:\n{self.log_text()}")
            time.sleep(0.01)

    def wait_requests(self, model: str, *, waiting: int | None = None, executing: int | None = None) -> None:
        """Wait until these numbers of requests of a model wait and execute; None: any number."""
        wanted = [
            (name, count)
            for name, count in (
                ("nv_inference_pending_request_count", waiting),
                ("naiad_inference_executing_request_count", executing),
            )
            if count is not None
        ]

        def are_met() -> bool:
            text = self.get("/metrics", url=self.metrics_url).body.decode()
            rows = [re.findall(rf'^{name}{{model="{model}",.*}} (\S+)$', text, re.MULTILINE) for name, _ in wanted]
            return [[float(number) for number in found] for found in rows] == [[count] for _, count in wanted]

        wait_until(are_met, f"never did {waiting} requests of '{model}' wait and {executing} execute")

    def wait_exit(self, timeout_s: float = 60.0) -> int:
        """Wait for the process to end and return its status."""
        return self.process.wait(timeout_s)

    def members(self) -> list[int]:
        """Return the pids of the server processes of a server with `--processes`."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is none, too
                if child.name().startswith("naiad:"):
                    found.append(child.pid)
        return found

    # --- talking ----------------------------------------------------------------------------------------------------

    def _address(self, service: str) -> str:
        return self.wait_log(_STARTED[service].pattern).group(1)

    @property
    def http_url(self) -> str:
        """`host:port`, as tritonclient takes it."""
        return self._address("http")

    @property
    def grpc_url(self) -> str:
        return self._address("grpc")

    @property
    def metrics_url(self) -> str:
        return self._address("metrics")

    @property
    def cloud_url(self) -> str:
        """`host:port` of the only cloud endpoint."""
        return self.wait_log(_CLOUDS.pattern).group(1)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        url: str = "",
    ) -> Answer:
        """Send one HTTP request over a connection of its own."""
        where = url or self.http_url
        if self.tls is not None and where == self.http_url:
            connection = http.client.HTTPSConnection(where, timeout=60, context=self.tls)
        else:
            connection = http.client.HTTPConnection(where, timeout=60)
        try:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path: str, *, url: str = "") -> Answer:
        return self.request("GET", path, url=url)

    def post(self, path: str, content: object = None) -> Answer:
        body = b"" if content is None else json.dumps(content).encode()
        return self.request("POST", path, body)

    # --- ending -----------------------------------------------------------------------------------------------------

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """End this process, and only this, gracefully if it can; harmless when it has ended."""
        # The second signal ends a server at once that waits for what a test has left.
        for patience_s in (5, 60):
            if self.process.poll() is None:
                self.process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(patience_s)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextmanager
def serving(
    log: Path, *flags: str, environment: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[ServerProcess]:
    """A server that is ready, and is stopped in the end."""
    running = ServerProcess(log, *flags, environment=environment)
    running.tls = tls
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()

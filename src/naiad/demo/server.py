"""Starts and stops a server process with the demonstration's models."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

READY_WITHIN_S = 60.0


class NotReadyError(Exception):
    """The server did not become ready; the text is its output."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the command line for every demonstration."""

    repository: Path
    keep_running: bool = False
    http_port: int = 0
    grpc_port: int = 0


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready."""

    process: "subprocess.Popen[bytes]"
    http_port: int
    grpc_port: int

    @property
    def http_url(self) -> str:
        """The URL for an HTTP client of `tritonclient`."""
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """The URL for a gRPC client of `tritonclient`."""
        return f"127.0.0.1:{self.grpc_port}"


@contextlib.contextmanager
def serving(root: Path, settings: Settings, console: Console, hint: str) -> Iterator[Running]:
    """Serve the models below `root`; with `keep_running` continue, after printing `hint`, until Ctrl-C.

    Raises NotReadyError.
    """
    http_port = settings.http_port or _free_port()
    grpc_port = settings.grpc_port or _free_port()
    command = _command(root, http_port, grpc_port)
    console.print(f"\n[bold]Server[/bold]: {' '.join(command[2:])}")
    process = subprocess.Popen(command, stderr=subprocess.PIPE if not settings.keep_running else None)
    try:
        began = time.monotonic()
        if not _wait_ready(process, http_port):
            has_ended = process.poll() is not None
            raise NotReadyError(
                process.stderr.read().decode(errors="replace") if process.stderr and has_ended else ""
            )
        console.print(f"  ready after {time.monotonic() - began:.2f} s\n")
        yield Running(process, http_port, grpc_port)
        if settings.keep_running:
            _keep(process, http_port, grpc_port, console, hint)
    finally:
        _stop(process)


def _command(root: Path, http_port: int, grpc_port: int) -> list[str]:
    command = [sys.executable, "-m", "naiad", "serve", "--model-repository", str(root)]
    command += ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1", "--log-info", "false"]
    command += ["--http-port", str(http_port), "--grpc-port", str(grpc_port)]
    return [*command, "--metrics-port", str(_free_port())]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(server: "subprocess.Popen[bytes]", port: int) -> bool:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False


def _keep(server: "subprocess.Popen[bytes]", http_port: int, grpc_port: int, console: Console, hint: str) -> None:
    console.print(f"The server keeps running: HTTP on {http_port}, gRPC on {grpc_port}. Ctrl-C stops it. Try:")
    console.print(f"  curl -s http://127.0.0.1:{http_port}/v2/models/{hint} | python -m json.tool")
    try:
        server.wait()
    except KeyboardInterrupt:
        console.print("stopping")


def _stop(server: "subprocess.Popen[bytes]") -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()

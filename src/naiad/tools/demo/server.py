"""Starts and stops a server process with the demonstration's models."""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console

from naiad.tools.demo.progress import waiting

READY_WITHIN_S = 60.0


class NotReadyError(Exception):
    """The server did not become ready; the text is its output."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The options of the command line for every demonstration."""

    repository: Path
    keep_running: bool = False
    http_port: int = 0
    grpc_port: int = 0
    ready_within_s: float = READY_WITHIN_S


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

    def urls(self) -> list[tuple[str, str]]:
        """Return protocol and URL of both."""
        return [("HTTP", self.http_url), ("gRPC", self.grpc_url)]


@contextlib.contextmanager
def serving(
    root: Path, settings: DemoSettings, console: Console, model: str, flags: Sequence[str] = ()
) -> Iterator[Running]:
    """Serve the models below `root`, and print three commands to try after the block, two of them for `model`.

    `flags` are further flags of the server. With `keep_running` it continues until Ctrl-C. Raises NotReadyError.
    """
    http_port = settings.http_port or _free_port()
    grpc_port = settings.grpc_port or _free_port()
    command = [*_command(root, http_port, grpc_port), *flags]
    console.print(f"\n[bold]Server[/bold]: {' '.join(command[2:])}", soft_wrap=True)
    # A file, not a pipe: nothing reads while the server runs, and it would wait once the pipe is full.
    log = None if settings.keep_running else tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
    process = subprocess.Popen(command, stderr=log)
    try:
        began = time.monotonic()
        with waiting(console, "loading the models"):
            is_ready = _wait_ready(process, http_port, settings.ready_within_s)
        if not is_ready:
            raise NotReadyError(_text_of(log))
        console.print(f"  ready after {time.monotonic() - began:.2f} s\n")
        yield Running(process, http_port, grpc_port)
        if settings.keep_running:
            console.print(f"\nThe server keeps running: HTTP on {http_port}, gRPC on {grpc_port}. Ctrl-C stops it.")
            _print_commands(console, commands_beside(f"http://127.0.0.1:{http_port}", model))
            _wait(process, console)
    finally:
        _stop(process)
        if log is not None:
            log.close()
    if not settings.keep_running:
        _print_commands(console, commands_after(root, model))


def _command(root: Path, http_port: int, grpc_port: int) -> list[str]:
    command = [sys.executable, "-m", "naiad", "serve", "--model-repository", str(root)]
    command += ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1", "--log-info", "false"]
    command += ["--http-port", str(http_port), "--grpc-port", str(grpc_port)]
    return [*command, "--metrics-port", str(_free_port())]


def _text_of(log: IO[bytes] | None) -> str:
    if log is None:
        return ""
    # Not seek: the server may still write at the position that both share.
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(server: "subprocess.Popen[bytes]", port: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False


def commands_beside(url: str, model: str) -> list[str]:
    """Return three commands for another terminal while a server runs at `url`."""
    naiad = naiad_command()
    return [f"curl -s {url}/v2/models/{model}", f"{naiad} explain {model} --url {url}", f"{naiad} demo ocr"]


def commands_after(root: Path, model: str) -> list[str]:
    """Return three commands that start the server of `root` again and query it, from another terminal."""
    naiad = naiad_command()
    url = "http://localhost:8000"
    return [
        f"{naiad} serve --model-repository {shlex.quote(str(root))}",
        f"curl -s {url}/v2/models/{model}",
        f"{naiad} explain {model}",
    ]


def naiad_command() -> str:
    """Return how a shell in the working directory calls this naiad."""
    script = Path(sys.executable).with_name("naiad")
    found = shutil.which("naiad")
    if found is not None and Path(found) == script:
        return "naiad"
    if not script.is_file():
        return f"{shlex.quote(sys.executable)} -m naiad"
    return shlex.quote(str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script))


def _print_commands(console: Console, commands: Sequence[str]) -> None:
    console.print("\n[bold]Three commands to copy[/bold]")
    for command in commands:
        # Plain and unwrapped, so that a selection of the line is the command.
        console.print(f"  {command}", soft_wrap=True, highlight=False, markup=False)


def _wait(server: "subprocess.Popen[bytes]", console: Console) -> None:
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

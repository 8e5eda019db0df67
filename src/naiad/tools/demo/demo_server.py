"""Starts and stops a server process with the demonstration's models."""

import contextlib
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from naiad.tools.demo.demo_progress import waiting
from naiad.tools.process.child import ProcessError
from naiad.tools.process.own_server import ServeProcess

READY_WITHIN_S = 60.0
_GRACE_S = 30.0


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

    pid: int
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
    command = [*_flags(root, settings), *flags]
    console.print(f"\n[bold]Server[/bold]: naiad serve {' '.join(command)}", soft_wrap=True)
    server = ServeProcess(command, shows_output=settings.keep_running)
    try:
        began = time.monotonic()
        with waiting(console, "loading the models"):
            try:
                ports = server.wait_ready(settings.ready_within_s).ports
            except ProcessError as error:
                raise NotReadyError(str(error)) from None
        console.print(f"  ready after {time.monotonic() - began:.2f} s\n")
        running = Running(server.pid, ports["http"], ports["grpc"])
        yield running
        if settings.keep_running:
            console.print(f"\nThe server keeps running: {_places(running)}. Ctrl-C stops it.")
            _print_commands(console, commands_beside(f"http://{running.http_url}", model))
            console.print(f"\nDashboard: http://{running.http_url}/", soft_wrap=True, highlight=False)
            _wait(server, console)
    finally:
        server.close(_GRACE_S)
    if not settings.keep_running:
        _print_commands(console, commands_after(root, model))


def _flags(root: Path, settings: DemoSettings) -> list[str]:
    flags = ["--model-repository", str(root), "--log-info", "false"]
    flags += ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1"]
    flags += ["--http-port", str(settings.http_port), "--grpc-port", str(settings.grpc_port)]
    return [*flags, "--metrics-port", "0"]


def _places(running: Running) -> str:
    return f"HTTP on {running.http_port}, gRPC on {running.grpc_port}"


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


def _wait(server: ServeProcess, console: Console) -> None:
    try:
        server.process.wait()
    except KeyboardInterrupt:
        console.print("stopping")

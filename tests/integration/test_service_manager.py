"""A real server under systemd's protocol, with a configuration file and a log file that is rotated."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from support.model_repository import write_identity
from support.server_process import ServerProcess
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]


@pytest.mark.parametrize("processes", [1, 2])
def test_ready_watchdog_and_stopping_are_reported(tmp_path: Path, start_server: StartServer, processes: int) -> None:
    write_identity(tmp_path / "models")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        running = start_server(tmp_path / "models", f"--processes={processes}", environment=environment)
        seen = []

        def wait_for(state: bytes) -> None:
            while not (seen and seen[-1].startswith(state)):
                seen.append(systemd.recv(1000))

        wait_for(b"READY=1")
        assert running.is_ready()
        wait_for(b"WATCHDOG=1")
        running.signal()
        wait_for(b"STOPPING=1")
        assert running.wait_exit() == 0
        assert sum(state.startswith(b"READY=1") for state in seen) == 1


def test_rotated_log_is_written_again(tmp_path: Path, start_server: StartServer) -> None:
    write_identity(tmp_path / "models")
    log = tmp_path / "server.log"
    config = tmp_path / "server.toml"
    config.write_text(f'model-repository = "{tmp_path / "models"}"\nlog-file = "{log}"\nlog-verbose = 1\n')
    running = start_server(None, f"--config={config}", "--http-port=0")
    wait_until(lambda: log.exists() and '"ready: ' in log.read_text(), "the server never became ready")
    address = log.read_text().partition("Started HTTPService at ")[2].split('"')[0].split()[0]
    log.rename(tmp_path / "server.log.1")

    def is_logged_again() -> bool:
        running.request("GET", "/v2/models/missing", url=address)
        running.request("POST", "/v2/models/missing/infer", b"{}", url=address)
        return log.exists() and "missing" in log.read_text()

    wait_until(is_logged_again, "nothing was logged after the rotation")


def test_mistake_in_the_file_ends_the_start(tmp_path: Path, start_server: StartServer) -> None:
    config = tmp_path / "server.toml"
    config.write_text('model-repository = "models"\nhttp-prt = 8000\n')
    running = start_server(None, f"--config={config}")
    assert running.wait_exit() == 1
    assert "server.toml:2: unknown key 'http-prt'; did you mean 'http-port'?" in " ".join(running.log_text().split())


def test_read_only_log_directory_is_named(tmp_path: Path, start_server: StartServer) -> None:
    running = start_server(tmp_path, "--log-file=/proc/naiad.log")
    assert running.wait_exit() == 1
    text = " ".join(running.log_text().split())
    assert "--log-file /proc/naiad.log: No such file or directory; choose a file that can be written" in text

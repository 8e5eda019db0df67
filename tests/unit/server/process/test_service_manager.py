"""Messages to systemd over a real datagram socket, and the unit file."""

import asyncio
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.options.sources.command_line import parse_options
from naiad.server.process.process_environment import ServiceManager

DEPLOY = Path(__file__).parents[4] / "deploy" / "systemd"


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(30)
        yield receiver


def environment(systemd: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": systemd.getsockname(), **more}


def test_states_are_sent(systemd: socket.socket) -> None:
    manager = ServiceManager(environment(systemd))
    manager.ready()
    manager.stopping()
    assert systemd.recv(100).startswith(b"READY=1\n")
    assert systemd.recv(100).startswith(b"STOPPING=1\n")


def test_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        name = f"naiad-test-{os.getpid()}"
        receiver.bind(f"\0{name}")
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).ready()
        receiver.settimeout(30)
        assert receiver.recv(100).startswith(b"READY=1")


def test_loop_reports_to_the_watchdog(systemd: socket.socket) -> None:
    async def run() -> list[bytes]:
        loop = asyncio.get_running_loop()
        variables = {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())}
        ServiceManager(environment(systemd, **variables)).watch(loop)
        systemd.setblocking(False)
        return [await asyncio.wait_for(loop.sock_recv(systemd, 100), 30) for _ in range(3)]

    assert asyncio.run(run()) == [b"WATCHDOG=1"] * 3


@pytest.mark.parametrize("variables", [{}, {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}])
def test_no_watchdog_for_this_process(systemd: socket.socket, variables: dict[str, str]) -> None:
    async def run() -> None:
        ServiceManager(environment(systemd, **variables)).watch(asyncio.get_running_loop())

    asyncio.run(run())
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(100)


def test_failure_is_logged_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager({}).ready()
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "missing")}).ready()
    assert "systemd was not notified" in caplog.text


def test_unit_is_valid(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "naiad.service"
    text = (DEPLOY / "naiad.service").read_text()
    unit.write_text(text.replace("/opt/naiad/bin/naiad", sys.executable))
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    mistakes = [line for line in done.stderr.splitlines() if "naiad.service" in line]
    assert (done.returncode, mistakes) == (0, []), done.stderr
    rated = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=20", unit], capture_output=True, text=True, check=False
    )
    assert rated.returncode == 0, rated.stdout + rated.stderr


def test_file_of_the_unit_is_valid() -> None:
    options = parse_options(["--config", str(DEPLOY / "server.toml")], {})
    assert options.log.file == "/var/log/naiad/server.log"
    assert options.drain_s + options.exit_timeout_s < 60  # TimeoutStopSec

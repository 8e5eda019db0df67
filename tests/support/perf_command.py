"""`naiad perf` as a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.commands import ENVIRONMENT, run_command
from support.server_process import ServerProcess

__all__ = ["ENVIRONMENT", "address", "command", "perf", "requests", "rows"]


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "naiad", "perf", *flags]


def address(server: ServerProcess, protocol: str) -> tuple[str, ...]:
    """Flags for a server over `http` or `grpc`."""
    return ("-i", protocol, "-u", server.http_url if protocol == "http" else server.grpc_url)


def perf(*flags: str, status: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run it to its end; fails unless it exits with `status`."""
    return run_command("perf", *flags, status=status, timeout_s=90)


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a result that `--json` has written."""
    found: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return found


def requests(path: Path) -> list[dict[str, Any]]:
    """Return the requests of the only load in a profile export."""
    (experiment,) = json.loads(path.read_text())["experiments"]
    found: list[dict[str, Any]] = experiment["requests"]
    return found

"""A subprocess with limits of time and memory, its output in a file."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.05
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LOG_BYTES = 1 << 20
"""A converter that prints more is ended."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one conversion."""

    time_s: float = 600.0
    memory_mib: float = 8192.0
    """Resident memory of the process and its children together. Watched where there is /proc, on Linux."""


@dataclass(frozen=True, slots=True)
class Run:
    """How a subprocess ended."""

    returncode: int
    duration_s: float
    peak_mib: float
    exceeded: str = ""
    """The limit that ended it, in words."""


def run(command: Sequence[str], environment: Mapping[str, str], log: Path, limits: Limits) -> Run:
    """Run a command in a session of its own until it ends or exceeds a limit; then end all its processes.

    Its stdin stays open as long as this process lives, so that it can notice the end of this process.
    """
    start = time.monotonic()
    peak, exceeded = 0.0, ""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
        try:
            while not exceeded and process.poll() is None:
                memory = _resident_mib(process.pid)
                peak = max(peak, memory)
                exceeded = _exceeded(time.monotonic() - start, memory, log, limits)
                time.sleep(_POLL_S)
        finally:
            _end(process)
    return Run(process.returncode, time.monotonic() - start, peak, exceeded)


def _exceeded(duration_s: float, memory_mib: float, log: Path, limits: Limits) -> str:
    if duration_s > limits.time_s:
        return f"not finished after {limits.time_s:g} s, the limit of time"
    if memory_mib > limits.memory_mib:
        return f"{memory_mib:.0f} MiB of memory, more than the limit of {limits.memory_mib:g} MiB"
    if log.stat().st_size > _LOG_BYTES:
        return f"more than {_LOG_BYTES} bytes of output"
    return ""


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()  # the group has ended; nothing is sent to a process that has, too
    process.wait()
    if process.stdin:
        process.stdin.close()


def _resident_mib(session: int) -> float:
    """Return the resident memory of all processes of a session."""
    pages = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[3]) == session:
            pages += int(fields[21])
    return pages * _PAGE_BYTES / 2**20

"""Commands that run to their end, with limits of time, memory and output."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.tools.process.child import ChildProcess, ProcessError, status_text
from naiad.tools.process.usage import session_bytes

_LOOK_S = 0.05
"""Between looks at what the command uses."""
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What a command may use; the defaults are for the conversion of a model."""

    time_s: float = 600.0
    memory_mib: float = 8192.0
    """Resident memory of all processes of its session together. Watched where there is /proc, on Linux."""
    output_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """How a command has ended."""

    status: int
    """Negative for a signal."""
    duration_s: float
    peak_mib: float
    exceeded: str = ""
    """The limit that has ended it, in words."""


def run(
    command: Sequence[str], limits: ProcessLimits, output: Path, environment: Mapping[str, str] | None = None
) -> EndedProcess:
    """Run a command until it ends or exceeds a limit; then end all its processes. Raises OSError.

    Its standard input stays open as long as this process lives, so that it can notice the end of this process.
    """
    begin_s = time.monotonic()
    peak_bytes, exceeded = 0, ""
    child = ChildProcess(command, output=output, environment=environment, has_lifeline=True)
    try:
        while not exceeded and child.wait(_LOOK_S) is None:
            used_bytes = session_bytes(child.pid)
            peak_bytes = max(peak_bytes, used_bytes)
            exceeded = _exceeded(time.monotonic() - begin_s, used_bytes / _MIB, child.output_bytes, limits)
    finally:
        child.close()
    return EndedProcess(child.wait() or 0, time.monotonic() - begin_s, peak_bytes / _MIB, exceeded)


def run_checked(command: Sequence[str], time_s: float) -> str:
    """Return the output of a command that succeeds within a time. Raises ProcessError, OSError."""
    child = ChildProcess(command)
    try:
        status = child.wait(time_s)
        text = child.last_output(child.output_bytes)
        if status is None:
            raise ProcessError(f"not finished after {time_s:g} s, the limit of time")
        if status:
            raise ProcessError(f"{status_text(status)}\n{child.last_output()}".strip())
        return text
    finally:
        child.close()


def _exceeded(duration_s: float, memory_mib: float, output_bytes: int, limits: ProcessLimits) -> str:
    if duration_s > limits.time_s:
        return f"not finished after {limits.time_s:g} s, the limit of time"
    if memory_mib > limits.memory_mib:
        return f"{memory_mib:.0f} MiB of memory, more than the limit of {limits.memory_mib:g} MiB"
    if output_bytes > limits.output_bytes:
        return f"more than {limits.output_bytes} bytes of output"
    return ""

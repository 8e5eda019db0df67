"""How a worker ended, in words."""

import signal
from pathlib import Path

_VMSTAT = Path("/proc/vmstat")


def count_oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory; 0 where it does not tell."""
    try:
        for line in _VMSTAT.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except OSError:
        return 0
    return 0


def describe_exit(returncode: int, oom_kills: int) -> str:
    """Return "exited with code 1", "was killed by SIGSEGV".

    `returncode` is that of `subprocess`; `oom_kills` are those that happened while the process lived.
    """
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    if -returncode == signal.SIGKILL and oom_kills:
        return f"was killed by {name}, probably by the kernel because memory ran out"
    return f"was killed by {name}"

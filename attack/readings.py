"""What a server's processes use, as the kernel counts it in /proc."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 1024 * 1024


@dataclass(frozen=True)
class Readings:
    """The process tree of a server at one moment."""

    cpu_s: float
    """User and system time, including children that have ended."""
    rss_mib: float
    peak_mib: float
    """Since `reset_peak`."""
    open_files: int


def read(pid: int) -> Readings:
    """Read the tree below `pid`."""
    cpu_s, rss, peak, files = 0.0, 0, 0, 0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            if process.pid == pid:
                cpu_s += times.children_user + times.children_system
            rss += process.memory_info().rss
            files += process.num_fds()
            peak += _peak_bytes(process.pid)
    return Readings(cpu_s, rss / MIB, peak / MIB, files)


def reset_peak(pid: int) -> None:
    """Make the peaks start from what is resident now (proc(5), clear_refs)."""
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def loop_ns(pid: int) -> int:
    """Return the CPU nanoseconds of a process's main thread, which runs the event loop."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])

"""The use of cores and memory by a process and the processes that it has started, from Linux's /proc (proc(5))."""

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_TIMES, _PAGES = slice(11, 15), 21
"""Fields of /proc/PID/stat after the name: the times of the process and of its ended children; resident pages."""
_LOOK_S = 5.0
"""Interval of looking for new descendants: worker processes start and end seldom."""


class ProcessFamily:
    """Reads the use of this process and its descendants. Without /proc the CPU time is that of this process alone."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._pids: list[int] = []
        self._looked_s = -_LOOK_S

    def read(self) -> tuple[float, int]:
        """Return CPU seconds, also of ended descendants, and resident bytes."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._pids = list(self._family(os.getpid()))
        cpu_s, resident_bytes = 0.0, 0
        for pid in self._pids:
            try:
                fields = (self._proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
                cpu_s += sum(map(int, fields[_TIMES])) * _TICK_S
                resident_bytes += int(fields[_PAGES]) * mmap.PAGESIZE
            except (OSError, IndexError, ValueError):
                continue  # It has ended meanwhile; then its parent has its time.
        return cpu_s or time.process_time(), resident_bytes

    def _family(self, pid: int) -> Iterator[int]:
        """Yield a process and its descendants; each thread has its own children."""
        yield pid
        for children in (self._proc / str(pid) / "task").glob("*/children"):
            try:
                found = children.read_text(encoding="ascii").split()
            except OSError:
                continue  # the thread has ended
            for child in found:
                yield from self._family(int(child))

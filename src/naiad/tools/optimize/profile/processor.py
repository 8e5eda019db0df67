"""Use of the cores: CPU time of a server, of this program with all its processes, and of everything else.

On a machine that is not idle, the time of a request says more about other programs than about the model. CPU time is
what the request itself costs, beside any other program. It is read from /proc; without it there are no figures.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_IDLE = (3, 4)
"""Fields of `cpu` in /proc/stat: idle and waiting for input or output."""
_GUEST = 8
"""Fields from here on are parts of others."""


@dataclass(frozen=True, slots=True)
class ProcessorReading:
    """A moment: the CPU time of all programs and of this one with its descendants."""

    at_s: float
    busy_s: float
    own_s: float

    def others_since(self, before: "ProcessorReading") -> float:
        """Return how many cores other programs have used on average; 0 where there is no /proc."""
        passed_s = self.at_s - before.at_s
        if passed_s <= 0:
            return 0.0
        return max(0.0, (self.busy_s - before.busy_s - (self.own_s - before.own_s)) / passed_s)


def read_processor(proc: Path = _PROC) -> ProcessorReading:
    """Return a reading of now."""
    return ProcessorReading(time.monotonic(), _busy_s(proc), _tree_s(os.getpid(), proc))


def tree_cpu_s(pid: int, proc: Path = _PROC) -> float:
    """Return the CPU time of a process and its descendants, with that of its children that have ended."""
    return _tree_s(pid, proc)


def _busy_s(proc: Path) -> float:
    try:
        line = (proc / "stat").read_text(encoding="ascii").splitlines()[0]
    except (OSError, IndexError):
        return 0.0
    fields = [int(each) for each in line.split()[1:]][:_GUEST]
    return sum(value for place, value in enumerate(fields) if place not in _IDLE) * _TICK_S


def _tree_s(root: int, proc: Path) -> float:
    times: dict[int, float] = {}
    parents: dict[int, int] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # It has ended meanwhile.
            continue
        parents[int(folder.name)] = int(fields[1])
        # User and system time, and the times of the children that have ended and were waited for.
        times[int(folder.name)] = sum(int(each) for each in fields[11:15]) * _TICK_S
    return sum(value for pid, value in times.items() if _is_below(pid, root, parents))


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    seen: set[int] = set()
    while pid != root and pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid]
    return pid == root

"""What a server costs: CPU time and memory over its process and everything that it started."""

from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 1024 * 1024


@dataclass(frozen=True)
class Memory:
    """Resident memory of a process tree in bytes."""

    rss: int
    """Sum over the processes: pages that several of them share count once for each."""
    pss: int
    """The same with shared pages divided among those that share them."""
    own: int
    """The part of `pss` that is no file: programs and libraries, which other programs may share, do not count."""


def processes(pid: int) -> list[psutil.Process]:
    """Return the process and all its descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


class CpuMeter:
    """CPU seconds, user and system, that a process tree has used since the meter was made.

    The kernel counts exactly and shows steps of 10 ms, so what is measured has to take seconds.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._start = self._used()

    def _used(self) -> dict[int, float]:
        used = {}
        for process in processes(self._pid):
            times = process.cpu_times()
            used[process.pid] = times.user + times.system
        return used

    def seconds_before(self) -> float:
        """Return the CPU seconds that had been used when the meter was made."""
        return sum(self._start.values())

    def seconds(self) -> float:
        """Return the CPU seconds since then. Raises RuntimeError when a process has ended: its time would be lost."""
        now = self._used()
        lost = self._start.keys() - now.keys()
        if lost:
            raise RuntimeError(f"processes {sorted(lost)} of the server ended while it was measured")
        return sum(used - self._start.get(pid, 0.0) for pid, used in now.items())


def memory(pid: int) -> Memory:
    """Return what the tree holds at this moment."""
    infos = [process.memory_full_info() for process in processes(pid)]
    own = sum(_own_bytes(process.pid) for process in processes(pid))
    return Memory(sum(info.rss for info in infos), sum(info.pss for info in infos), own)


def _own_bytes(pid: int) -> int:
    """Return the anonymous and shared memory of a process (proc(5), smaps_rollup)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))

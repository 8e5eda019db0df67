"""What processes and the machine use of cores and memory, from Linux's /proc (proc(5)); elsewhere all is 0.

Not psutil: the tools measure with the base installation too, a tree of processes is one read of a file each here, and
psutil does not know the CPU time of a main thread in less than ticks of 10 ms.
"""

import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PARENT, _SESSION, _TIMES, _PAGES = 1, 3, slice(11, 15), 21
"""Fields of /proc/PID/stat after the name; the state is field 0. The times are of the process itself and of its
children that have ended, such as the worker of an earlier model, which would be missing otherwise."""
_IDLE, _WAITING = 3, 4
"""Fields of the line `cpu` of /proc/stat that count no work: idle and iowait."""
_GUEST = 8
"""The first field of that line that is part of an earlier one."""


@dataclass(frozen=True, slots=True)
class ProcessCounters:
    """What a process has used up to a moment."""

    parent: int
    session: int
    cpu_s: float
    """With that of its children that have ended."""
    resident_bytes: int
    """Pages that processes share count for each of them."""


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """The time of all cores up to a moment."""

    busy_s: float = 0.0
    """What all programs have used, and what a hypervisor withheld."""
    idle_s: float = 0.0
    """Without the time of waiting for input or output."""


def read_processes(proc: Path = PROC) -> dict[int, ProcessCounters]:
    """Return the usage of every process by its id."""
    try:
        names = [name for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return {}
    found: dict[int, ProcessCounters] = {}
    for name in names:
        try:
            # Some hundred files, twenty times a second: a `Path` and a text would take longer than the kernel.
            with open(f"{proc}/{name}/stat", "rb", buffering=0) as file:
                fields = file.read().rpartition(b")")[2].split()
            found[int(name)] = _usage(fields)
        except (OSError, IndexError):
            continue  # It has ended meanwhile.
    return found


def _usage(fields: Sequence[bytes]) -> ProcessCounters:
    return ProcessCounters(
        int(fields[_PARENT]),
        int(fields[_SESSION]),
        sum(int(text) for text in fields[_TIMES]) * _TICK_S,
        int(fields[_PAGES]) * mmap.PAGESIZE,
    )


def family(pid: int, processes: Mapping[int, ProcessCounters]) -> list[int]:
    """Return a process and its descendants that are among `processes`."""
    children: dict[int, list[int]] = {}
    for each, usage in processes.items():
        children.setdefault(usage.parent, []).append(each)
    found = [pid] if pid in processes else []
    for each in found:
        found += children.get(each, ())
    return found


def cpu_s(pids: Iterable[int], processes: Mapping[int, ProcessCounters]) -> float:
    """Return the CPU time of some of `processes` together."""
    return sum(processes[each].cpu_s for each in pids)


def session_bytes(session: int, proc: Path = PROC) -> int:
    """Return the resident memory of all processes of a session."""
    return sum(each.resident_bytes for each in read_processes(proc).values() if each.session == session)


def resident_mib(pid: int, proc: Path = PROC) -> float:
    """Return the resident memory of one process; 0 when it has ended."""
    try:
        pages = int((proc / str(pid) / "statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * mmap.PAGESIZE / 2**20


def main_thread_s(pid: int, proc: Path = PROC) -> float:
    """Return the CPU time of the main thread of a process; 0 where the kernel does not count it."""
    try:
        return int((proc / str(pid) / "task" / str(pid) / "schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def read_machine(proc: Path = PROC) -> MachineUsage:
    """Return the time of all cores since the start of the machine."""
    try:
        fields = (proc / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        ticks = [int(each) for each in fields[:_GUEST]]
        busy = sum(value for place, value in enumerate(ticks) if place not in (_IDLE, _WAITING))
        return MachineUsage(busy * _TICK_S, ticks[_IDLE] * _TICK_S)
    except (OSError, ValueError, IndexError):
        return MachineUsage()

"""CPU and memory of a server on this machine and of its child processes, and the CPU of other programs.

Both come from Linux's /proc.
"""

import math
import mmap
import os
import statistics
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from naiad.tools.measure.result import Interval

_INTERVAL_S = 0.2
_PPID, _TIMES, _RSS = 1, slice(11, 15), 21
"""Fields of /proc/PID/stat after the name (proc(5)); the state is field 0. The times are of the process itself and of
its children that have ended, such as the worker of an earlier variant, which would be missing otherwise."""
_IDLE = (3, 4)
"""Fields of the line `cpu` of /proc/stat that count no work: idle and iowait."""
_GUEST = 8
"""The first field of that line that is part of an earlier one."""
_Z95 = 1.96


@dataclass(frozen=True, slots=True)
class MeasuredUsage:
    """What the processes have used at a moment."""

    at_s: float
    cpu_s: float
    resident_bytes: int
    """Pages that processes share count for each of them."""
    foreign_s: float = 0.0
    """CPU time of the machine that neither these processes nor this one and its descendants have used."""
    main_s: float = 0.0
    """CPU time of the main thread of the first process; 0 where the kernel does not count it."""


def read_usage(pid: int, proc: Path = Path("/proc")) -> MeasuredUsage | None:
    """Return the usage of a process and its descendants; None without /proc, or when the process has ended."""
    rows = _rows(proc)
    if pid not in rows:
        return None
    children: dict[int, list[int]] = {}
    for each, fields in rows.items():
        children.setdefault(int(fields[_PPID]), []).append(each)
    family = _family(pid, children)
    known = {*family, *_family(os.getpid(), children)}.intersection(rows)
    pages = sum(int(rows[each][_RSS]) for each in family)
    return MeasuredUsage(
        time.monotonic(),
        _cpu_s(rows, family),
        pages * mmap.PAGESIZE,
        _machine_s(proc) - _cpu_s(rows, known),
        _main_thread_s(pid, proc),
    )


def _family(pid: int, children: Mapping[int, Sequence[int]]) -> list[int]:
    """Return a process and its descendants."""
    family = [pid]
    for each in family:
        family += children.get(each, ())
    return family


def _cpu_s(rows: Mapping[int, Sequence[str]], pids: Iterable[int]) -> float:
    ticks = sum(int(text) for each in pids for text in rows[each][_TIMES])
    return ticks / os.sysconf("SC_CLK_TCK")


def _main_thread_s(pid: int, proc: Path) -> float:
    """Return the CPU time of a main thread, which `stat` would give in ticks of 10 ms."""
    try:
        return int((proc / str(pid) / "task" / str(pid) / "schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _machine_s(proc: Path) -> float:
    """Return the CPU time that all programs have used, and that a hypervisor withheld; 0 without /proc/stat."""
    try:
        fields = (proc / "stat").read_text().split("\n", 1)[0].split()[1:]
        ticks = [int(each) for index, each in enumerate(fields[:_GUEST]) if index not in _IDLE]
    except (OSError, ValueError):
        return 0.0
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def _rows(proc: Path) -> Mapping[int, Sequence[str]]:
    rows: dict[int, Sequence[str]] = {}
    try:
        names = [name for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return rows
    for name in names:
        try:
            text = (proc / name / "stat").read_text(errors="replace")
        except OSError:
            continue  # the process has ended meanwhile
        rows[int(name)] = text[text.rindex(")") + 2 :].split()
    return rows


class ResourceMeter:
    """Reads the usage from time to time, in a thread, so that the load generator is not disturbed."""

    def __init__(self, pid: int) -> None:
        """A `pid` of 0 measures nothing."""
        self._pid = pid
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resources", daemon=True)
        self.usages: list[MeasuredUsage] = []

    def start(self) -> None:
        """Begin to read."""
        if self._pid:
            self._thread.start()

    def stop(self) -> None:
        """Read no more."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            usage = read_usage(self._pid)
            if usage is None:
                return
            self.usages.append(usage)
            self._is_over.wait(_INTERVAL_S)

    def foreign_cores(self) -> float:
        """Return the cores that other programs have used on the mean; 0 when too little was read."""
        usages = list(self.usages)
        if len(usages) < 2:
            return 0.0
        first, last = usages[0], usages[-1]
        return max(0.0, (last.foreign_s - first.foreign_s) / (last.at_s - first.at_s))

    def loop_cores(self) -> float:
        """Return the cores that the main thread has used on the mean; 0 when too little was read."""
        usages = list(self.usages)[1:]  # The first interval has the start of the load.
        if len(usages) < 2:
            return 0.0
        first, last = usages[0], usages[-1]
        return (last.main_s - first.main_s) / (last.at_s - first.at_s)

    def metrics(self) -> dict[str, Interval]:
        """Return cores in use and the largest memory (MB); empty when too little was read."""
        usages = list(self.usages)
        if len(usages) < 3:
            return {}
        # The first interval has the start of the load.
        rates = [(after.cpu_s - before.cpu_s) / (after.at_s - before.at_s) for before, after in pairwise(usages[1:])]
        largest = max(each.resident_bytes for each in usages) / 1e6
        return {"cpu_utilization": mean_interval(rates), "cpu_used_ram": Interval(largest, largest, largest)}


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean and its 95 % interval."""
    mean = statistics.fmean(values)
    half = _Z95 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Interval(mean, mean - half, mean + half)

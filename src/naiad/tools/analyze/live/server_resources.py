"""CPU and memory of a server on this machine and of its child processes, and the CPU of other programs."""

import math
import os
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from naiad.tools.measure.result import Interval
from naiad.tools.process.usage import PROC, cpu_s, family, main_thread_s, read_machine, read_processes

_INTERVAL_S = 0.2
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


def read_usage(pid: int, proc: Path = PROC) -> MeasuredUsage | None:
    """Return the usage of a process and its descendants; None without /proc, or when the process has ended."""
    processes = read_processes(proc)
    if pid not in processes:
        return None
    measured = family(pid, processes)
    known = {*measured, *family(os.getpid(), processes)}
    return MeasuredUsage(
        time.monotonic(),
        cpu_s(measured, processes),
        sum(processes[each].resident_bytes for each in measured),
        read_machine(proc).busy_s - cpu_s(known, processes),
        main_thread_s(pid, proc),
    )


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

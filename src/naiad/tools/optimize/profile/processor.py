"""Use of the cores: CPU time of a server, of this program with all its processes, and of everything else.

On a machine that is not idle, the time of a request says more about other programs than about the model. CPU time is
what the request itself costs, beside any other program.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from naiad.tools.process.usage import PROC, cpu_s, family, read_machine, read_processes


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


def read_processor(proc: Path = PROC) -> ProcessorReading:
    """Return a reading of now."""
    return ProcessorReading(time.monotonic(), read_machine(proc).busy_s, tree_cpu_s(os.getpid(), proc))


def tree_cpu_s(pid: int, proc: Path = PROC) -> float:
    """Return the CPU time of a process and its descendants, with that of its children that have ended."""
    processes = read_processes(proc)
    return cpu_s(family(pid, processes), processes)

"""What the models on demand have of each GPU's memory: the growth of this process during loads, and their workers.

NVML reports the memory of each process, and then this is exact. In a container it may name none, or the ids of the
host. There the growth of all used memory counts, of models with instances on that GPU: loads are measured one after
the other. Which of both it is shows the first load that takes memory of a GPU.
"""

import enum
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from naiad.repository.control.on_demand.memory.budgets import gpu_budget
from naiad.telemetry.metrics.gpus import GpuMemory, NvmlError

_log = logging.getLogger(__name__)
_LEAST_BYTES = 1 << 20
"""Less growth of a GPU's memory shows nothing: other processes come and go."""
_MOST_ANCESTORS = 64

DeviceReadings = Mapping[str, GpuMemory]
"""By the names of budgets; empty where they could not be read."""


class GpuReader(Protocol):
    """Reads the memory of GPUs, by their numbers."""

    def read(self) -> Mapping[int, GpuMemory]:
        """Return the memory of each GPU now. Raises NvmlError."""


class _Way(enum.Enum):
    """How memory is measured."""

    UNKNOWN = enum.auto()
    """No load has taken memory of a GPU yet."""
    PROCESSES = enum.auto()
    USED = enum.auto()


class DeviceMeter:
    """Knows what readings mean for this process and its workers. Its methods may be called by any thread."""

    def __init__(
        self,
        reader: GpuReader | None = None,
        budgets: Collection[str] = (),
        *,
        process_id: int | None = None,
        parent_of: Callable[[int], int] | None = None,
    ) -> None:
        """`reader`: None where no GPU has a budget; `budgets`: the names of those that have one."""
        self._reader = reader
        self.budgets = frozenset(budgets)
        self._process_id = os.getpid() if process_id is None else process_id
        self._parent_of = parent_of or parent_process_id
        self._way = _Way.UNKNOWN
        self._has_failed = False

    @property
    def names_processes(self) -> bool:
        """Whether NVML reports what each process has."""
        return self._way is _Way.PROCESSES

    @property
    def has_learned(self) -> bool:
        """Whether a load has taken memory of a GPU yet."""
        return self._way is not _Way.UNKNOWN

    def read(self) -> DeviceReadings:
        """Return the memory of each GPU that has a budget, now; takes milliseconds."""
        if self._reader is None:
            return {}
        try:
            found = {gpu_budget(number): memory for number, memory in self._reader.read().items()}
        except NvmlError as error:
            if not self._has_failed:
                _log.warning("the memory of GPUs cannot be read, models count there as their files: %s", error)
            self._has_failed = True
            return {}
        self._has_failed = False
        return {budget: memory for budget, memory in found.items() if budget in self.budgets}

    def own_bytes(self, memory: GpuMemory) -> int:
        """Return what this process has of a GPU."""
        return memory.process_bytes.get(self._process_id, 0)

    def counted_bytes(self, memory: GpuMemory) -> int:
        """Return what of a GPU's memory counts as this process's, as its growth does."""
        return memory.used_bytes if self._way is _Way.USED else self.own_bytes(memory)

    def workers_bytes(self, memory: GpuMemory, workers: Collection[int]) -> int:
        """Return what worker processes have of a GPU, with the processes that they have started."""
        if self._way is not _Way.PROCESSES or not workers:
            return 0
        return sum(
            size_bytes
            for process_id, size_bytes in memory.process_bytes.items()
            if self._is_below(process_id, frozenset(workers))
        )

    def _is_below(self, process_id: int, workers: Collection[int]) -> bool:
        for _ in range(_MOST_ANCESTORS):
            if process_id in workers:
                return True
            if process_id <= 1 or process_id == self._process_id:
                return False
            process_id = self._parent_of(process_id)
        return False

    def learn(self, begin: DeviceReadings, end: DeviceReadings, workers: Iterable[int]) -> None:
        """Find out with the first load that takes memory whether NVML reports each process."""
        known = {self._process_id, *workers}
        if any(not known.isdisjoint(memory.process_bytes) for memory in end.values()):
            self._way = _Way.PROCESSES
        elif self._way is _Way.UNKNOWN and any(
            memory.used_bytes - begin[budget].used_bytes >= _LEAST_BYTES
            for budget, memory in end.items()
            if budget in begin
        ):
            self._way = _Way.USED
            _log.info("NVML does not report the memory of this process: the growth of all used memory counts")

    def growth(self, before: GpuMemory, after: GpuMemory) -> int:
        """Return what a load has added: to this process, or to the GPU where no processes are reported."""
        return max(0, self.counted_bytes(after) - self.counted_bytes(before))


def parent_process_id(process_id: int, proc: Path = Path("/proc")) -> int:
    """Return the parent of a process; 0 for one that has ended."""
    try:
        # The name in parentheses may contain anything; the state and the parent follow it.
        return int((proc / str(process_id) / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0

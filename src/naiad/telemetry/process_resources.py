"""Resource use of the machine and this process, from Linux's /proc, and the return of freed memory to the system."""

import ctypes
import functools
import logging
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)
_STATM_BYTES = 256
"""More than the seven numbers of `/proc/self/statm`."""


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """The resources that this process uses."""

    resident_bytes: int
    open_fds: int
    threads: int


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """The memory of the machine."""

    total_bytes: int
    used_bytes: int


def read_process(proc: Path = Path("/proc")) -> ProcessUsage | None:
    """Return the resources that this process uses, None without /proc."""
    try:
        status = _fields((proc / "self/status").read_text())
        open_fds = len(os.listdir(proc / "self/fd"))
    except OSError:
        return None
    return ProcessUsage(status.get("VmRSS", 0) * 1024, open_fds, status.get("Threads", 0))


def read_resident_bytes(proc: Path = Path("/proc")) -> int:
    """Return the resident memory of this process, 0 without /proc; reads one small file."""
    # Without the buffers and the decoder of a text file: an idle server asks once a second.
    try:
        descriptor = os.open(proc / "self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(os.read(descriptor, _STATM_BYTES).split()[1]) * mmap.PAGESIZE
    finally:
        os.close(descriptor)


def read_memory(proc: Path = Path("/proc")) -> MachineMemory | None:
    """Return the machine's memory, None without /proc."""
    try:
        fields = _fields((proc / "meminfo").read_text())
    except OSError:
        return None
    total = fields.get("MemTotal", 0) * 1024
    return MachineMemory(total, total - fields.get("MemAvailable", 0) * 1024)


def _fields(text: str) -> dict[str, int]:
    """Return the numeric fields of `Name:   123 kB` lines."""
    fields: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            fields[name] = int(words[0])
    return fields


class CpuMeter:
    """The busy share of the machine's processor time since the last reading."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._stat = proc / "stat"
        self._busy = 0
        self._total = 0
        self._utilization = 0.0
        self.read()

    def read(self) -> float | None:
        """Return the busy share, 0.0 to 1.0; None without /proc."""
        try:
            first = self._stat.read_text().partition("\n")[0]
        except OSError:
            return None
        # user nice system idle iowait irq softirq steal; guest times are part of user and nice.
        ticks = [int(word) for word in first.split()[1:9]]
        total = sum(ticks)
        busy = total - sum(ticks[3:5])
        if total > self._total:
            self._utilization = (busy - self._busy) / (total - self._total)
            self._busy, self._total = busy, total
        return self._utilization


def trim_heap() -> None:
    """Release the freed memory of the C library; for threads that load and unload, as it may take a while.

    glibc keeps freed memory in the arena of the allocating thread, and each load has threads of its own: a model of
    200 MB that was loaded and unloaded eight times left 2.7 GB. Without freed memory the call takes 50 us, with 35 MB
    in pieces 45 ms; it does not hold the GIL.
    """
    malloc_trim = _find_malloc_trim()
    if malloc_trim is not None:
        malloc_trim(0)


@functools.cache
def _find_malloc_trim() -> Callable[[int], object] | None:
    try:
        found: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        _log.debug("the C library has no malloc_trim; it decides itself what freed memory goes back to the system")
        return None
    return found

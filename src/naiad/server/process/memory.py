"""Memory limits of the process: the budget for request bodies, and the return of freed memory to the system.

The C library keeps freed memory below any block that is still in use. Ten streams with clients that did not read left
50 MB of 64 KB blocks in the heap: later responses use them again, but other processes cannot. Returning them walks
the heap under its lock, 5 ms for these 50 MB, so it is done rarely, and only while the server is calm.
"""

from dataclasses import replace
from pathlib import Path

from naiad.backend.cores import control_groups
from naiad.core.limits.request_limits import RequestBudget
from naiad.options.options import OverloadOptions, ServerOptions
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.process_resources import read_memory, read_resident_bytes

_MIN_BYTES = 16 << 20
"""Smaller amounts above the last low stay in the heap."""
_STEADY_BYTES = 1 << 20
"""Memory is stable if it changes by less than this between two checks."""
_CALM_SHARE = 0.25
"""The server is calm while it uses less than this share of one core."""
_MIN_INTERVAL_NS = 3_000_000_000


class FreedMemory:
    """Decides when to return freed memory to the system. Called once a second; O(1)."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._low_bytes = 0
        """The lowest resident size since memory was returned; 0 before the first check."""
        self._resident_bytes = 0
        self._now_ns = self._cpu_ns = 0
        self._returned_ns = 0

    def is_due(self, now_ns: int, cpu_ns: int) -> bool:
        """Return whether to return memory now. `cpu_ns` is the processor time that the process has used."""
        resident_bytes = read_resident_bytes(self._proc)
        is_calm = cpu_ns - self._cpu_ns < _CALM_SHARE * (now_ns - self._now_ns)
        is_steady = abs(resident_bytes - self._resident_bytes) < _STEADY_BYTES
        self._now_ns, self._cpu_ns, self._resident_bytes = now_ns, cpu_ns, resident_bytes
        self._low_bytes = min(self._low_bytes or resident_bytes, resident_bytes)
        if resident_bytes - self._low_bytes < _MIN_BYTES or now_ns - self._returned_ns < _MIN_INTERVAL_NS:
            return False
        return is_calm and is_steady

    def note_returned(self, now_ns: int) -> None:
        """Note that freed memory was returned: the resident memory is now in use."""
        self._returned_ns = now_ns
        self._low_bytes = self._resident_bytes = read_resident_bytes(self._proc)


_SHARE = 4
"""Bodies get one part in this many: models and their work need the rest, and a tensor may be copied once or twice."""
_FLOOR_BYTES = 256 * 1024 * 1024
_FALLBACK_BYTES = 1024 * 1024 * 1024
"""Used where the system does not report the amount of memory."""


def open_budget(options: ServerOptions, registry: Registry) -> RequestBudget:
    """Return the budget of this server process, with its metrics."""
    budget = RequestBudget(options.max_request_bytes or default_limit_bytes(options.process_count))
    text = "Bytes of request bodies that are received or wait for their responses"
    registry.add_callback("naiad_request_bytes_in_flight", "gauge", text, lambda: budget.used_bytes)
    text = "Most bytes of request bodies in flight"
    registry.add_callback("naiad_request_bytes_limit", "gauge", text, lambda: budget.limit_bytes)
    text = "Requests that were rejected because their bytes did not fit"
    registry.add_callback("naiad_request_bytes_rejections_total", "counter", text, lambda: budget.rejected_count)
    return budget


def default_limit_bytes(process_count: int, root: Path = Path("/")) -> int:
    """Return the memory for request bodies in one of `process_count` server processes."""
    return max(_FLOOR_BYTES, usable_memory_bytes(root) // _SHARE // process_count)


def overload_options(options: OverloadOptions, budget: RequestBudget) -> OverloadOptions:
    """Return the options with their byte limits: one overloaded model must leave room in the budget for others."""
    return replace(options, max_bytes=options.max_bytes or budget.limit_bytes // 2)


def usable_memory_bytes(root: Path = Path("/")) -> int:
    """Return the smallest of the machine's memory and the limits of the process's control groups."""
    machine = read_memory(root / "proc")
    limits = [] if machine is None else [machine.total_bytes]
    for group, is_v2 in control_groups("memory", root):
        text = _read(group / ("memory.max" if is_v2 else "memory.limit_in_bytes"))
        if text.isdigit() and int(text):  # "max" is no limit
            limits.append(int(text))
    return min(limits, default=_SHARE * _FALLBACK_BYTES)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

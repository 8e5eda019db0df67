"""How much memory the bodies of requests may take, and what they take, as metrics."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from naiad.backend.control_groups import control_groups
from naiad.config.options import OverloadOptions, ServerOptions
from naiad.core.request_budget import RequestBudget
from naiad.telemetry.exposition import format_family
from naiad.telemetry.metrics import Registry
from naiad.telemetry.process import read_memory

_SHARE = 4
"""Bodies get one part in so many: models and their work need the rest, and a tensor may be copied once or twice."""
_FLOOR_BYTES = 256 * 1024 * 1024
_FALLBACK_BYTES = 1024 * 1024 * 1024
"""Where the system does not say how much memory there is."""

_FAMILIES: tuple[tuple[str, str, str, Callable[[RequestBudget], int]], ...] = (
    (
        "naiad_request_bytes_in_flight",
        "gauge",
        "Bytes of request bodies that are received or wait for their answers",
        lambda budget: budget.used_bytes,
    ),
    (
        "naiad_request_bytes_limit",
        "gauge",
        "Most bytes of request bodies in flight",
        lambda budget: budget.limit_bytes,
    ),
    (
        "naiad_request_bytes_rejections_total",
        "counter",
        "Requests that were refused because their bytes did not fit",
        lambda budget: budget.rejected_count,
    ),
)


def open_budget(options: ServerOptions, registry: Registry) -> RequestBudget:
    """Return the budget of this server process, with metrics of it."""
    budget = RequestBudget(options.max_request_bytes or default_limit_bytes(options.process_count))
    for name, kind, text, read in _FAMILIES:
        registry.add_rendered(name, _renderer(budget, name, kind, text, read))
    return budget


def default_limit_bytes(process_count: int, root: Path = Path("/")) -> int:
    """Return the part of the memory that the bodies in one of `process_count` server processes may take."""
    return max(_FLOOR_BYTES, usable_memory_bytes(root) // _SHARE // process_count)


def overload_options(options: OverloadOptions, budget: RequestBudget) -> OverloadOptions:
    """Return the options with their bytes: one overloaded model must leave room in the budget for others."""
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


def _renderer(
    budget: RequestBudget, name: str, kind: str, text: str, read: Callable[[RequestBudget], int]
) -> Callable[[], str]:
    return lambda: format_family(name, kind, text, [f"{name} {read(budget)}"])

"""The machine and the versions that figures depend on."""

import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from naiad.core.version import __version__


def describe(packages: Mapping[str, str], wanted: Iterable[str] = ()) -> dict[str, str]:
    """Return processor, cores, memory, system and versions; of `packages` by name, the `wanted` ones."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
        "memory_mib": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "naiad": __version__,
        **{name: packages[name] for name in sorted(set(wanted)) if name in packages},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

"""The cores of this process: its affinity, and the quota of its control groups."""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
    """Yield the directories of the process's group for a controller, of those above it, and whether they are v2.

    `/proc/self/cgroup` has lines `hierarchy-id:controllers:path`; v2 has no controllers (cgroups(7)). `root` is where
    `proc` and `sys` are looked for.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    base = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts, is_v2 = [base, base / "unified"], True
        elif controller in controllers.split(","):
            mounts, is_v2 = [base / controllers, base / controller], False
        else:
            continue
        # Inside a container the path may be that of the host while the container's group is mounted at the top;
        # directories that do not exist have no limits to read.
        inner = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            for part in (inner, *inner.parents):
                yield mount / part, is_v2


_AWAKE_QUOTA = 3.0
"""A quota from this on leaves a core when the event loop and a worker wait awake."""

_sharing_processes = 1


def share_cores(process_count: int) -> None:
    """Note the number of processes of this server, this one included, that share the cores equally."""
    global _sharing_processes  # noqa: PLW0603 - a fact about the process, as its cores are
    _sharing_processes = process_count


def usable_cores(root: Path = Path("/")) -> int:
    """Return the smaller of the CPUs in the affinity mask and the CPU quota of the control groups, at least 1.

    Of these a process gets its share, see `share_cores`. `root` is where `proc` and `sys` are looked for.
    """
    allowed = allowed_cpu_count()
    quota = cgroup_quota(root)
    cores = allowed if quota is None else min(allowed, math.ceil(quota))
    return max(1, cores // _sharing_processes)


def is_charged_for_waiting(root: Path = Path("/")) -> bool:
    """Return whether a CPU quota makes busy polling expensive.

    A control group is charged for that time as for any other, and stops as a whole when its quota is used up.
    """
    quota = cgroup_quota(root)
    return quota is not None and quota < _AWAKE_QUOTA


def allowed_cpu_count() -> int:
    """Return the number of CPUs that this process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """Return the CPUs' worth of time that the control groups of this process grant; None for no limit.

    Limits of the groups above apply too, so the smallest counts.
    """
    groups = control_groups("cpu", root)
    limits = [limit for group, is_v2 in groups if (limit := _read_v2(group) if is_v2 else _read_v1(group))]
    return min(limits, default=None)


def _read_v2(group: Path) -> float | None:
    """Read `cpu.max`: `<quota or max> <period>` in microseconds."""
    text = _read(group / "cpu.max").split()
    if len(text) != 2 or text[0] == "max":
        return None
    return int(text[0]) / int(text[1])


def _read_v1(group: Path) -> float | None:
    """Read `cpu.cfs_quota_us`, -1 for no limit, and `cpu.cfs_period_us`."""
    quota = _read(group / "cpu.cfs_quota_us")
    period = _read(group / "cpu.cfs_period_us")
    if not quota or not period or int(quota) <= 0:
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

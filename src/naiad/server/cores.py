"""How many cores this process may use."""

import math
import os
from pathlib import Path


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the cores that affinity and the cgroup's CPU quota leave to this process, at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    quota = _quota_v2(cgroup) or _quota_v1(cgroup)
    # A quota of 1.5 cores lets two threads run most of the time.
    return max(1, min(cores, math.ceil(quota)) if quota else cores)


def _quota_v2(cgroup: Path) -> float:
    """Return the quota of cgroup v2 in cores, 0 for none; `cpu.max` is "max 100000" or "150000 100000"."""
    try:
        quota, _, period = (cgroup / "cpu.max").read_text().partition(" ")
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0


def _quota_v1(cgroup: Path) -> float:
    """Return the quota of cgroup v1 in cores, 0 for none."""
    try:
        quota = int((cgroup / "cpu/cpu.cfs_quota_us").read_text())
        period = int((cgroup / "cpu/cpu.cfs_period_us").read_text())
        return max(0.0, quota / period)
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0

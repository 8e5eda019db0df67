"""The cores and GPUs of this process: its affinity, the quota of its control groups, its host policies.

A host policy names the cores of an instance. Threads and processes run on the cores of the thread that starts them.
So a model that is opened and whose instances are made by a bound thread has its pools, its workers and what they
start on the same cores, and its memory near them: Linux puts memory where it is first touched.
"""

import contextlib
import functools
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from naiad.core.errors import InferError, internal, invalid_argument, unsupported
from naiad.options.host_policy import HostPolicy, format_cores, parse_cores
from naiad.telemetry.metrics.gpus import NvmlError, NvmlPackageError, gpus_of_driver, load_nvml, visible

_log = logging.getLogger(__name__)

_AWAKE_QUOTA = 3.0
"""A quota from this on leaves a core when the event loop and a worker wait awake."""
_NODES = "sys/devices/system/node"

_sharing_processes = 1


@functools.cache
def gpu_count() -> int:
    """Return the number of NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves; 0 on a machine without their driver."""
    try:
        nvml = load_nvml()
        gpus = nvml.gpus()
        nvml.close()
    except NvmlPackageError:
        gpus = gpus_of_driver()
    except NvmlError as error:
        _log.debug("no GPUs: %s", error)
        return 0
    return len(visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES")))


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


# --- host policies --------------------------------------------------------------------------------------------------


def resolve_policies(policies: Mapping[str, HostPolicy], root: Path = Path("/")) -> dict[str, frozenset[int]]:
    """Return the cores of each policy, all of which this process may use. `root` is where `sys` is looked for.

    Raises InferError for cores and nodes that are not there, and on a platform that cannot bind.
    """
    if policies and not hasattr(os, "sched_setaffinity"):
        name, policy = next(iter(policies.items()))
        raise unsupported(
            f"--host-policy={name},{policy}: this platform cannot bind threads to cores, only Linux can; leave the "
            "flag out"
        )
    return {name: _resolve(name, policy, root) for name, policy in policies.items()}


def _resolve(name: str, policy: HostPolicy, root: Path) -> frozenset[int]:
    flag = f"--host-policy={name},{policy}"
    allowed = frozenset(os.sched_getaffinity(0))
    if missing := policy.cores - allowed:
        raise invalid_argument(
            f"{flag}: this process may not use {_words(missing)}; it may use {_words(allowed)} (as the machine, the "
            "container or taskset allow)"
        )
    if policy.numa_node is None:
        return policy.cores
    node = _node_cores(flag, policy.numa_node, root)
    usable = node & (policy.cores or allowed)
    if not usable:
        wanted = (
            f"'cpu-cores' {format_cores(policy.cores)}" if policy.cores else f"what it may use, {_words(allowed)}"
        )
        raise invalid_argument(
            f"{flag}: node {policy.numa_node} has {_words(node)}, none of them among {wanted}; name cores of "
            "the node, or another node"
        )
    return usable


def _node_cores(flag: str, node: int, root: Path) -> frozenset[int]:
    nodes = root / _NODES
    try:
        return parse_cores((nodes / f"node{node}" / "cpulist").read_text().strip())
    except OSError:
        known = sorted(int(path.name[4:]) for path in nodes.glob("node*") if path.name[4:].isdigit())
        there = ", ".join(map(str, known)) or "none that the kernel reports"
        raise invalid_argument(f"{flag}: there is no NUMA node {node} on this machine; there are: {there}") from None
    except ValueError:
        raise invalid_argument(f"{flag}: NUMA node {node} has memory only; use a node with cores") from None


def _words(cores: frozenset[int]) -> str:
    return f"{'core' if len(cores) == 1 else 'cores'} {format_cores(cores) or 'none'}"


@contextlib.contextmanager
def running_on(cores: frozenset[int]) -> Iterator[None]:
    """Have the calling thread, and what it starts meanwhile, run on these cores alone; none means no change.

    Raises InferError when none of them can be used any more.
    """
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    _bind(cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def bind_thread(cores: frozenset[int]) -> None:
    """Have the calling thread run on these cores alone from now on; none means no change."""
    if not cores:
        return
    try:
        _bind(cores)
    except InferError as error:
        # It was possible at the start. A thread that is not bound still serves.
        _log.warning("an instance is not bound: %s", error.message)


def _bind(cores: frozenset[int]) -> None:
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise internal(f"{_words(cores)} of its host policy cannot be used: {error.strerror}") from error

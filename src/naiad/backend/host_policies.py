"""Host policies at work: which cores of this machine each one means, and threads that run on those alone.

Threads and processes run on the cores of the thread that starts them. So a model that is opened and whose
instances are made by a bound thread has its pools, its workers and what they start on the same cores, and its memory
near them: Linux puts memory where it is first touched.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from naiad.core.errors import InferError, internal, invalid_argument, unsupported
from naiad.options.host_policy import HostPolicy, format_cores, parse_cores

_log = logging.getLogger(__name__)

_NODES = "sys/devices/system/node"


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

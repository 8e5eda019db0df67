"""Host policies: the cores in `--host-policy` for instances, and the policy of each instance."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from naiad.config.model_config_pb2 import ModelInstanceGroup

_CORES = "cpu-cores"
_NODE = "numa-node"
_FORM = f"write <name>,{_CORES}=<first>-<last>[,<first>-<last>...] or <name>,{_NODE}=<number>"
_MAX_CORES = 1 << 16
"""No kernel has a core number this high."""


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """The cores of instances; at least one of the two fields is set."""

    cores: frozenset[int] = frozenset()
    """`cpu-cores`: the kernel's numbers; empty for all cores of the node."""
    numa_node: int | None = None

    def __str__(self) -> str:
        node = "" if self.numa_node is None else f"{_NODE}={self.numa_node}"
        cores = f"{_CORES}={format_cores(self.cores)}" if self.cores else ""
        return ",".join(part for part in (node, cores) if part)


def parse_host_policies(settings: Mapping[str, Mapping[str, str]]) -> dict[str, HostPolicy]:
    """Return the policies by name from the settings of each. Raises ValueError with setting, value and fix."""
    policies: dict[str, HostPolicy] = {}
    for name, values in settings.items():
        if not name:
            given = ", ".join(f"'{setting}={value}'" for setting, value in values.items())
            raise ValueError(f"{given} names no policy; {_FORM}, with cpu, gpu_0 or a host_policy for a name")
        policies[name] = _parse_policy(name, values)
    return policies


def _parse_policy(name: str, values: Mapping[str, str]) -> HostPolicy:
    cores: frozenset[int] = frozenset()
    node: int | None = None
    for setting, value in values.items():
        given = f"'{name},{setting}={value}'"
        if setting == _CORES:
            try:
                cores = parse_cores(value)
            except ValueError as error:
                raise ValueError(f"{given}: {error}; {_FORM}") from None
        elif setting == _NODE:
            if not _is_number(value):
                raise ValueError(f"{given}: '{value}' is not the number of a NUMA node; {_FORM}")
            node = int(value)
        else:
            raise ValueError(f"{given}: there is no setting '{setting}'; {_FORM}")
    return HostPolicy(cores, node)


def parse_cores(text: str) -> frozenset[int]:
    """Return the cores of a list such as `0-3,8`, in the kernel's format. Raises ValueError."""
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise ValueError(f"'{part}' is neither a core nor a range of cores")
        begin, end = int(first), int(last or first)
        if end < begin:
            raise ValueError(f"'{part}' ends before it begins")
        if end >= _MAX_CORES:
            raise ValueError(f"core {end} is above the maximum of any kernel")
        cores.update(range(begin, end + 1))
    return frozenset(cores)


def format_cores(cores: Iterable[int]) -> str:
    """Return the cores as a list with ranges: `0-3,8`."""
    ranges: list[list[int]] = []
    for core in sorted(cores):
        if ranges and ranges[-1][1] == core - 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def policy_name(group: ModelInstanceGroup, device_id: int) -> str:
    """Return the policy name of an instance: from its group, or by its kind, as in Triton."""
    if group.host_policy:
        return group.host_policy
    if group.kind == ModelInstanceGroup.KIND_GPU:
        return f"gpu_{device_id}"
    return "model" if group.kind == ModelInstanceGroup.KIND_MODEL else "cpu"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10

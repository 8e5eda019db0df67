"""What models on demand are given and what they report: settings, the use of a version, the size of a model."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from naiad.config.load_policy import LoadPolicy
from naiad.repository.control.on_demand.memory.budgets import HOST, Amounts
from naiad.repository.control.on_demand.memory.device_meter import DeviceMeter


@dataclass(frozen=True, slots=True)
class VersionUse:
    """How a loaded version is used now."""

    last_s: float
    """Monotonic time of its last execution, or of its last response from the cache."""
    in_flight_count: int
    is_bound: bool
    """Whether a sequence lives or a stream is open."""
    process_ids: Sequence[int] = ()
    """Its worker processes."""
    mapped_bytes: int = 0
    """Of files: it may come to have them in memory when it executes."""


@dataclass(frozen=True, slots=True)
class OnDemandSettings:
    """The options of models on demand, resolved for this process."""

    default: LoadPolicy
    budgets: Amounts = field(default_factory=dict)
    """Of this process; those without an entry, or with 0, have no limit."""
    hold_s: float = 60.0
    """How long a load waits for room at most."""
    load_count: int = 4
    """Loads at the same time."""
    core_count: int = 4
    """Cores of the machine or control group: loads leave one of them to requests."""
    devices: DeviceMeter = field(default_factory=DeviceMeter)
    """Measures the memory of the GPUs that have a budget."""

    @property
    def budget_bytes(self) -> int:
        """The budget of the host; 0 for no limit."""
        return self.budgets.get(HOST, 0)


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A loaded model on demand, for metrics."""

    key: str
    amounts: Amounts

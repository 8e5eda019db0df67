"""What models on demand are given and what they report: settings, the use of a version, the size of a model."""

from collections.abc import Sequence
from dataclasses import dataclass

from naiad.config.load_policy import LoadPolicy


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


@dataclass(frozen=True, slots=True)
class OnDemandSettings:
    """The options of models on demand, resolved for this process."""

    default: LoadPolicy
    budget_bytes: int = 0
    """0: no limit."""
    hold_s: float = 60.0
    """How long a load waits for room at most."""
    load_count: int = 4
    """Loads at the same time."""
    core_count: int = 4
    """Cores of the machine or control group: loads leave one of them to requests."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A loaded model on demand, for metrics."""

    key: str
    size_bytes: int

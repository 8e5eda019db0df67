"""What is told about a model's scheduling: the rules, the queue, and why the last batches went."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from naiad.core.model import AdaptiveState
from naiad.telemetry.statistics.version import RecentBatch, VersionStatistics


class ResourceUse(NamedTuple):
    """A resource of the rate limiter that the instances of a version need."""

    name: str
    device: int | None
    """None for one amount of the whole server."""
    limit: int
    held: int
    waiting: int
    """Instances, of all models, that wait and need it."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One model version at one moment."""

    name: str
    version: str
    scheduler: str
    """default, dynamic, adaptive, "sequence, direct", "sequence, oldest" or ensemble."""
    rules: Sequence[str]
    """What happens to a request, in order."""
    hints: Sequence[str]
    """Why nothing is batched, if so."""
    instance_count: int
    waiting: int
    in_flight: int
    """Requests that wait or execute."""
    counts: VersionStatistics
    recent: Sequence[RecentBatch]
    """Oldest first."""
    adaptive: AdaptiveState | None
    resources: Sequence[ResourceUse]
    """Empty without a rate limiter, and where another process has it."""
    now_ns: int
    """The moment, by the clock of `recent`."""

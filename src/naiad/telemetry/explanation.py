"""The data of a scheduling explanation: the rules, the queue, and why the last batches were sent."""

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
    """Number of instances, of all models, that wait for it."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One model version at one moment."""

    name: str
    version: str
    scheduler: str
    """default, dynamic, adaptive, "sequence, direct", "sequence, oldest" or ensemble."""
    rules: Sequence[str]
    """The rules for a request, in order."""
    hints: Sequence[str]
    """Why no requests are batched; empty otherwise."""
    instance_count: int
    waiting: int
    in_flight: int
    """Number of requests that wait or execute."""
    counts: VersionStatistics
    recent: Sequence[RecentBatch]
    """Oldest first."""
    adaptive: AdaptiveState | None
    resources: Sequence[ResourceUse]
    """Empty without a rate limiter, and if another process has it."""
    now_ns: int
    """The time of the explanation, by the clock of `recent`."""

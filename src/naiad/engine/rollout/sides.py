"""The sides of a rollout: the versions between which requests are split, and their counts."""

from collections.abc import Container

from naiad.config.rollout.guard import SHADOW_RESULTS, SideCounts, bucket_of
from naiad.core.limits.bounded_cache import BoundedCache
from naiad.core.request import RequestHeader
from naiad.engine.serving.served import Served

STABLE, CANARY, PREVIOUS = "stable", "canary", "previous"
"""Roles of versions. Only live sequences that began there reach a previous one."""
OK, ERROR = "success", "failure"
MAX_COUNTERS = 384
"""Counters of a model, including its former versions: a repository gets new versions for years."""
_HEADER_BYTES = 1024
"""Estimate, without parameters."""


class RolloutTotals:
    """Counters of a model that only grow, for metrics. Written on the event loop, read on any thread."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str], int] = {}
        """Requests by role, version and outcome."""
        self.shadow = dict.fromkeys(SHADOW_RESULTS, 0)
        self.rollbacks: dict[str, int] = {}
        """By reason."""

    def drop_gone(self, versions: Container[str]) -> None:
        """Drop the oldest counters of versions that are not among `versions`, if there are too many."""
        gone = [key for key in list(self.requests) if key[1] not in versions]
        for key in gone[: max(0, len(self.requests) - MAX_COUNTERS)]:
            self.requests.pop(key, None)

    def note_rollback(self, reason: str) -> None:
        """Count a rollback."""
        self.rollbacks[reason] = self.rollbacks.get(reason, 0) + 1


class CanaryHeaders(BoundedCache[RequestHeader, RequestHeader]):
    """The canary's copies of headers that stable uses as well, with memos of their own."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(max_entries=512, max_bytes=1 << 20, max_entry_bytes=1 << 14)

    def keep(self, header: RequestHeader, made: RequestHeader) -> None:
        """Remember the copy of an admitted header, unless it is large."""
        self.remember(header, made, _HEADER_BYTES + sum(len(str(value)) for value in header.parameters.values()))


class RolloutSide:
    """One version in its role, with the counts of one state of the rollout. Used on the event loop."""

    __slots__ = ("_totals", "errors", "latencies", "requests", "role", "served", "version")

    def __init__(self, role: str, served: Served, totals: RolloutTotals) -> None:
        self.role = role
        self.served = served
        self.version = int(served.version)
        self.requests = 0
        self.errors = 0
        self.latencies: dict[int, int] = {}
        self._totals = totals

    def record(self, duration_ns: int, *, is_error: bool) -> None:
        """Count a request with its final response."""
        # hot: once a request of a model with a rollout
        self.requests += 1
        if is_error:
            self.errors += 1
        else:
            bucket = bucket_of(duration_ns)
            self.latencies[bucket] = self.latencies.get(bucket, 0) + 1
        totals = self._totals.requests
        key = (self.role, self.served.version, ERROR if is_error else OK)
        totals[key] = totals.get(key, 0) + 1

    def counts(self) -> SideCounts:
        """Return the counts of this moment."""
        return SideCounts(self.requests, self.errors, dict(self.latencies))

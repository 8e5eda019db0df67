"""A server as its live stream shows it: counters merged from samples, and the rates that follow from them.

Only versions that have changed are in a sample. A counter that is smaller than before means that the version began
again: its rates are of the time since, never negative.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from naiad.client.live_events import LiveEvent

WINDOW_MS = 10_000
"""Latencies and rates are of the last ten seconds."""
_COUNTERS = (
    *("success", "failure", "executions", "inferences", "request_ns", "queue_ns"),
    *("compute_input_ns", "compute_ns", "compute_output_ns", "cache_hits", "cache_misses"),
)


@dataclass(frozen=True, slots=True)
class VersionRates:
    """What a version does now."""

    requests_per_s: float
    failures_per_s: float
    batch_size: float
    """Mean rows of an execution; 0 without executions."""
    queue_us: float
    """Mean time in the queue."""
    p50_us: float | None
    p95_us: float | None
    p99_us: float | None
    """Interpolated in the buckets of the latency histogram; None without requests."""
    pending: int
    executing: int


@dataclass(slots=True)
class _History:
    """The last sample of a version, and what was counted between samples: end time, duration and counts."""

    last: Mapping[str, Any]
    steps: "deque[tuple[int, int, Mapping[str, int], Sequence[int]]]" = field(default_factory=deque)


class LiveView:
    """The state of a server, from the events of its live stream."""

    def __init__(self) -> None:
        self.server: Mapping[str, Any] = {}
        """The last event `server`; empty before the first."""
        self.models: Sequence[Mapping[str, Any]] = ()
        self.process: Mapping[str, Any] = {}
        self.gpus: Sequence[Mapping[str, Any]] = ()
        self.time_ms = 0
        self.gone_reason = ""
        """Why the stream has ended; empty while it goes on."""
        self.cpu_cores: float | None = None
        """Cores that the server uses; None before the second sample."""
        self._versions: dict[str, _History] = {}

    def apply(self, event: LiveEvent) -> bool:
        """Merge an event; return whether it was a sample."""
        if event.name == "server":
            if self.server and event.data.get("started_ms") != self.server.get("started_ms"):
                self._versions.clear()
                self.process = {}
            self.server = event.data
        elif event.name == "models":
            self.models = event.data["models"]
            known = {f"{model['name']}/{row['version']}" for model in self.models for row in model["versions"]}
            self._versions = {name: each for name, each in self._versions.items() if name in known}
        elif event.name == "gone":
            self.gone_reason = str(event.data.get("reason", ""))
        elif event.name == "sample":
            self._sample(event.data)
            return True
        return False

    def totals(self, version: str) -> Mapping[str, Any]:
        """Return the last counters of a version, named `model/version`. Raises KeyError."""
        return self._versions[version].last

    def versions(self) -> Iterator[str]:
        """Yield the names of all versions with counters."""
        yield from self._versions

    def _sample(self, data: Mapping[str, Any]) -> None:
        duration_ms = data["time_ms"] - self.time_ms if self.time_ms else 0
        self._note_process(data, duration_ms)
        self.time_ms = data["time_ms"]
        self.gpus = data.get("gpus", ())
        changed = data["versions"]
        for name, history in self._versions.items():
            if name not in changed:
                self._add_step(history, history.last, duration_ms)
        for name, sample in changed.items():
            known = self._versions.get(name)
            if known is None:
                self._versions[name] = _History(sample)
            else:
                self._add_step(known, sample, duration_ms)

    def _note_process(self, data: Mapping[str, Any], duration_ms: int) -> None:
        used_s = data["process"]["cpu_s"] - self.process.get("cpu_s", 0.0)
        self.cpu_cores = max(0.0, used_s * 1000 / duration_ms) if self.process and duration_ms > 0 else None
        self.process = data["process"]

    def _add_step(self, history: _History, sample: Mapping[str, Any], duration_ms: int) -> None:
        before, history.last = history.last, sample
        if duration_ms < 0:  # the server's clock was set back
            history.steps.clear()
        if duration_ms <= 0:
            return
        if any(sample[name] < before[name] for name in _COUNTERS):
            history.steps.clear()
            before = dict.fromkeys(_COUNTERS, 0) | {"latency_counts": [0] * len(sample["latency_counts"])}
        counts = {name: sample[name] - before[name] for name in _COUNTERS}
        latencies = [
            max(0, now - then) for now, then in zip(sample["latency_counts"], before["latency_counts"], strict=True)
        ]
        history.steps.append((self.time_ms, duration_ms, counts, latencies))
        while history.steps[0][0] <= self.time_ms - WINDOW_MS and len(history.steps) > 1:
            history.steps.popleft()

    def rates(self, version: str) -> VersionRates:
        """Return what a version does, over the last ten seconds. Raises KeyError."""
        history = self._versions[version]
        steps = history.steps
        duration_s = sum(step[1] for step in steps) / 1000
        sums = {name: sum(step[2][name] for step in steps) for name in _COUNTERS}
        buckets = [sum(counts) for counts in zip(*(step[3] for step in steps), strict=True)]
        bounds = history.last["bounds_us"]
        return VersionRates(
            sums["success"] / duration_s if duration_s else 0.0,
            sums["failure"] / duration_s if duration_s else 0.0,
            sums["inferences"] / sums["executions"] if sums["executions"] else 0.0,
            sums["queue_ns"] / sums["success"] / 1000 if sums["success"] else 0.0,
            quantile_us(buckets, bounds, 0.5),
            quantile_us(buckets, bounds, 0.95),
            quantile_us(buckets, bounds, 0.99),
            history.last["pending"],
            history.last["executing"],
        )


def quantile_us(buckets: Sequence[int], bounds_us: Sequence[int], share: float) -> float | None:
    """Return a quantile of a histogram, interpolated within its bucket; None without values.

    Values in the last bucket, which has no upper bound, count as its lower one.
    """
    total = sum(buckets)
    if not total:
        return None
    wanted = share * total
    for index, reached in enumerate(accumulate(buckets)):
        if reached >= wanted and buckets[index]:
            lower = bounds_us[index - 1] if index else 0
            upper = bounds_us[index] if index < len(bounds_us) else lower
            return float(lower + (upper - lower) * (wanted - reached + buckets[index]) / buckets[index])
    return float(bounds_us[-1])

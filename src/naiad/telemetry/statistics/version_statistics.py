"""One model version at one moment: its statistics, and how it schedules (`Explanation`).

Values only, so that pure packages can encode them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from naiad.core.errors import FailureReason
from naiad.core.model import AdaptiveState, model_key

_MS = 1_000_000
LATENCY_BOUNDS_NS: tuple[int, ...] = (
    *(100_000, 200_000, 500_000),
    *(1 * _MS, 2 * _MS, 5 * _MS, 10 * _MS, 20 * _MS, 50 * _MS, 100 * _MS, 200 * _MS, 500 * _MS),
    *(1_000 * _MS, 2_000 * _MS, 5_000 * _MS, 10_000 * _MS, 20_000 * _MS, 60_000 * _MS),
)
"""Upper bounds of the latency buckets: 100 us, 200 us, 500 us, 1 ms .. 20 s, 60 s."""


@dataclass(frozen=True, slots=True)
class Duration:
    """Number of events and their total duration."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """The requests of one step of an ensemble to its member, up to a moment."""

    model: str
    success: Duration
    """From sending a request to its final response."""
    fail: Duration
    queue: Duration
    """From sending a request to its execution, for requests that were executed successfully."""
    compute: Duration
    """From the start of the execution to its end, for the same requests."""


_NEVER = Duration()


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Executions of one total batch size; the three counts are equal."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


@dataclass(frozen=True, slots=True)
class PositionStatistics:
    """The responses at one position."""

    compute_infer: Duration
    """From the previous response, or the start of the request, until it was computed."""
    compute_output: Duration
    """From its computation to its delivery."""
    success: Duration
    fail: Duration
    empty_response: Duration
    """Completions without outputs."""
    cancel: Duration
    """Responses of cancelled requests."""


class RecentBatch(NamedTuple):
    """One executed batch; the times are monotonic."""

    arrival_ns: int
    """Of the first of its requests."""
    start_ns: int
    end_ns: int
    rows: int
    requests: int
    reason: str
    """`Batch.release_reason`."""
    decision: str
    """`Batch.decision`."""


@dataclass(frozen=True, slots=True)
class VersionStatistics:
    """The statistics of a version for `GET /v2/models/m/stats`, and further values for metrics."""

    name: str
    version: str
    namespace: str = ""
    """Distinguishes models of equal names."""
    last_inference_ms: int = 0
    """Wall-clock time of the last execution in ms since the epoch; 0 before the first."""
    inference_count: int = 0
    """Rows of successful requests."""
    execution_count: int = 0
    """Executed batches."""
    success: Duration = _NEVER
    fail: Duration = _NEVER
    queue: Duration = _NEVER
    compute_input: Duration = _NEVER
    compute_infer: Duration = _NEVER
    compute_output: Duration = _NEVER
    cache_hit: Duration = _NEVER
    cache_miss: Duration = _NEVER
    batch_stats: Sequence[BatchStatistics] = ()
    """Ascending by batch size."""
    response_stats: Sequence[PositionStatistics] = ()
    """Decoupled models: by the position of a response in its request."""
    steps: Sequence[StepStatistics] = ()
    """Ensembles: the statistics of each step, in the order of the configuration."""
    failures: Mapping[FailureReason, int] = field(default_factory=dict)
    """Failed requests by reason, with every reason present."""
    cancelled_in_queue_count: int = 0
    """Requests cancelled by their clients while they waited, which were never executed."""
    cancelled_in_execution_count: int = 0
    """Requests cancelled by their clients during execution."""
    release_reasons: Mapping[str, int] = field(default_factory=dict)
    """Executed batches by `Batch.release_reason`."""
    padding: Mapping[str, int] = field(default_factory=dict)
    """Elements of padded inputs that were executed: `data` of clients and `padding`; empty while there are none."""
    latencies: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """For each of `LATENCIES` the successful requests per bucket; the last bucket has no upper bound."""

    @property
    def key(self) -> tuple[str, str]:
        """Identifies a version: the key of its model, and its number."""
        return model_key(self.namespace, self.name), self.version


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
    completed_fields: Sequence[str] = ()
    """Fields of the configuration that the server has completed: they are not in config.pbtxt."""

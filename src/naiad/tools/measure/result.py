"""The result of a run, as reports, the JSON file and other tools read it. Times are in us."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @property
    def half_width_share(self) -> float:
        """Half of the width, as a share of the value; infinite for a value of 0."""
        return (self.high - self.low) / 2 / self.value if self.value else float("inf")


@dataclass(frozen=True, slots=True)
class Latency:
    """The distribution of a time. Percentiles are by nearest rank."""

    mean: Interval
    std_us: float
    min_us: float
    max_us: float
    percentiles: Mapping[int, Interval]
    """50, 90, 95, 99 and the percentile that was asked for."""


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """Means per request from the server's statistics, over the requests that ended during the measurement."""

    model: str
    version: str
    inference_count: int
    execution_count: int
    success_count: int
    failure_count: int
    queue_us: float
    compute_input_us: float
    compute_infer_us: float
    compute_output_us: float
    cache_hit_count: int = 0
    cache_hit_us: float = 0.0
    cache_miss_count: int = 0
    cache_miss_us: float = 0.0
    overhead_us: float = 0.0
    composing: Sequence["ServerFigures"] = ()
    """Of an ensemble, or of `--bls-composing-models`."""


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """Means of what the client did for a request."""

    send_us: float
    receive_us: float
    network_us: float
    """Time on the wire and in the server outside queue and compute, floored at 0."""


@dataclass(frozen=True, slots=True)
class GeneratorFigures:
    """Whether the load generator is to be believed."""

    processes: int
    cpu_share: float
    """Of the busiest process."""
    ceiling_per_s: float
    late_p50_us: float
    late_p99_us: float
    late_share: float
    """Of requests that left over 1 ms late."""
    limited_by: str
    """`server`, `generator`, `network` or `load` (everything asked for was sent and answered)."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Requests that failed, by kind."""

    kind: str
    count: int
    message: str
    """Of the first one."""
    among: int = 0
    """The requests that they are a part of; 0: those that ended within the measurement."""


def error_share(errors: Sequence[Errors], successes: int) -> float:
    """Return the share of the requests that failed; `successes` are those within the measurement."""
    ended = successes + sum(each.count for each in errors if not each.among)
    return sum(each.count / (each.among or ended) for each in errors if each.count)


@dataclass(frozen=True, slots=True)
class Parts:
    """The breakdown of requests on one clock: client_encode, send, parse, queue, hold, ... receive, in order."""

    requests: int
    is_same_host: bool
    percentiles_us: Mapping[str, Mapping[int, float]]
    mean_us: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MetricFigure:
    """A series of the server's metrics over the measurement, in time order, with its moments from the start."""

    name: str
    labels: str
    at_s: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Row:
    """A load and what was measured under it."""

    mode: str
    """`concurrency`, `request_rate`, `intervals`, `schedule` or `ramp`."""
    value: float
    model: str
    batch_size: int
    duration_s: float
    request_count: int
    """Successes."""
    throughput: Interval
    """Successful requests/s; times `batch_size` for inferences/s."""
    goodput: Interval
    """Successful requests/s within the SLO."""
    response_throughput: float
    sequences_per_s: float
    latency: Latency
    """From the intended send to the last response."""
    service: Latency
    """From the actual send to the last response."""
    first_response: Latency | None
    """Decoupled models."""
    between_responses: Latency | None
    client: ClientFigures
    server: ServerFigures | None
    generator: GeneratorFigures
    errors: Sequence[Errors]
    is_stable: bool
    verdict: str
    """Why it is stable or not, in a sentence."""
    windows: Sequence[tuple[float, float, float]] = ()
    """Begin in s from the start, requests/s and judged latency in us of each window: the timeline."""
    parts: Parts | None = None
    metrics: Sequence[MetricFigure] = ()
    histogram: Sequence[tuple[float, int]] = ()
    """Upper bound of the latency in us, and the number of requests; logarithmic bins."""
    interrupted: str = ""

    @property
    def inferences_per_s(self) -> float:
        """Samples a second: perf_analyzer's throughput."""
        return self.throughput.value * self.batch_size


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run."""

    command: Sequence[str]
    started: str
    """ISO 8601, UTC."""
    environment: Mapping[str, str]
    """Client machine, versions, server name and version."""
    percentile: int | None
    rows: Sequence[Row] = field(default_factory=list)
    found: float | None = None
    """The highest load within the latency limit, of a search."""
    exit_reason: str = ""
    """Why the run ended before its end; "" otherwise."""
    version: int = SCHEMA_VERSION

"""The metrics of model versions: Triton's names and meanings, and distributions that Triton lacks.

A scrape may cover hundreds of models, each with over a hundred lines. The lines of a model are therefore made once,
as templates; a scrape fills in the numbers.
"""

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from naiad.core.errors import FailureReason
from naiad.telemetry.metrics.exposition import format_labels, format_value
from naiad.telemetry.statistics.model_statistics import LatencySample, ModelStatistics
from naiad.telemetry.statistics.version_statistics import LATENCY_BOUNDS_NS, Duration, VersionStatistics

if TYPE_CHECKING:
    from naiad.telemetry.statistics.part_statistics import LatencyBuckets

RELEASE_REASONS = ("full", "preferred", "delay", "shape", "strategy", "priority", "idle")
PADDED_KINDS = ("data", "padding")
BATCH_SIZE_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
FIRST_RESPONSE_MS = "nv_inference_first_response_histogram_ms"
FIRST_RESPONSE_BOUNDS_MS = (100, 500, 2000, 5000)
"""Triton's buckets of the time to the first response."""
_SUMMARY_WINDOW_NS = 60 * 10**9
"""Triton: the window of prometheus-cpp's summaries."""
_NOT_IN_LABEL = re.compile(r"[^a-zA-Z0-9_]")
"""A label's name cannot have these, and nothing can be escaped there. Validation refuses such a tag."""


class ModelMetricSource:
    """Source of the values of one model version."""

    def __init__(  # noqa: PLR0913 - the data of a model
        self,
        statistics: ModelStatistics,
        *,
        pending: Callable[[], int],
        executing: Callable[[], int],
        oldest_ns: Callable[[], int] = lambda: 0,
        load_duration_s: float = 0.0,
        tags: Mapping[str, str] | None = None,
        is_decoupled: bool = False,
        is_cached: bool = False,
        first_response_bounds_ms: Sequence[float] = (),
    ) -> None:
        """`pending` and `executing` count its waiting and its executing requests.

        `oldest_ns` returns the monotonic arrival of the oldest waiting one, 0 for none. `tags` are `metric_tags` of
        its configuration, which become labels. `first_response_bounds_ms` are the buckets in
        `nv_inference_first_response_histogram_ms` if they are not Triton's.
        """
        self.statistics = statistics
        self.is_cached = is_cached
        self.first_latencies: LatencyBuckets | None = None
        """First-response latencies of a decoupled model; for other models they equal the request latencies."""
        self.first_latencies_ms: LatencyBuckets | None = None
        """The same in Triton's buckets, if enabled."""
        bounds_ns = [int(bound * 1e6) for bound in first_response_bounds_ms or FIRST_RESPONSE_BOUNDS_MS]
        self.first_places_ms: list[int] = []
        """For other models: the request latencies that are each of these buckets' last; empty if some are none's."""
        if is_decoupled:
            self.first_latencies = statistics.responses.keep_first_latencies(LATENCY_BOUNDS_NS)
            self.first_latencies_ms = statistics.responses.keep_first_latencies(bounds_ns)
        elif set(bounds_ns) <= set(LATENCY_BOUNDS_NS):
            self.first_places_ms = [LATENCY_BOUNDS_NS.index(bound) for bound in bounds_ns]
        self.pending = pending
        self.executing = executing
        self.oldest_ns = oldest_ns
        self.load_duration_s = load_duration_s
        self.labels = model_labels(statistics, tags)
        self.templates: dict[str, str] = {}
        """Family name to the lines of this model, with a % placeholder for each number."""
        if first_response_bounds_ms:
            self.templates[FIRST_RESPONSE_MS] = _histogram(first_response_bounds_ms)(FIRST_RESPONSE_MS, self.labels)


def model_labels(statistics: ModelStatistics, tags: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the labels that identify a version, and its `metric_tags`."""
    labels = {"model": statistics.model, "version": statistics.version}
    if statistics.namespace:
        labels["namespace"] = statistics.namespace
    # Triton: with an underscore before each name.
    return labels | {f"_{_label_name(name)}": value for name, value in (tags or {}).items()}


def _label_name(tag: str) -> str:
    # Prometheus reserves names with two underscores in front.
    return _NOT_IN_LABEL.sub("_", tag).lstrip("_")


class Scrape(NamedTuple):
    """One model at the moment of a scrape."""

    source: ModelMetricSource
    counts: VersionStatistics
    samples: Sequence[LatencySample]


class ModelFamily(NamedTuple):
    """A metric that every model version has."""

    name: str
    kind: str
    help: str
    template: Callable[[str, Mapping[str, str]], str]
    """(family name, labels) to the lines with placeholders for numbers."""
    numbers: Callable[[Scrape], tuple[object, ...]]
    """The numbers for the placeholders."""
    is_shown: Callable[[VersionStatistics], object] = lambda counts: True
    """Whether there is a value to show, as a truth value."""
    has: Callable[[ModelMetricSource], bool] = lambda _: True
    """Whether a model has this metric."""

    def lines(self, scrape: Scrape) -> str:
        """Return the lines of one model; none for a distribution without samples."""
        if not (self.has(scrape.source) and self.is_shown(scrape.counts)):
            return ""
        template = scrape.source.templates.get(self.name)
        if template is None:
            template = scrape.source.templates[self.name] = self.template(self.name, scrape.source.labels)
        return template % self.numbers(scrape)


def _labels(labels: Mapping[str, str]) -> str:
    return format_labels(labels).replace("%", "%%")


def _single(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}{_labels(labels)} %s"


def _per_value(label: str, values: Sequence[str]) -> Callable[[str, Mapping[str, str]], str]:
    """Return a template with a line for each value of an additional label."""

    def template(name: str, labels: Mapping[str, str]) -> str:
        return "\n".join(f"{name}{_labels({**labels, label: value})} %s" for value in values)

    return template


def _histogram(bounds: Sequence[float]) -> Callable[[str, Mapping[str, str]], str]:
    texts = [*map(format_value, bounds), "+Inf"]

    def template(name: str, labels: Mapping[str, str]) -> str:
        buckets = [f"{name}_bucket{_labels({**labels, 'le': text})} %s" for text in texts]
        return "\n".join([*buckets, f"{name}_sum{_labels(labels)} %s", f"{name}_count{_labels(labels)} %s"])

    return template


# --- Triton's -------------------------------------------------------------------------------------------------------

Read = Callable[[VersionStatistics], Duration]

_LATENCIES: Sequence[tuple[str, str, str, Read]] = (
    ("request", "Cumulative inference request duration", "(includes cached requests)", lambda c: c.success),
    ("queue", "Cumulative inference queuing duration", "(includes cached requests)", lambda c: c.queue),
    (
        "compute_input",
        "Cumulative compute input duration",
        "(does not include cached requests)",
        lambda c: c.compute_input,
    ),
    (
        "compute_infer",
        "Cumulative compute inference duration",
        "(does not include cached requests)",
        lambda c: c.compute_infer,
    ),
    (
        "compute_output",
        "Cumulative inference compute output duration",
        "(does not include cached requests)",
        lambda c: c.compute_output,
    ),
)
"""Name, help, help's end, and the location of count and sum."""

_CACHE_LATENCIES: Sequence[tuple[str, Read]] = (
    ("hit", lambda counts: counts.cache_hit),
    ("miss", lambda counts: counts.cache_miss),
)


def _count(name: str, help_text: str, read: Callable[[VersionStatistics], int]) -> ModelFamily:
    return ModelFamily(name, "counter", help_text, _single, lambda scrape: (read(scrape.counts),))


def _duration_counter(name: str, help_text: str, help_end: str, read: Read) -> ModelFamily:
    return ModelFamily(
        f"nv_inference_{name}_duration_us",
        "counter",
        f"{help_text} in microseconds {help_end}",
        _single,
        lambda scrape: (read(scrape.counts).ns // 1000,),
    )


COUNTERS: Sequence[ModelFamily] = (
    _count(
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        lambda counts: counts.success.count,
    ),
    ModelFamily(
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
        _per_value("reason", [reason.value for reason in FailureReason]),
        lambda scrape: tuple(scrape.counts.failures[reason] for reason in FailureReason),
    ),
    _count(
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda counts: counts.inference_count,
    ),
    _count(
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda counts: counts.execution_count,
    ),
)


def _first_response_ms_numbers(scrape: Scrape) -> tuple[object, ...]:
    first = scrape.source.first_latencies_ms
    if first is None:
        # It responds once: the latency of its requests.
        totals = tuple(accumulate(scrape.counts.latencies["request"]))
        found = (*(totals[place] for place in scrape.source.first_places_ms), totals[-1])
        return (*found, scrape.counts.success.ns // 1_000_000, totals[-1])
    counts = tuple(accumulate(first.counts))
    return (*counts, first.total_ns // 1_000_000, counts[-1])


CACHE_COUNTERS: Sequence[ModelFamily] = [
    family._replace(has=lambda source: source.is_cached)
    for family in (
        _count(
            "nv_cache_num_hits_per_model", "Number of cache hits per model", lambda counts: counts.cache_hit.count
        ),
        _count(
            "nv_cache_num_misses_per_model",
            "Number of cache misses per model",
            lambda counts: counts.cache_miss.count,
        ),
        _count(
            "nv_cache_hit_duration_per_model",
            "Total cache hit duration per model, in microseconds",
            lambda counts: counts.cache_hit.ns // 1000,
        ),
        _count(
            "nv_cache_miss_duration_per_model",
            "Total cache miss (insert+lookup) duration per model, in microseconds",
            lambda counts: counts.cache_miss.ns // 1000,
        ),
    )
]
TRITON_HISTOGRAMS: Sequence[ModelFamily] = (
    ModelFamily(
        FIRST_RESPONSE_MS,
        "histogram",
        "Duration from request to first response in milliseconds",
        _histogram(FIRST_RESPONSE_BOUNDS_MS),
        _first_response_ms_numbers,
        has=lambda source: source.first_latencies_ms is not None or bool(source.first_places_ms),
    ),
)
LATENCY_COUNTERS: Sequence[ModelFamily] = [_duration_counter(*row) for row in _LATENCIES]
CANCELLATIONS: Sequence[ModelFamily] = (
    ModelFamily(
        "naiad_inference_cancelled_total",
        "counter",
        "Requests cancelled by clients, by whether they waited or executed then",
        _per_value("where", ("queue", "execution")),
        lambda scrape: (scrape.counts.cancelled_in_queue_count, scrape.counts.cancelled_in_execution_count),
    ),
)
GAUGES: Sequence[ModelFamily] = (
    ModelFamily(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        _single,
        lambda scrape: (scrape.source.pending(),),
    ),
    ModelFamily(
        "nv_model_load_duration_secs",
        "gauge",
        "Model load time in seconds",
        _single,
        lambda scrape: (format_value(scrape.source.load_duration_s),),
    ),
    ModelFamily(
        "naiad_inference_executing_request_count",
        "gauge",
        "Requests that are being executed",
        _single,
        lambda scrape: (scrape.source.executing(),),
    ),
    ModelFamily(
        "naiad_queue_oldest_age_seconds",
        "gauge",
        "Age of the oldest request that waits for an instance; 0 if there is none",
        _single,
        lambda scrape: (format_value(_age_s(scrape.source.oldest_ns())),),
    ),
)


def _age_s(arrival_ns: int) -> float:
    return max(0, time.monotonic_ns() - arrival_ns) / 1e9 if arrival_ns else 0.0


def summaries(quantiles: Sequence[float]) -> Sequence[ModelFamily]:
    """Return Triton's summaries with the given quantiles, over the requests of the last minute."""
    # Field 0 of a sample is its time, the latencies follow in the order of the tables.
    families = [_latency_summary(field, *row, quantiles) for field, row in enumerate(_LATENCIES, 1)]
    for field, (kind, read) in enumerate(_CACHE_LATENCIES, 1 + len(_LATENCIES)):
        help_text = f"Summary of cache {kind} counts/durations per model, in microseconds."
        family = _summary(f"nv_cache_{kind}_summary_per_model", help_text, field, read, quantiles)
        families.append(family._replace(has=lambda source: source.is_cached))
    return families


def _latency_summary(
    field: int, name: str, help_text: str, help_end: str, read: Read, quantiles: Sequence[float]
) -> ModelFamily:
    if name in ("request", "queue"):
        # Triton: the summaries of the compute times are called cumulative.
        help_text = help_text.replace("Cumulative", "Summary of")
    help_text = f"{help_text} in microseconds {help_end}"
    return _summary(f"nv_inference_{name}_summary_us", help_text, field, read, quantiles)


def _summary(name: str, help_text: str, field: int, read: Read, quantiles: Sequence[float]) -> ModelFamily:
    """Return a summary of the samples' `field`; count and sum are from `read`."""

    def template(family: str, labels: Mapping[str, str]) -> str:
        totals = [f"{family}_count{_labels(labels)} %s", f"{family}_sum{_labels(labels)} %s"]
        lines = [f"{family}{_labels({**labels, 'quantile': format_value(q)})} %s" for q in quantiles]
        return "\n".join([*totals, *lines])

    def numbers(scrape: Scrape) -> tuple[object, ...]:
        total = read(scrape.counts)
        oldest_ns = time.monotonic_ns() - _SUMMARY_WINDOW_NS
        latencies = sorted(
            latency_ns // 1000
            for sample in scrape.samples
            if sample.end_ns >= oldest_ns and (latency_ns := sample[field]) is not None
        )
        return (total.count, total.ns // 1000, *(_quantile(latencies, q) for q in quantiles))

    return ModelFamily(name, "summary", help_text, template, numbers)


def _quantile(ascending: Sequence[int], quantile: float) -> object:
    if not ascending:
        return "NaN"
    return ascending[max(0, math.ceil(quantile * len(ascending)) - 1)]


# --- naiad's --------------------------------------------------------------------------------------------------------


def _latency_histogram(name: str, help_text: str, latency: str, read: Read) -> ModelFamily:
    def numbers(scrape: Scrape) -> tuple[object, ...]:
        counts = tuple(accumulate(scrape.counts.latencies[latency]))
        return (*counts, format_value(read(scrape.counts).ns / 1e9), counts[-1])

    return ModelFamily(
        f"naiad_inference_{name}_duration_seconds",
        "histogram",
        f"{help_text}, of successful requests",
        _histogram([bound / 1e9 for bound in LATENCY_BOUNDS_NS]),
        numbers,
        lambda counts: any(counts.latencies[latency]),
    )


def _first_response_numbers(scrape: Scrape) -> tuple[object, ...]:
    first = scrape.source.first_latencies
    counted = scrape.counts.latencies["request"] if first is None else first.counts
    total_ns = scrape.counts.success.ns if first is None else first.total_ns
    counts = tuple(accumulate(counted))
    return (*counts, format_value(total_ns / 1e9), counts[-1])


def _batch_size_numbers(scrape: Scrape) -> tuple[object, ...]:
    sizes = [(entry.batch_size, entry.compute_infer.count) for entry in scrape.counts.batch_stats]
    cumulated = [sum(count for size, count in sizes if size <= bound) for bound in BATCH_SIZE_BOUNDS]
    total = sum(count for _, count in sizes)
    return (*cumulated, total, sum(size * count for size, count in sizes), total)


BATCHING: Sequence[ModelFamily] = (
    ModelFamily(
        "naiad_inference_batch_size",
        "histogram",
        "Total rows of executed batches",
        _histogram(BATCH_SIZE_BOUNDS),
        _batch_size_numbers,
        lambda counts: counts.batch_stats,
    ),
    ModelFamily(
        "naiad_batch_release_total",
        "counter",
        "Executed batches by the reason why the scheduler released them",
        _per_value("reason", RELEASE_REASONS),
        lambda scrape: tuple(scrape.counts.release_reasons.get(reason, 0) for reason in RELEASE_REASONS),
    ),
    ModelFamily(
        "naiad_padded_input_elements_total",
        "counter",
        "Executed elements of inputs that are padded: data of clients, and padding",
        _per_value("kind", PADDED_KINDS),
        lambda scrape: tuple(scrape.counts.padding.get(kind, 0) for kind in PADDED_KINDS),
        lambda counts: counts.padding,
    ),
)
HISTOGRAMS: Sequence[ModelFamily] = (
    _latency_histogram(
        "request", "Time from the arrival of a request to its response", "request", lambda c: c.success
    ),
    _latency_histogram(
        "first_response", "Time from the arrival of a request to its first response", "request", lambda c: c.success
    )._replace(
        numbers=_first_response_numbers, is_shown=lambda counts: counts.success.count or counts.response_stats
    ),
    _latency_histogram("queue", "Time that a request waited for an instance", "queue", lambda c: c.queue),
    _latency_histogram("compute_input", "Time to stage a batch's inputs", "compute_input", lambda c: c.compute_input),
    _latency_histogram("compute_infer", "Time a model took for a batch", "compute_infer", lambda c: c.compute_infer),
    _latency_histogram(
        "compute_output", "Time to extract a batch's outputs", "compute_output", lambda c: c.compute_output
    ),
)

"""Metrics of the server: open connections, adaptive batchers, and the response cache."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from naiad.backend.cores import usable_cores
from naiad.core.model import DECISIONS, AdaptiveState
from naiad.engine.cache.store import CacheCounts, ResponseStore
from naiad.engine.resources import Resources
from naiad.engine.serving.served import Served
from naiad.options.limits import RateLimitOptions, ResourceAmount
from naiad.server.ports.endpoint import Service
from naiad.telemetry.metrics.exposition import Kind, format_family, format_labels, format_value
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.metrics.model import model_labels
from naiad.telemetry.metrics.responses import grpc_responses, http_responses, rejections
from naiad.telemetry.process import read_memory
from naiad.wire.grpc import GrpcStatus

Labels = Mapping[str, str]


class _Family(NamedTuple):
    name: str
    kind: Kind
    help: str
    read: Callable[[AdaptiveState], float | None]
    """None for a model without the value."""


_FAMILIES: Sequence[_Family] = (
    _Family("naiad_adaptive_holds_total", "counter", "Batches that were delayed to grow", lambda s: s.hold_count),
    _Family(
        "naiad_adaptive_hold_seconds_total",
        "counter",
        "Time that batches were delayed while an instance was free",
        lambda s: s.hold_ns / 1e9,
    ),
    _Family(
        "naiad_adaptive_fixed_seconds",
        "gauge",
        "Learned: fixed cost of a batch, independent of its rows",
        lambda s: s.fixed_ns / 1e9,
    ),
    _Family("naiad_adaptive_row_seconds", "gauge", "Learned: cost of each row", lambda s: s.row_ns / 1e9),
    _Family(
        "naiad_adaptive_tail_ratio",
        "gauge",
        "Learned: ratio of actual to expected time that 99 of 100 batches stay below",
        lambda s: s.tail_ratio,
    ),
    _Family(
        "naiad_adaptive_parallelism",
        "gauge",
        "Learned: throughput of all instances together, in instances",
        lambda s: s.parallelism,
    ),
    _Family(
        "naiad_adaptive_arrival_rate",
        "gauge",
        "Learned: requests per second, from the mean of the last gaps",
        lambda s: s.arrival_rate,
    ),
    _Family(
        "naiad_adaptive_profile_drift_ratio",
        "gauge",
        "Learned time of a batch divided by its time in the profile of the model",
        lambda s: s.drift_ratio,
    ),
)
_RELEASES = "naiad_adaptive_release_total"


def show_adaptive(registry: Registry, serving: Callable[[], Iterable[Served]]) -> None:
    """Add the metrics of the versions in `serving` that use adaptive batching."""

    def states() -> list[tuple[Labels, AdaptiveState]]:
        found = ((served, served.adaptive_state) for served in serving())
        return [
            (model_labels(served.statistics, served.config.metric_tags), state)
            for served, state in found
            if state is not None
        ]

    def rendered(family: _Family) -> str:
        return _render(family, states())

    for family in _FAMILIES:
        registry.add_rendered(family.name, partial(rendered, family))
    registry.add_rendered(_RELEASES, lambda: _render_releases(states()))


def _render(family: _Family, states: Iterable[tuple[Labels, AdaptiveState]]) -> str:
    lines = [
        f"{family.name}{format_labels(labels)} {format_value(value)}"
        for labels, state in states
        if (value := family.read(state)) is not None
    ]
    return format_family(family.name, family.kind, family.help, lines)


def _render_releases(states: Iterable[tuple[Labels, AdaptiveState]]) -> str:
    lines = [
        f"{_RELEASES}{format_labels({**labels, 'decision': decision})} {state.decisions[decision]}"
        for labels, state in states
        for decision in DECISIONS
    ]
    return format_family(_RELEASES, "counter", "Batches by decision of the adaptive batcher", lines)


_CACHE_FAMILIES: tuple[tuple[str, Kind, str, str], ...] = (
    ("naiad_cache_entries", "gauge", "Responses in the cache", "entry_count"),
    ("naiad_cache_bytes", "gauge", "Bytes of the cached responses", "byte_size"),
    ("naiad_cache_evictions_total", "counter", "Responses that were evicted", "eviction_count"),
    ("naiad_cache_failures_total", "counter", "Failed requests to the cache", "failure_count"),
    ("naiad_cache_oldest_age_seconds", "gauge", "Age of the oldest response in the cache", "oldest_age_s"),
)


def show_cache(registry: Registry, store: ResponseStore) -> None:
    """Add the metrics of a store."""
    for name, kind, text, field in _CACHE_FAMILIES:
        registry.add_callback(name, kind, text, partial(_read, store, attrgetter(field)))


def _read(store: ResponseStore, field: Callable[[CacheCounts], float]) -> float:
    return field(store.counts())


_RESPONSES = "naiad_responses_total"
_REJECTIONS = "naiad_request_rejected_total"


def show_responses(registry: Registry) -> None:
    """Add the responses of all ports by code, and the rejected requests by model and reason."""
    registry.add_rendered(_RESPONSES, _render_responses)
    registry.add_rendered(_REJECTIONS, _render_rejections)


def _render_responses() -> str:
    counts = [("http", str(status), count) for status, count in sorted(http_responses.items())]
    counts += [("grpc", status.name, grpc_responses[status]) for status in GrpcStatus]
    rows = [
        f"{_RESPONSES}{format_labels({'protocol': protocol, 'code': code})} {count}"
        for protocol, code, count in counts
    ]
    return format_family(_RESPONSES, "counter", "Responses by HTTP status or gRPC status", rows)


def _render_rejections() -> str:
    rows = [f"{_REJECTIONS}{format_labels(labels)} {count}" for labels, count in rejections.rows()]
    return format_family(_REJECTIONS, "counter", "Requests that were rejected, by reason", rows)


_NAME = "naiad_connections"


def show_connections(registry: Registry, endpoints: Sequence[Service]) -> None:
    """Add the gauge of open connections: a row for each port, by the prefix of its flags."""

    def render() -> str:
        rows = [
            f"{_NAME}{format_labels({'port': endpoint.flag})} {endpoint.connections.connection_count}"
            for endpoint in endpoints
        ]
        return format_family(_NAME, "gauge", "Open connections", rows)

    registry.add_rendered(_NAME, render)


def show_load_failures(registry: Registry, read: Callable[[], int]) -> None:
    """Add the counter of failed loads."""
    text = "Loads of models or versions that failed"
    registry.add_callback("naiad_model_load_failures_total", "counter", text, read)


_RESOURCE_FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("naiad_rate_limiter_limit", "Amount of a resource", "limit"),
    ("naiad_rate_limiter_held", "Amount of a resource that executions use", "held"),
    ("naiad_rate_limiter_waiting", "Instances that wait to execute and need the resource", "waiting"),
)


def open_resources(options: RateLimitOptions, registry: Registry) -> Resources | None:
    """Return the resources that instances share, with their metrics; None if the rate limiter is off."""
    if not options.is_on:
        return None
    resources = Resources(measured_amounts(options.resources))
    for name, text, field in _RESOURCE_FAMILIES:
        registry.add_rendered(name, _renderer(resources, name, text, field))
    return resources


def measured_amounts(amounts: Sequence[ResourceAmount]) -> Sequence[ResourceAmount]:
    """Return the amounts with `auto` replaced by the machine's values."""
    return [replace(amount, count=_measure(amount.name)) if amount.count is None else amount for amount in amounts]


def _measure(name: str) -> int:
    if name == "cpu":
        return usable_cores()
    memory = read_memory()
    return 0 if memory is None else memory.total_bytes >> 20


def _renderer(resources: Resources, name: str, text: str, field: str) -> Callable[[], str]:
    read = attrgetter(field)

    def render() -> str:
        lines = []
        for usage in resources.usage():
            device = "" if usage.resource.device is None else str(usage.resource.device)
            labels = format_labels({"resource": usage.resource.name, "device": device})
            lines.append(f"{name}{labels} {read(usage)}")
        return format_family(name, "gauge", text, lines)

    return render

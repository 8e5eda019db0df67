"""Metrics of the server: open connections, adaptive batchers, and the response cache."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from naiad.backend.cores import usable_cores
from naiad.core.model import DECISIONS, AdaptiveState
from naiad.engine.cache.response_store import ResponseStore
from naiad.engine.instances.instance_resources import Resources
from naiad.engine.serving.served import Served
from naiad.frontend.accounting.exchange import Accounting
from naiad.frontend.accounting.key_usage import KeyTable
from naiad.options.execution_limits import RateLimitOptions, ResourceAmount
from naiad.server.ports.endpoint import Service
from naiad.telemetry.metrics.exposition import Kind, Row
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.metrics.model_metrics import model_labels
from naiad.telemetry.metrics.response_metrics import grpc_responses, http_responses, rejections
from naiad.telemetry.process_resources import read_memory
from naiad.wire.grpc import GrpcStatus

_ADAPTIVE_FAMILIES: Sequence[tuple[str, Kind, str, Callable[[AdaptiveState], float | None]]] = (
    ("naiad_adaptive_holds_total", "counter", "Batches that were delayed to grow", lambda s: s.hold_count),
    (
        "naiad_adaptive_hold_seconds_total",
        "counter",
        "Time that batches were delayed while an instance was free",
        lambda s: s.hold_ns / 1e9,
    ),
    (
        "naiad_adaptive_fixed_seconds",
        "gauge",
        "Learned: fixed cost of a batch, independent of its rows",
        lambda s: s.fixed_ns / 1e9,
    ),
    ("naiad_adaptive_row_seconds", "gauge", "Learned: cost of each row", lambda s: s.row_ns / 1e9),
    (
        "naiad_adaptive_tail_ratio",
        "gauge",
        "Learned: ratio of actual to expected time that 99 of 100 batches stay below",
        lambda s: s.tail_ratio,
    ),
    (
        "naiad_adaptive_parallelism",
        "gauge",
        "Learned: throughput of all instances together, in instances",
        lambda s: s.parallelism,
    ),
    (
        "naiad_adaptive_arrival_rate",
        "gauge",
        "Learned: requests per second, from the mean of the last gaps",
        lambda s: s.arrival_rate,
    ),
    (
        "naiad_adaptive_profile_drift_ratio",
        "gauge",
        "Learned time of a batch divided by its time in the profile of the model",
        lambda s: s.drift_ratio,
    ),
)
"""Name, kind, help, and the value of a model, None without it."""


def show_adaptive(registry: Registry, serving: Callable[[], Iterable[Served]]) -> None:
    """Add the metrics of the versions in `serving` that use adaptive batching."""

    def states() -> Iterator[tuple[Mapping[str, str], AdaptiveState]]:
        for served in serving():
            if (state := served.adaptive_state) is not None:
                yield model_labels(served.statistics, served.config.metric_tags), state

    def rows(read: Callable[[AdaptiveState], float | None]) -> Iterator[Row]:
        return ((labels, value) for labels, state in states() if (value := read(state)) is not None)

    for name, kind, text, read in _ADAPTIVE_FAMILIES:
        registry.add_family(name, kind, text, partial(rows, read))
    registry.add_family(
        "naiad_adaptive_release_total",
        "counter",
        "Batches by decision of the adaptive batcher",
        lambda: [
            ({**labels, "decision": decision}, state.decisions[decision])
            for labels, state in states()
            for decision in DECISIONS
        ],
    )


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
        registry.add_callback(name, kind, text, partial(_read, store, field))


def _read(store: ResponseStore, field: str) -> float:
    value: float = getattr(store.counts(), field)
    return value


def show_responses(registry: Registry, accounting: Accounting | None = None) -> None:
    """Add the responses of all ports by code, the rejected requests by model and reason, and accounts."""
    if accounting is not None:
        show_accounting(registry, accounting)
    text = "Responses by HTTP status or gRPC status"
    registry.add_family("naiad_responses_total", "counter", text, _response_rows)
    text = "Requests that were rejected, by reason"
    registry.add_family("naiad_request_rejected_total", "counter", text, rejections.rows)


def _response_rows() -> Iterator[Row]:
    for http_status, count in sorted(http_responses.items()):
        yield {"protocol": "http", "code": str(http_status)}, count
    for status in GrpcStatus:
        yield {"protocol": "grpc", "code": status.name}, grpc_responses[status]


def show_accounting(registry: Registry, accounting: Accounting) -> None:
    """Add what the clients of each API key use, and the lines that the access log has lost."""
    log, table = accounting.log, accounting.table
    if log is not None:
        text = "Lines of the access log that were lost because they could not be written fast enough"
        registry.add_callback("naiad_access_log_lost_total", "counter", text, lambda: log.lost_count)
    if table is None:
        return
    registry.add_family(
        "naiad_key_requests_total",
        "counter",
        "Admitted requests by API key; each message of a stream is one",
        lambda: [({"key": usage.name}, usage.request_count) for usage in table.usages()],
    )
    registry.add_family(
        "naiad_key_bytes_total", "counter", "Bytes of bodies and messages by API key", lambda: _key_bytes(table)
    )
    registry.add_family(
        "naiad_key_limited_total",
        "counter",
        "Requests that were refused because their API key had reached a limit",
        lambda: _key_limited(table),
    )
    registry.add_family(
        "naiad_key_in_flight",
        "gauge",
        "Requests without a response by API key",
        lambda: [({"key": usage.name}, usage.in_flight) for usage in table.usages()],
    )


def _key_bytes(table: KeyTable) -> Iterator[Row]:
    for usage in table.usages():
        yield {"key": usage.name, "direction": "in"}, usage.bytes_in
        yield {"key": usage.name, "direction": "out"}, usage.bytes_out


def _key_limited(table: KeyTable) -> Iterator[Row]:
    for usage in table.usages():
        for limit, count in usage.limited_counts.items():
            yield {"key": usage.name, "limit": limit}, count


def show_connections(registry: Registry, endpoints: Sequence[Service]) -> None:
    """Add the gauge of open connections: a row for each port, by the prefix of its flags."""
    registry.add_family(
        "naiad_connections",
        "gauge",
        "Open connections",
        lambda: [({"port": endpoint.flag}, endpoint.connections.connection_count) for endpoint in endpoints],
    )


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
        registry.add_family(name, "gauge", text, partial(_resource_rows, resources, field))
    return resources


def measured_amounts(amounts: Sequence[ResourceAmount]) -> Sequence[ResourceAmount]:
    """Return the amounts with `auto` replaced by the machine's values."""
    return [replace(amount, count=_measure(amount.name)) if amount.count is None else amount for amount in amounts]


def _measure(name: str) -> int:
    if name == "cpu":
        return usable_cores()
    memory = read_memory()
    return 0 if memory is None else memory.total_bytes >> 20


def _resource_rows(resources: Resources, field: str) -> Iterator[Row]:
    for usage in resources.usage():
        device = "" if usage.resource.device is None else str(usage.resource.device)
        yield {"resource": usage.resource.name, "device": device}, getattr(usage, field)

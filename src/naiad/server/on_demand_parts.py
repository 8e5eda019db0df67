"""Models on demand in a server: its options, resolved for one process, and its metrics."""

from collections.abc import Iterator
from typing import Any

from naiad.backend.cores import usable_cores
from naiad.config.load_policy import LoadPolicy
from naiad.core.limits.request_limits import RequestBudget
from naiad.core.model import ModelKey, name_of
from naiad.engine.on_demand.held_requests import HeldRequests, HoldLimits
from naiad.engine.serving.served import Served
from naiad.options.on_demand_options import budget_bytes
from naiad.options.options import ServerOptions
from naiad.repository.control.on_demand.on_demand_models import OnDemandModels
from naiad.repository.control.on_demand.on_demand_settings import OnDemandSettings, VersionUse
from naiad.server.process.memory import usable_memory_bytes
from naiad.telemetry.metrics.exposition import Row
from naiad.telemetry.metrics.metrics import Registry

_HELD_SHARE = 2
"""Held requests have at most half of the request budget, the held requests of one model half of that."""


def on_demand_settings(options: ServerOptions) -> OnDemandSettings:
    """Return the settings of this process; with several each has an equal part of the budget."""
    own = options.on_demand
    return OnDemandSettings(
        LoadPolicy(own.is_default, own.idle_unload_s, own.min_residence_s),
        budget_bytes(own.memory_budget, usable_memory_bytes()) // options.process_count,
        own.hold_s,
        options.repository.load_thread_count,
        usable_cores(),
    )


def hold_limits(options: ServerOptions, budget: RequestBudget) -> HoldLimits:
    """Return the bounds of held requests."""
    own = options.on_demand
    held_bytes = budget.limit_bytes // _HELD_SHARE
    return HoldLimits(own.max_held, own.max_held_of_model, held_bytes, held_bytes // _HELD_SHARE, own.hold_s)


def version_use(served: Served) -> VersionUse:
    """Return how a version is used now."""
    in_flight_count = served.in_flight_count
    return VersionUse(
        served.statistics.last_use_ns / 1e9,
        in_flight_count,
        bool(served.live_sequence_count or (served.is_decoupled and in_flight_count)),
        [process_id for instance in served.instances for process_id in instance.process_ids],
    )


def show_on_demand(registry: Registry, models: OnDemandModels[Any], held: HeldRequests) -> None:
    """Add the metrics of models on demand."""

    def phases() -> Iterator[Row]:
        for phase, count in models.counts().items():
            yield {"state": phase}, count

    def sizes() -> Iterator[Row]:
        for size in models.sizes():
            namespace = {"namespace": size.key.namespace} if isinstance(size.key, ModelKey) else {}
            yield {"model": name_of(size.key), **namespace}, size.size_bytes

    registry.add_family("naiad_on_demand_models", "gauge", "Models on demand, by their state", phases)
    registry.add_family("naiad_on_demand_model_bytes", "gauge", "Measured memory of loaded models on demand", sizes)
    for name, text, read in (
        ("naiad_on_demand_budget_bytes", "Memory of models on demand; 0: no limit", lambda: models.budget_bytes),
        ("naiad_on_demand_used_bytes", "Memory that models on demand take", lambda: models.used_bytes),
        ("naiad_held_requests", "Requests that wait for their model to be loaded", lambda: held.count),
        ("naiad_held_request_bytes", "Bytes of the requests that wait for their model", lambda: held.size_bytes),
    ):
        registry.add_callback(name, "gauge", text, read)
    for name, text, read in (
        ("naiad_on_demand_loads_total", "Loads by requests", lambda: models.load_count),
        ("naiad_on_demand_load_failures_total", "Loads by requests that failed", lambda: models.failure_count),
        ("naiad_on_demand_evictions_total", "Unloads of models on demand", lambda: models.eviction_count),
        ("naiad_on_demand_reloads_total", "Loads less than 30 s after an eviction", lambda: models.reload_count),
        ("naiad_held_requests_total", "Requests that have waited for their model", lambda: held.total_count),
        ("naiad_held_rejections_total", "Requests that could not wait: too many did", lambda: held.rejected_count),
    ):
        registry.add_callback(name, "counter", text, read)

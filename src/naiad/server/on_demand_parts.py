"""Models on demand in a server: its options, resolved for one process, and its metrics."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

from naiad.backend.cores import gpu_count, usable_cores
from naiad.config.load_policy import LoadPolicy
from naiad.core.errors import invalid_argument
from naiad.core.limits.request_limits import RequestBudget
from naiad.core.model import ModelKey, name_of
from naiad.engine.on_demand.held_requests import HeldRequests, HoldLimits
from naiad.engine.serving.served import Served
from naiad.options.on_demand_options import budget_bytes, gpu_budget_bytes
from naiad.options.options import ServerOptions
from naiad.repository.control.on_demand.memory.budgets import HOST, gpu_budget, gpu_number
from naiad.repository.control.on_demand.memory.device_meter import DeviceMeter, GpuReader
from naiad.repository.control.on_demand.on_demand_models import OnDemandModels
from naiad.repository.control.on_demand.on_demand_settings import OnDemandSettings, VersionUse
from naiad.server.process.memory import usable_memory_bytes
from naiad.telemetry.metrics.exposition import Row
from naiad.telemetry.metrics.gpu_memory import GpuMemoryReader
from naiad.telemetry.metrics.gpus import NvmlError
from naiad.telemetry.metrics.metrics import Registry

_log = logging.getLogger(__name__)
_HELD_SHARE = 2
"""Held requests have at most half of the request budget, the held requests of one model half of that."""


def on_demand_settings(
    options: ServerOptions, open_gpus: Callable[[], GpuReader] = GpuMemoryReader
) -> OnDemandSettings:
    """Return the settings of this process; with several each has an equal part of the budgets.

    Raises InferError for a budget of a GPU that is not there or cannot be measured.
    """
    own = options.on_demand
    reader, gpus = _gpu_budgets(own.gpu_memory_budget, open_gpus)
    budgets = {HOST: budget_bytes(own.memory_budget, usable_memory_bytes()), **gpus}
    return OnDemandSettings(
        LoadPolicy(own.is_default, own.idle_unload_s, own.min_residence_s),
        # 0 would be no limit.
        {budget: max(1, size // options.process_count) for budget, size in budgets.items() if size},
        own.hold_s,
        options.repository.load_thread_count,
        usable_cores(),
        DeviceMeter(reader, gpus),
    )


def _gpu_budgets(text: str, open_gpus: Callable[[], GpuReader]) -> tuple[GpuReader | None, dict[str, int]]:
    """Return what measures GPUs and the budgets of those that have one. Raises InferError."""
    reader: GpuReader | None = None
    totals: dict[int, int] = {}
    if text and gpu_count():
        try:
            reader = open_gpus()
            totals = {number: memory.total_bytes for number, memory in reader.read().items()}
        except NvmlError as error:
            raise invalid_argument(f"--model-gpu-memory-budget={text}: memory cannot be measured: {error}") from None
    elif text:
        _log.warning("--model-gpu-memory-budget has no effect: no GPU was found")
    try:
        found = gpu_budget_bytes(text, totals)
    except ValueError as error:
        raise invalid_argument(f"--model-gpu-memory-budget: {error}") from None
    return reader, {gpu_budget(number): size_bytes for number, size_bytes in found.items()}


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
        max((instance.mapped_bytes for instance in served.instances), default=0),
    )


def show_on_demand(registry: Registry, models: OnDemandModels[Any], held: HeldRequests) -> None:
    """Add the metrics of models on demand."""

    def phases() -> Iterator[Row]:
        for phase, count in models.counts().items():
            yield {"state": phase}, count

    def sizes() -> Iterator[Row]:
        for size in models.sizes():
            yield _model_labels(size.key), size.amounts.get(HOST, 0)

    registry.add_family("naiad_on_demand_models", "gauge", "Models on demand, by their state", phases)
    registry.add_family("naiad_on_demand_model_bytes", "gauge", "Measured memory of loaded models on demand", sizes)
    _show_gpus(registry, models)
    for name, text, read in (
        (
            "naiad_on_demand_budget_bytes",
            "Memory of models on demand; 0: no limit",
            lambda: models.budgets.get(HOST, 0),
        ),
        ("naiad_on_demand_used_bytes", "Memory that models on demand take", lambda: models.used.get(HOST, 0)),
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


def _show_gpus(registry: Registry, models: OnDemandModels[Any]) -> None:
    """Add the metrics of the GPUs that have a budget; none where no GPU has one."""
    gpus = {budget: {"gpu": str(number)} for budget in models.budgets if (number := gpu_number(budget)) is not None}
    if not gpus:
        return

    def budgets() -> Iterator[Row]:
        for budget, labels in gpus.items():
            yield labels, models.budgets[budget]

    def used() -> Iterator[Row]:
        amounts = models.used
        for budget, labels in gpus.items():
            yield labels, amounts.get(budget, 0)

    def sizes() -> Iterator[Row]:
        for size in models.sizes():
            for budget, labels in gpus.items():
                if size.amounts.get(budget, 0):
                    yield {**_model_labels(size.key), **labels}, size.amounts[budget]

    name = "naiad_on_demand_gpu"
    registry.add_family(f"{name}_budget_bytes", "gauge", "Memory of a GPU for models on demand", budgets)
    registry.add_family(f"{name}_used_bytes", "gauge", "Memory of a GPU that models on demand take", used)
    registry.add_family(f"{name}_model_bytes", "gauge", "Memory of a GPU of loaded models on demand", sizes)


def _model_labels(key: str) -> dict[str, str]:
    namespace = {"namespace": key.namespace} if isinstance(key, ModelKey) else {}
    return {"model": name_of(key), **namespace}

"""The rate limiter of the server: the resources of the machine and their use, as metrics."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

from naiad.backend.cores import usable_cores
from naiad.engine.resources import Resources
from naiad.options.limits import RateLimitOptions, ResourceAmount
from naiad.telemetry.metrics.exposition import format_family, format_labels
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.process import read_memory

_FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("naiad_rate_limiter_limit", "Amount of a resource", "limit"),
    ("naiad_rate_limiter_held", "Amount of a resource that executions use", "held"),
    ("naiad_rate_limiter_waiting", "Instances that wait to execute and need the resource", "waiting"),
)


def open_resources(options: RateLimitOptions, registry: Registry) -> Resources | None:
    """Return the resources that instances share, with their metrics; None if the rate limiter is off."""
    if not options.is_on:
        return None
    resources = Resources(measured_amounts(options.resources))
    for name, text, field in _FAMILIES:
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

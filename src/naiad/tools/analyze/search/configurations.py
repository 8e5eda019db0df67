"""The configurations of a space: a variant of each model, the loads that suit it, and how simple it is."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import orjson

from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.analyze.search.search_settings import SearchSettings
from naiad.tools.analyze.space import Point, Space, Variant

Configuration: TypeAlias = tuple[Variant, ...]
"""A variant of each model that varies."""

MAX_CONFIGURATIONS = 100_000


@dataclass(frozen=True, slots=True)
class SearchLoad:
    """What is sent to a configuration."""

    concurrency: int = 0
    request_rate: float = 0.0
    batch_size: int = 1

    def of(self, configuration: Configuration) -> Point:
        """Return the point of a configuration under this load."""
        return Point(configuration, self.concurrency, self.request_rate, self.batch_size)


def configuration_key(configuration: Configuration) -> str:
    """Identify a configuration, independent of its load."""
    return Point(configuration).key


def repository_configuration(space: Space) -> Configuration:
    """Return the configuration of the repository."""
    return tuple(
        next(
            (each for each in variants if not each.settings and not each.source_model),
            Variant(model, f"{model}_config_default", {}),
        )
        for model, variants in space.variants.items()
    )


def configurations(space: Space) -> list[Configuration]:
    """Return all combinations of the variants of the models, the configuration of the repository first.

    Raises ValueError for more than `MAX_CONFIGURATIONS`.
    """
    count = math.prod(len(variants) for variants in space.variants.values())
    if count > MAX_CONFIGURATIONS:
        raise ValueError(
            f"the models have {count} combinations of variants, over {MAX_CONFIGURATIONS}; "
            "search fewer values or fewer models at once, or use the mode 'quick' or 'optuna'"
        )
    first = repository_configuration(space)
    rest = [each for each in product(*space.variants.values()) if each != first]
    return [first, *rest]


def number(variant: Variant, field: str, settings: SearchSettings, default: int = 1) -> int:
    """Return an integer of the configuration of a variant: its setting, or what the repository has."""
    configured = settings.configured.get(variant.model, {}).get(field)
    value = variant.settings.get(field, _from_json(variant.config_json, field) if variant.config_json else configured)
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else default


def _from_json(config_json: str, field: str) -> int | None:
    config = orjson.loads(config_json)
    if field == "instance_group.count":
        groups = config.get("instance_group", [])
        return sum(int(each.get("count", 1) or 1) for each in groups) or None
    value = config.get(field)
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else None


def takes(configuration: Configuration, batch_size: int, settings: SearchSettings) -> bool:
    """Whether all models of a configuration take requests of that many rows."""
    return all(batch_size <= max(1, number(each, "max_batch_size", settings, 0)) for each in configuration)


def saturating_concurrency(configuration: Configuration, settings: SearchSettings) -> int:
    """Return Model Analyzer's concurrency: two batches for each instance; of several models, the greatest."""
    wanted = (
        2 * max(1, number(each, "max_batch_size", settings)) * max(1, number(each, "instance_group.count", settings))
        for each in configuration
    )
    return min(max(max(wanted, default=2), settings.min_concurrency), settings.max_concurrency)


def saturating_loads(space: Space, configuration: Configuration, settings: SearchSettings) -> list[SearchLoad]:
    """Return the load of `quick` and `optuna` for each batch size: that of the user where there is one."""
    if space.request_rates or space.concurrencies:
        return [loads[-1] for loads in load_lists(space, settings)]
    concurrency = saturating_concurrency(configuration, settings)
    return [SearchLoad(max(1, concurrency // size), batch_size=size) for size in space.batch_sizes]


def load_lists(space: Space, settings: SearchSettings) -> list[list[SearchLoad]]:
    """Return for each batch size the loads in ascending order: the loads of the user, or doubled concurrencies."""
    if space.request_rates:
        return [[SearchLoad(0, rate, size) for rate in sorted(space.request_rates)] for size in space.batch_sizes]
    concurrencies = sorted(space.concurrencies) or list(_doubled(settings.min_concurrency, settings.max_concurrency))
    return [[SearchLoad(each, batch_size=size) for each in concurrencies] for size in space.batch_sizes]


def useful_loads(space: Space, configuration: Configuration, settings: SearchSettings) -> list[SearchLoad]:
    """Return the loads up to saturation: more concurrency only lengthens the queue."""
    lists = load_lists(space, settings)
    if space.request_rates or space.concurrencies:
        return [load for loads in lists for load in loads]
    last = saturating_concurrency(configuration, settings)
    return [load for loads in lists for load in loads if load.concurrency * load.batch_size <= last]


def _doubled(first: int, last: int) -> Iterator[int]:
    value = max(1, first)
    while value <= last:
        yield value
        value *= 2


def complexity(measured: Measured, settings: SearchSettings) -> tuple[float, ...]:
    """Return what ties are decided by, the smallest first.

    Fewer changes from the configuration of the repository, fewer instances, smaller batches, less memory, less load.
    """
    point = measured.point
    memory = sum(
        metrics[name].value
        for metrics in measured.metrics.values()
        for name in ("cpu_used_ram", "gpu_used_memory")
        if name in metrics
    )
    return (
        sum(len(changes(each, settings)) for each in point.variants),
        sum(number(each, "instance_group.count", settings) for each in point.variants),
        sum(number(each, "max_batch_size", settings) for each in point.variants),
        memory,
        point.concurrency,
    )


def differing_fields(configuration: Configuration, other: Configuration) -> int:
    """Return in how many fields two configurations of the same models differ; a format counts as a field."""
    return sum(
        (mine.source_model != theirs.source_model)
        + sum(mine.settings.get(field) != theirs.settings.get(field) for field in {*mine.settings, *theirs.settings})
        for mine, theirs in zip(configuration, other, strict=True)
    )


def changes(variant: Variant, settings: SearchSettings) -> Mapping[str, Any]:
    """Return the settings of a variant that differ from the configuration of the repository."""
    configured = settings.configured.get(variant.model, {})
    found = {
        field: value
        for field, value in variant.settings.items()
        if field not in configured or str(configured[field]) != str(value)
    }
    return {"format": variant.source_model, **found} if variant.source_model else found

"""What is searched: variants of the configuration of each model, and loads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings in a line: `max_batch_size 8, instance_group.count 2`; a field that is left out is "none"."""
    return ", ".join(f"{name} {'none' if value is None else value}" for name, value in settings.items())


@dataclass(frozen=True, slots=True)
class Variant:
    """A configuration of one model."""

    model: str
    name: str
    """`MODEL_config_default`, `MODEL_config_0`, ... as Model Analyzer's."""
    settings: Mapping[str, Any]
    """What differs from the configuration of the repository: field, or `parameters.KEY`, to value in JSON form."""
    config_json: str = ""
    """The complete configuration that the load request carries; "" for the one of the repository."""
    source_model: str = ""
    """The model of the repository that is loaded, where several formats of a model lie there; "" for `model`."""

    @property
    def summary(self) -> str:
        """Return the settings in a line, for tables: `max_batch_size 8, 2 instances, dynamic batching 100 us`."""
        return settings_text(self.settings) or "as configured"


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement that can be made: a variant of each model, under a load."""

    variants: tuple[Variant, ...]
    """One for each model that varies; the members of an ensemble are models of their own."""
    concurrency: int = 0
    request_rate: float = 0.0
    """Requests/s; 0 for a closed loop of `concurrency`."""
    batch_size: int = 1

    @property
    def load(self) -> str:
        """Return the load in words: `concurrency 8, batch 2`."""
        load = f"{self.request_rate:g} requests/s" if self.request_rate else f"concurrency {self.concurrency}"
        return load if self.batch_size == 1 else f"{load}, batch {self.batch_size}"

    @property
    def key(self) -> str:
        """Identifies the point in checkpoints."""
        names = "+".join(f"{each.name}:{sorted(each.settings.items())}" for each in self.variants)
        return f"{names}|c{self.concurrency}|r{self.request_rate:g}|b{self.batch_size}"


@dataclass(frozen=True, slots=True)
class Dimension:
    """A field of the configuration of a model, and its values in ascending cost."""

    model: str
    field: str
    """`max_batch_size`, `instance_group.count`, `dynamic_batching.preferred_batch_size`, `parameters.KEY`, ..."""
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """Everything a search may measure."""

    models: tuple[str, ...]
    """The models under load; requests go to them."""
    dimensions: tuple[Dimension, ...]
    concurrencies: tuple[int, ...] = ()
    request_rates: tuple[float, ...] = ()
    batch_sizes: tuple[int, ...] = (1,)
    variants: Mapping[str, Sequence[Variant]] = field(default_factory=dict)
    """By model, where the user lists variants by hand; otherwise all combinations of `dimensions`."""

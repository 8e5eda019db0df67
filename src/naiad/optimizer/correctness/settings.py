"""How a candidate is judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from naiad.core.tensor import Array
from naiad.optimizer.candidate import Precision
from naiad.optimizer.correctness.tolerances import Kind, default_tolerance, detect_kind
from naiad.optimizer.source import Labels
from naiad.optimizer.verdict import Tolerance

Metric = str | Callable[[Array, Array], float]
"""`accuracy`, `top5`, `f1` (macro average), `mse`, or a function of predictions and labels, more is better."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a candidate may lose of a metric, in place of tolerances for values."""

    metric: Metric
    max_drop: float
    """In points of the metric, 0.005 for half a percent of accuracy. Of `mse`, the rise as a share."""
    labels: Labels


@dataclass(frozen=True, slots=True)
class Settings:
    """Choices of the user; what is left out comes from the precision and the values of the source."""

    has_batch: bool = True
    """The first dimension of all tensors counts samples."""
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    """By output."""
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    """By output."""
    budget: Budget | None = None
    behaviour_samples: int = 8
    """Samples of the checks of batches, concurrency and order, the first ones; these are held in memory."""

    def kind_of(self, name: str, output: Array) -> Kind:
        """Return the kind of an output of the source."""
        return self.kinds.get(name) or detect_kind(output)

    def tolerance_of(self, name: str, kind: Kind, precision: Precision) -> Tolerance:
        """Return the tolerance of an output."""
        return self.tolerances.get(name) or default_tolerance(precision, kind)


def parse_max_drop(text: str) -> float:
    """Return `0.5%` or `0.005` as a share. Raises ValueError."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise ValueError(f"max-drop is '{text}'; write a share from 0 to 1, for example 0.005 or 0.5%")
    return value

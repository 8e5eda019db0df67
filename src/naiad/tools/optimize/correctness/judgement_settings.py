"""How a candidate is judged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from naiad.core.tensor import Array
from naiad.tools.optimize.candidate import Precision
from naiad.tools.optimize.correctness.scores.tolerances import Kind, default_tolerance, detect_kind
from naiad.tools.optimize.optimize_source import Labels
from naiad.tools.optimize.results.verdict import Tolerance

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
    """Samples of the checks of batches, concurrency and order, from all parts of the data; held in memory."""

    behaviour_batches: Sequence[int] = (1, 2, 3, 4, 5, 8, 16)
    """Rows of the batches that are tried always, as far as the model takes them, and the greatest that it takes."""
    other_batches_s: float = 10.0
    """Time for batches of all other sizes; the report names those that were not tried."""
    are_probed: bool = True
    """Whether inputs that the samples do not have are tried, with the source's answers as the truth."""

    variable_axes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By input, the axes of a sample whose length the source leaves open."""
    compares_inputs: bool = False
    """Whether the source compares the numbers of its inputs as they are given, in FP32, as trees of XGBoost do."""

    def kind_of(self, name: str, output: Array) -> Kind:
        """Return the kind of an output of the source."""
        return self.kinds.get(name) or detect_kind(output)

    def has_exact_classes(self, name: str) -> bool:
        """Return whether the user has allowed no difference of numbers of an output: it may be one of classes."""
        given = self.tolerances.get(name)
        return given is None or given.absolute == given.relative == 0

    def tolerance_of(
        self, name: str, kind: Kind, precision: Precision, *, is_double: bool = False, step: float = 0.0
    ) -> Tolerance:
        """Return the tolerance of an output; `is_double` and `step` as in `default_tolerance`."""
        return self.tolerances.get(name) or default_tolerance(precision, kind, is_double=is_double, step=step)


def parse_max_drop(text: str) -> float:
    """Return `0.5%` or `0.005` as a share. Raises ValueError."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise ValueError(f"max-drop is '{text}'; write a share from 0 to 1, for example 0.005 or 0.5%")
    return value

"""What the user chooses of a search, and what a search reports while it runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from naiad.analyze.measurement import Measured


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Defaults are Model Analyzer's, where it has them."""

    seconds: float = 1.0
    """Of load for each measurement."""
    top: int = 3
    """Configurations whose load is refined, and that are measured again until their scores differ clearly."""
    min_concurrency: int = 1
    max_concurrency: int = 1024
    """Of the loads, where the space has none."""
    binary_search_steps: int = 5
    """Loads tried between the last one within the constraints and the first one outside."""
    rounds: int = 4
    """Interleaved measurements of the best configurations, at most."""
    budget_percent: float = 10.0
    """Measurements of `predict`, as a share of the points of the grid."""
    min_measurements: int = 10
    max_measurements: int = 40
    """Of `predict`, for any share."""
    optuna_min_percent: float = 5.0
    optuna_max_percent: float = 10.0
    """Trials, as a share of the space; the trials below limit them."""
    optuna_min_trials: int = 20
    optuna_max_trials: int = 200
    optuna_early_exit: int = 10
    """Trials without a better one that end the search."""
    seed: int = 0
    """Of Optuna's sampler."""
    configured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By model, the values that the configuration of the repository has for the fields that are varied."""


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Where a search stands."""

    phase: str
    """What is done, in words."""
    done: int
    expected: int
    """Measurements in all, as far as they are known."""
    remaining_s: float
    latest: Measured | None = None


ProgressCallback: TypeAlias = Callable[[SearchProgress], None]

"""What the user chooses of a search, and what a search reports while it runs."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from naiad.tools.analyze.point_measurement import Measured


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
    """Turns of the comparison, at most."""
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
    time_limit_s: float = 0.0
    """Of the whole search; 0 for none."""
    clock_s: Callable[[], float] = time.monotonic
    """Measures the time of the search."""
    configured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By model, the values that the configuration of the repository has for the fields that are varied."""


MIN_TURNS = 2
"""Turns of a comparison, at least."""
BESIDE_S = 3.0
"""Time that a measurement takes beside its load at first: the variant loads, and predictions follow."""
_SHORTEST_S = 1.0
"""Shortest measurement that a time limit leads to."""


def within(settings: SearchSettings, time_limit_s: float) -> SearchSettings:
    """Return the settings for a search of a limited time: shorter measurements if the least number would not fit.

    That is the least number of the search, two turns over the best and the configuration of the repository, and one
    measurement for the drift.
    """
    least = settings.min_measurements + MIN_TURNS * (settings.top + 1) + 1
    fitting_s = time_limit_s / least - BESIDE_S
    seconds = min(settings.seconds, max(_SHORTEST_S, fitting_s))
    return replace(settings, seconds=seconds, time_limit_s=time_limit_s)


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Where a search stands."""

    phase: str
    """What is done, in words."""
    done: int
    expected: int
    """Measurements in all, as far as they are known."""
    remaining_s: float
    """0 where it is not known."""
    latest: Measured | None = None
    is_at_most: bool = False
    """The search may be shorter than `expected` and `remaining_s` say."""


ProgressCallback: TypeAlias = Callable[[SearchProgress], None]

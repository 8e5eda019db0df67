"""Model Analyzer's `optuna`: the sampler of the library chooses the configurations."""

import math
from collections.abc import Sequence
from typing import Any

from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.analyze.search.best_comparison import best_points
from naiad.tools.analyze.search.configurations import saturating_loads
from naiad.tools.analyze.search.goal_score import gain, miss_share
from naiad.tools.analyze.search.modes.brute import refine_best
from naiad.tools.analyze.search.modes.grid import Grid
from naiad.tools.analyze.search.modes.load_search import sweep
from naiad.tools.analyze.search.survey import Survey

_OUTSIDE = -2.0
"""Less than any gain: the score of a trial that misses constraints, less what it misses."""
_MOST_MISSED = 7.0
_NO_MEASUREMENT = -10.0


class OptunaMissingError(Exception):
    """The library is not installed."""


async def optuna(survey: Survey) -> None:
    """Measure what the sampler suggests, then sweep the loads of the best.

    Raises ServerLostError and OptunaMissingError.
    """
    library = _library()
    grid = Grid(survey.space, survey.settings)
    least, most = _trials(survey, math.prod(grid.sizes))
    study = library.create_study(direction="maximize", sampler=library.samplers.TPESampler(seed=survey.settings.seed))
    baseline = best_points(survey)
    best, since_best = 0.0, 0
    for number in range(1, most + 1):
        survey.phase = f"trial {number} of {most} at most"
        trial = study.ask()
        coordinate = tuple(
            trial.suggest_int(name, 0, size - 1) for name, size in zip(grid.names, grid.sizes, strict=True)
        )
        configuration = grid.configuration(coordinate)
        score = _NO_MEASUREMENT
        if configuration is not None:
            for load in saturating_loads(survey.space, configuration, survey.settings):
                score = max(score, _score(survey, await survey.measure(load.of(configuration)), baseline[:1]))
        study.tell(trial, score)
        since_best = 0 if score > best else since_best + 1
        best = max(best, score)
        if number >= least and since_best >= survey.settings.optuna_early_exit:
            break
    survey.phase = "loads of the best configurations"
    for each in best_points(survey)[: survey.settings.top]:
        await sweep(survey, each.point.variants)
    await refine_best(survey)


def _library() -> Any:
    try:
        import optuna
    except ImportError:
        raise OptunaMissingError("the mode 'optuna' needs the library: pip install 'naiad[optuna]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _trials(survey: Survey, size: int) -> tuple[int, int]:
    """Return the least and the greatest number of trials for a space of `size` configurations."""
    settings = survey.settings
    least = max(settings.optuna_min_trials, round(size * settings.optuna_min_percent / 100))
    most = min(settings.optuna_max_trials, round(size * settings.optuna_max_percent / 100))
    return min(least, size, settings.optuna_max_trials), min(max(least, most), size, settings.optuna_max_trials)


def _score(survey: Survey, measured: Measured, baseline: Sequence[Measured]) -> float:
    """Return the gain over the configuration of the repository, whose score is 0."""
    if measured.error:
        return _NO_MEASUREMENT
    if not survey.meets(measured):
        return _OUTSIDE - min(miss_share(survey.goals, measured), _MOST_MISSED)
    return gain(survey.goals, measured, baseline[0]).value if baseline else 0.0

"""A whole search: the configuration of the repository, a mode, the comparison of the best, and the ranking."""

import asyncio
from dataclasses import replace
from types import MappingProxyType

from naiad.tools.analyze.point_measurement import Instrument, Ranking, ServerLostError
from naiad.tools.analyze.search.best_comparison import (
    best_points,
    check_drift,
    compare_best,
    expected_count,
    measure_baseline,
)
from naiad.tools.analyze.search.configurations import repository_configuration, saturating_loads
from naiad.tools.analyze.search.goal_score import Goals, is_near
from naiad.tools.analyze.search.modes.brute import brute
from naiad.tools.analyze.search.modes.forecast import Predictor
from naiad.tools.analyze.search.modes.optuna_mode import optuna
from naiad.tools.analyze.search.modes.predict import predict
from naiad.tools.analyze.search.modes.quick import quick
from naiad.tools.analyze.search.ranking import rank_all
from naiad.tools.analyze.search.search_checkpoint import SearchCheckpoint
from naiad.tools.analyze.search.search_settings import ProgressCallback, SearchSettings
from naiad.tools.analyze.search.survey import Survey, TimeLimitError
from naiad.tools.analyze.space import Space

MODES = ("predict", "brute", "quick", "optuna")
_MODES_WITHOUT_PREDICTION = MappingProxyType({"brute": brute, "quick": quick, "optuna": optuna})


async def search(
    mode: str,
    space: Space,
    goals: Goals,
    instrument: Instrument,
    settings: SearchSettings | None = None,
    *,
    predictor: Predictor | None = None,
    checkpoint: SearchCheckpoint | None = None,
    progress: ProgressCallback | None = None,
) -> Ranking:
    """Search a space, whose `variants` list all variants of each model, and return the ranking.

    A server that dies, the time limit and a cancellation of the task end the search with the ranking of what was
    measured; `restore` of the instrument is the caller's. `predictor` is needed by the mode `predict`. Raises
    ValueError for an unknown mode and for a space that is too large, OptunaMissingError, and OSError of the
    checkpoint.
    """
    if mode not in MODES:
        raise ValueError(f"unknown search mode '{mode}'; expected {', '.join(MODES)}")
    survey = Survey(space, goals, instrument, settings or SearchSettings(), checkpoint, progress)
    survey.expected_later = lambda: expected_count(survey) + 1  # One for the drift.
    ended, is_interrupted = "", False
    try:
        try:
            await _explore(mode, survey, predictor)
        except TimeLimitError:
            ended = _time_text(survey, "search")
        survey.may_end_early = False
        await _compare(survey)
    except ServerLostError as error:
        ended = f"The server was lost after {survey.count} measurements: {error}."
    except TimeLimitError:
        ended = ended or _time_text(survey, "comparison")
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        ended, is_interrupted = f"The search was interrupted after {survey.count} measurements.", True
    return replace(rank_all(survey, ended), is_interrupted=is_interrupted)


def _time_text(survey: Survey, stage: str) -> str:
    limit_s = survey.settings.time_limit_s
    return f"The time limit of {limit_s:.0f} s ended the {stage} after {survey.count} measurements."


async def _explore(mode: str, survey: Survey, predictor: Predictor | None) -> None:
    baseline = repository_configuration(survey.space)
    loads = saturating_loads(survey.space, baseline, survey.settings)
    await measure_baseline(survey, [load.of(baseline) for load in loads])
    if mode == "predict":
        if predictor is None:
            raise ValueError("the mode 'predict' needs a predictor")
        await predict(survey, predictor)
    else:
        await _MODES_WITHOUT_PREDICTION[mode](survey)


async def _compare(survey: Survey) -> None:
    """Measure the best and the configuration of the repository in turns; the time for it was kept."""
    survey.is_comparing = True
    survey.expected_later = int
    # Far from the constraints there is no best to compare.
    if any(is_near(survey.goals, each) for each in best_points(survey)):
        await compare_best(survey)
    await check_drift(survey)

"""A whole search: the configuration of the repository, a mode, the comparison of the best, and the ranking."""

import asyncio
from dataclasses import replace
from types import MappingProxyType

from naiad.analyze.measurement import Instrument, Ranking, ServerLostError
from naiad.analyze.search.checkpoint import Checkpoint
from naiad.analyze.search.configurations import repository_configuration, saturating_loads
from naiad.analyze.search.goal_score import Goals
from naiad.analyze.search.modes.brute import brute
from naiad.analyze.search.modes.forecast import Predictor
from naiad.analyze.search.modes.optuna_mode import optuna
from naiad.analyze.search.modes.predict import predict
from naiad.analyze.search.modes.quick import quick
from naiad.analyze.search.ranking import rank_all
from naiad.analyze.search.rejects import check_drift, measure_baseline, separate
from naiad.analyze.search.settings import ProgressCallback, SearchSettings
from naiad.analyze.search.survey import Survey, TimeLimitError
from naiad.analyze.space import Space

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
    checkpoint: Checkpoint | None = None,
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
    ended, is_interrupted = "", False
    try:
        await _run(mode, survey, predictor)
    except ServerLostError as error:
        ended = f"The server was lost after {survey.count} measurements: {error}."
    except TimeLimitError:
        limit_s = survey.settings.time_limit_s
        ended = f"The time limit of {limit_s:.0f} s ended the search after {survey.count} measurements."
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        ended, is_interrupted = f"The search was interrupted after {survey.count} measurements.", True
    return replace(rank_all(survey, ended), is_interrupted=is_interrupted)


async def _run(mode: str, survey: Survey, predictor: Predictor | None) -> None:
    baseline = repository_configuration(survey.space)
    loads = saturating_loads(survey.space, baseline, survey.settings)
    await measure_baseline(survey, [load.of(baseline) for load in loads])
    if mode == "predict":
        if predictor is None:
            raise ValueError("the mode 'predict' needs a predictor")
        await predict(survey, predictor)
    else:
        await _MODES_WITHOUT_PREDICTION[mode](survey)
        survey.phase = "comparison of the best"
        await separate(survey, survey.settings.rounds * survey.settings.top)
    survey.expected = survey.count + 1
    await check_drift(survey)

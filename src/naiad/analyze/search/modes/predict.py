"""naiad's own mode: fit costs to a few measurements, simulate all points, measure the promising ones."""

import asyncio
from collections.abc import Sequence

from naiad.analyze.measurement import Measured
from naiad.analyze.search.configurations import Configuration, configurations, useful_loads
from naiad.analyze.search.goal_score import rank
from naiad.analyze.search.modes.forecast import Forecast, Forecaster, Predictor
from naiad.analyze.search.modes.quick import quick
from naiad.analyze.search.rejects import best_points, separate
from naiad.analyze.search.settings import SearchSettings
from naiad.analyze.search.survey import Survey

_PLANNED_SHARE = 0.4
"""Of the budget, for the measurements that the model is fitted to."""
_SHORTLIST = 10
"""Configurations that are predicted again, and whose load is refined, after each fit."""
_SPARED = 2
"""Of the least number of measurements, for the best again and for the drift; the other ones are used up."""
_PROMISING = 0.02
"""Gain over the best measurement above which a predicted point is measured."""


async def predict(survey: Survey, predictor: Predictor) -> None:
    """Measure the points that are predicted to be the best, and these again until the best is known.

    Raises ServerLostError, and ValueError for a space that is too large.
    """
    everything = configurations(survey.space)
    # One is for the drift, at the end.
    budget = measurement_budget(survey, everything) - 1
    survey.expected = budget + 1
    survey.phase = "measurements that predictions start from"
    planned = round(budget * _PLANNED_SHARE)
    for point in predictor.plan(survey.space, planned)[:planned]:
        if survey.count < budget:
            await survey.measure(point)
    exploration = _Exploration(survey, predictor, everything)
    limit = budget - _reserve(survey.settings, budget)
    before = -1
    while before < survey.count < budget:
        before = survey.count
        # A contender that fell outside the constraints is replaced by another load, or another configuration.
        await exploration.measure_promising(max(limit, survey.count + 1))
        if not survey.predictions:
            # The server has no statistics, or everything failed: climb by measurements alone.
            await quick(survey)
            return
        survey.phase = "comparison of the best"
        await separate(survey, budget - survey.count)


def measurement_budget(survey: Survey, everything: Sequence[Configuration]) -> int:
    """Return the number of measurements: a share of the points of the grid, within limits."""
    settings = survey.settings
    points = sum(len(useful_loads(survey.space, each, settings)) for each in everything)
    share = int(points * settings.budget_percent / 100)
    return max(settings.min_measurements, min(share, settings.max_measurements))


def _reserve(settings: SearchSettings, budget: int) -> int:
    """Return the measurements that are kept for the comparison of the best."""
    return min(2 * settings.top + 1, budget // 3)


class _Exploration:
    """Finds the points that are worth a measurement, with a fit that takes each measurement into account."""

    def __init__(self, survey: Survey, predictor: Predictor, everything: Sequence[Configuration]) -> None:
        self._survey = survey
        self._predictor = predictor
        self._ordered = everything
        """By prediction, the best first, after the first pass."""
        self._is_first = True

    async def measure_promising(self, limit: int) -> None:
        """Measure promising points until there is none, or there are `limit` measurements in all."""
        survey = self._survey
        while survey.count < limit and survey.usable:
            wanted = await self._promising()
            survey.phase = "the most promising configurations"
            for each in wanted[: survey.settings.top if self._is_first else 1]:
                if survey.count < limit:
                    await survey.measure(each.figures.point)
            self._is_first = False
            if not wanted:
                return

    async def _promising(self) -> list[Forecast]:
        """Return forecasts of points that are not measured yet, the best first."""
        survey = self._survey
        forecaster = Forecaster(survey, self._predictor)
        usable = [each for each in self._ordered if not survey.has_failed(each)]
        shortlist = usable if self._is_first else usable[:_SHORTLIST]
        found: list[Forecast] = []
        for number, configuration in enumerate(shortlist, 1):
            survey.enter(f"prediction of configuration {number} of {len(shortlist)}")
            forecast = forecaster.best(configuration)
            found += [forecast] if forecast is not None else []
            # Simulations take a while; a cancellation and the terminal have their turn between them.
            await asyncio.sleep(0)
        ordered = _ordered(survey, found)
        refined: list[Forecast] = []
        for forecast in ordered[:_SHORTLIST]:
            refined.append(forecaster.refined(forecast))
            await asyncio.sleep(0)
        refined = _ordered(survey, refined)
        best = best_points(survey)[0]
        if self._is_first:
            survey.predictions = forecaster.predictions
            self._ordered = [each.figures.point.variants for each in ordered]
        wanted = [each for each in refined if not survey.repeats(each.figures.point)]
        if self._is_first or survey.count < survey.settings.min_measurements - _SPARED:
            return wanted
        return [each for each in wanted if _is_promising(survey, each, best)]


def _ordered(survey: Survey, forecasts: Sequence[Forecast]) -> list[Forecast]:
    if not forecasts:
        return []
    reference = forecasts[0].figures
    return sorted(forecasts, key=lambda each: rank(survey.goals, each.figures, reference), reverse=True)


def _is_promising(survey: Survey, forecast: Forecast, best: Measured) -> bool:
    missed, gained = rank(survey.goals, forecast.figures, best)
    best_missed, _ = rank(survey.goals, best, best)
    return missed > best_missed or (missed == best_missed and gained > _PROMISING)

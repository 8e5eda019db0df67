"""naiad's own mode: fit costs to a few measurements, simulate all points, measure the promising ones."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

from naiad.analyze.measurement import Measured
from naiad.analyze.search.configurations import (
    Configuration,
    configurations,
    differing_fields,
    saturating_loads,
    useful_loads,
)
from naiad.analyze.search.distance import Places, farthest
from naiad.analyze.search.goal_score import gain, misses, rank
from naiad.analyze.search.modes.forecast import Forecast, Forecaster, Predictor
from naiad.analyze.search.modes.quick import quick
from naiad.analyze.search.rejects import best_points, separate
from naiad.analyze.search.settings import SearchSettings
from naiad.analyze.search.survey import Survey
from naiad.analyze.space import Point

_PLANNED_SHARE = 0.4
"""Of the budget, for the measurements that the model is fitted to."""
_MOST_PREDICTED = 300
"""Configurations that are predicted at first: a simulation takes some 20 ms, and a configuration needs a few."""
_MOST_SPREAD = 2000
"""Configurations among which the first measurements are spread."""
_AGAIN = 50
"""Configurations that are predicted again after each measurement."""
_SHORTLIST = 10
"""Configurations whose load is refined by prediction."""
_UNKNOWN = 0.1
"""Gain that a configuration may have beyond its prediction, for each unit of distance from the measured ones."""
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
    planned = min(round(budget * _PLANNED_SHARE), budget)
    for point in predictor.plan(survey.space, 1)[:1]:
        await survey.measure(point)
    for point in _spread(survey, everything, planned - survey.count):
        if survey.count < planned:
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


def _spread(survey: Survey, everything: Sequence[Configuration], count: int) -> list[Point]:
    """Return points, each of a configuration that is as far as possible from all earlier ones."""
    places = Places(survey.space, survey.settings)
    some = everything[:: math.ceil(len(everything) / _MOST_SPREAD)]
    taken = [places.of(each.point.variants) for each in survey.measurements]
    found: list[Point] = []
    for number, index in enumerate(farthest([places.of(each) for each in some], taken, count)):
        loads = saturating_loads(survey.space, some[index], survey.settings)
        found.append(loads[number % len(loads)].of(some[index]))
    return found


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
            if wanted:
                await self._measure(wanted[0].figures.point, limit)
            self._is_first = False
            if not wanted:
                return

    async def _measure(self, point: Point, limit: int) -> None:
        """Measure a point; where the latency is over its limit, a load that fits the limit too."""
        survey = self._survey
        measured = await survey.measure(point)
        if measured.error or survey.count >= limit:
            return
        best = best_points(survey)[0]
        fitting = _fitting_load(survey, measured)
        if fitting is not None and (gain(survey.goals, measured, best).value > -_PROMISING):
            await survey.measure(fitting)

    async def _promising(self) -> list[Forecast]:
        """Return forecasts of points that are not measured yet, the best first."""
        survey = self._survey
        forecaster = Forecaster(survey, self._predictor)
        usable = [each for each in self._ordered if not survey.has_failed(each)]
        if self._is_first:
            stride = math.ceil(len(usable) / _MOST_PREDICTED)
            found = await self._forecasts(forecaster, usable[::stride])
            near = [each.figures.point.variants for each in found[:_SHORTLIST]]
            # Of a large space, what lies around the best of a part of it.
            rest = [each for each in usable if any(differing_fields(each, best) == 1 for best in near)]
            ordered = _ordered(survey, found + (await self._forecasts(forecaster, rest) if stride > 1 else []))
        else:
            ordered = await self._forecasts(forecaster, usable[:_AGAIN])
        refined: list[Forecast] = []
        for forecast in ordered[:_SHORTLIST]:
            refined.append(forecaster.refined(forecast))
            await asyncio.sleep(0)
        best = best_points(survey)[0]
        refined.sort(key=lambda each: _hope(survey, forecaster, each, best), reverse=True)
        if self._is_first:
            survey.predictions = forecaster.predictions
            self._ordered = [each.figures.point.variants for each in ordered]
        wanted = [each for each in refined if not survey.repeats(each.figures.point)]
        if self._is_first or survey.count < survey.settings.min_measurements - _SPARED:
            return wanted
        least = (rank(survey.goals, best, best)[0], _PROMISING)
        return [each for each in wanted if _hope(survey, forecaster, each, best) > least]

    async def _forecasts(self, forecaster: Forecaster, chosen: Sequence[Configuration]) -> list[Forecast]:
        """Return the forecasts of configurations, the best first; those that cannot be predicted are left out."""
        found: list[Forecast] = []
        for number, configuration in enumerate(chosen, 1):
            self._survey.enter(f"prediction of configuration {number} of {len(chosen)}")
            forecast = forecaster.best(configuration)
            found += [forecast] if forecast is not None else []
            # Simulations take a while; a cancellation and the terminal have their turn between them.
            await asyncio.sleep(0)
        return _ordered(self._survey, found)


def _fitting_load(survey: Survey, measured: Measured) -> Point | None:
    """Return the point with the concurrency at which the latency would be within its limit.

    In saturation latency is proportional to the concurrency (Little's law), for any prediction.
    """
    point = measured.point
    missed = misses(survey.goals, measured)
    late = [each for each in missed if each.metric.startswith("perf_latency") and each.value > each.bound]
    if not late or point.concurrency < 2 or survey.space.concurrencies:
        return None
    return replace(point, concurrency=max(1, int(point.concurrency * late[0].bound / late[0].value)))


def _ordered(survey: Survey, forecasts: Sequence[Forecast]) -> list[Forecast]:
    if not forecasts:
        return []
    reference = forecasts[0].figures
    return sorted(forecasts, key=lambda each: rank(survey.goals, each.figures, reference), reverse=True)


def _hope(survey: Survey, forecaster: Forecaster, forecast: Forecast, best: Measured) -> tuple[float, float]:
    """Return what a point is chosen by: its predicted rank, and more for what is far from all measurements."""
    missed, gained = rank(survey.goals, forecast.figures, best)
    return missed, gained + _UNKNOWN * forecaster.novelty(forecast.figures.point.variants)

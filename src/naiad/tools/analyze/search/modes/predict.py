"""naiad's own mode: fit costs to a few measurements, simulate all points, measure the promising ones."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.analyze.search.best_comparison import best_points
from naiad.tools.analyze.search.configurations import (
    Configuration,
    SearchLoad,
    configuration_key,
    configurations,
    differing_fields,
    repository_configuration,
    saturating_loads,
    useful_loads,
)
from naiad.tools.analyze.search.distance import Places, farthest
from naiad.tools.analyze.search.goal_score import gain, misses, rank
from naiad.tools.analyze.search.modes.forecast import Forecast, Forecaster, Predictor
from naiad.tools.analyze.search.modes.quick import quick
from naiad.tools.analyze.search.survey import Survey
from naiad.tools.analyze.space import Point

_AGAIN_SHARE = 6
"""The budget / the measurements that may be added where the best points fall outside the constraints."""
_MOST_PREDICTED = 300
"""Configurations that are predicted at first: a simulation takes some 20 ms, and a configuration needs a few."""
_MOST_SPREAD = 2000
"""Configurations among which the first measurements are spread."""
_AGAIN = 100
"""Configurations that are predicted again after each measurement."""
_AT_ONCE = 32
"""Configurations that are predicted before the time limit is looked at again: some seconds on one core."""
_SHORTLIST = 10
"""Configurations whose load is refined by prediction."""
_CONFIDENCE = 1.0
"""Standard deviations of its forecast that a configuration may be better."""
_SPARED = 2
"""Of the least number of measurements, for the best again and for the drift; the other ones are used up."""
_ENOUGH = 0.05
"""Gain over the best measurement that a point must perhaps have to be measured, after the least number."""
_MOST_REPEATS = 3
"""Measurements of a point, before the comparison of the best."""
_BASELINE_LOADS = 2
"""Loads of the repository's configuration that are tried, beyond the saturating one."""
_MOST_GAIN = 10
"""Throughput of a configuration / the best so far, at the beginning, when nothing else is known."""
_NEARLY = 0.02
"""Share that a measurement may be worse than the best, for which the load is adjusted to the limit of the latency."""


async def predict(survey: Survey, predictor: Predictor) -> None:
    """Measure the points that may be the best, until there is none or the budget is used up.

    Raises ServerLostError, TimeLimitError, and ValueError for a space that is too large.
    """
    everything = configurations(survey.space)
    budget = measurement_budget(survey, everything) - 1
    limit = budget - max(1, min(2 * survey.settings.top, budget // _AGAIN_SHARE))
    survey.expected = limit
    survey.phase = "measurements that predictions start from"
    first = [*predictor.plan(survey.space, 1)[:1], _farthest(survey, everything)]
    for point in first[: budget - survey.count]:
        await survey.measure(point)
    await _fit_baseline(survey)
    exploration = _Exploration(survey, predictor, everything)
    await exploration.measure_promising(limit)
    if not survey.predictions and survey.affordable:
        # The server has no statistics, or everything failed: climb by measurements alone.
        survey.expected = 0
        survey.may_end_early = False
        await quick(survey)
        return
    exploration.estimate()


async def _fit_baseline(survey: Survey) -> None:
    """Measure the configuration of the repository under a load that meets the limit of the latency.

    Gains are gains over it. Where its saturating load misses the limit, a lone client would be what they start from.
    """
    name = configuration_key(repository_configuration(survey.space))
    for _ in range(_BASELINE_LOADS):
        mine = [each for each in survey.usable if configuration_key(each.point.variants) == name]
        late = [each for each in mine if not survey.meets(each)]
        fitting = _fitting_load(survey, min(late, key=lambda each: each.point.concurrency)) if late else None
        if fitting is None or any(survey.meets(each) and each.point.concurrency > 1 for each in mine):
            return
        await survey.measure(fitting)


def _farthest(survey: Survey, everything: Sequence[Configuration]) -> Point:
    """Return a point of the configuration that is farthest from those that were measured."""
    places = Places(survey.space, survey.settings)
    some = everything[:: math.ceil(len(everything) / _MOST_SPREAD)]
    taken = [places.of(each.point.variants) for each in survey.measurements]
    index = (farthest([places.of(each) for each in some], taken, 1) or [0])[0]
    load = saturating_loads(survey.space, some[index], survey.settings)[0]
    return _within_reach(survey, load).of(some[index])


def _within_reach(survey: Survey, load: SearchLoad) -> SearchLoad:
    """Reduce a concurrency of the search to what might meet the limits of the latency (Little's law).

    A slow model would otherwise be measured for minutes under a load that is far beyond the limits.
    """
    limits_ms = [
        bound.maximum
        for goal in survey.goals.values()
        for metric, bound in goal.constraints.items()
        if metric.startswith("perf_latency") and bound.maximum
    ]
    if not (limits_ms and survey.usable and load.concurrency) or survey.space.concurrencies:
        return load
    rate_per_s = max(sum(row.throughput.value for row in each.rows.values()) for each in survey.usable)
    most = math.ceil(_MOST_GAIN * rate_per_s * min(limits_ms) / 1e3)
    return replace(load, concurrency=min(load.concurrency, max(2, most)))


def measurement_budget(survey: Survey, everything: Sequence[Configuration]) -> int:
    """Return the number of measurements: a share of the points of the grid, within limits."""
    settings = survey.settings
    points = sum(len(useful_loads(survey.space, each, settings)) for each in everything)
    share = int(points * settings.budget_percent / 100)
    return max(settings.min_measurements, min(share, settings.max_measurements))


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
        while survey.count < limit and survey.usable and survey.affordable:
            survey.may_end_early = limit > survey.settings.min_measurements - _SPARED
            wanted = await self._promising()
            survey.phase = "the most promising configurations"
            if wanted:
                await self._measure(wanted[0].figures.point, limit)
            self._is_first = False
            if not wanted:
                return

    def estimate(self) -> None:
        """Estimate the measured points with what is known of all others."""
        self._survey.estimates = Forecaster(self._survey, self._predictor).estimates()

    async def _measure(self, point: Point, limit: int) -> None:
        """Measure a point; where the latency is over its limit, a load that fits the limit too."""
        survey = self._survey
        measured = await survey.repeat(point)
        if measured.error or survey.count >= limit:
            return
        best = best_points(survey)[0]
        fitting = _fitting_load(survey, measured)
        if fitting is not None and (gain(survey.goals, measured, best).value > -_NEARLY):
            await survey.measure(fitting)

    async def _promising(self) -> list[Forecast]:
        """Return forecasts of the points that are worth a measurement, or another one, the best first."""
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
        refined = [each for each in refined if len(survey.repeats(each.figures.point)) < _MOST_REPEATS]
        if self._is_first or survey.count < survey.settings.min_measurements - _SPARED:
            return refined
        least = (rank(survey.goals, best, best)[0], _ENOUGH)
        return [each for each in refined if _hope(survey, forecaster, each, best) > least]

    async def _forecasts(self, forecaster: Forecaster, chosen: Sequence[Configuration]) -> list[Forecast]:
        """Return the forecasts of configurations, the best first; those that cannot be predicted are left out."""
        found: list[Forecast] = []
        number = 0
        self._survey.enter(f"prediction of {len(chosen)} configurations")
        for first in range(0, len(chosen), _AT_ONCE):
            if first and not self._survey.affordable:
                break  # Without time for a further measurement more forecasts are of no use.
            async for forecast in forecaster.best(chosen[first : first + _AT_ONCE]):
                number += 1
                self._survey.enter(f"prediction of configuration {number} of {len(chosen)}")
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
    """Return what a point is chosen by: the rank that it may have (an upper confidence bound)."""
    missed, gained = rank(survey.goals, forecast.figures, best)
    return missed, gained + _CONFIDENCE * forecaster.deviation(forecast.figures.point.variants)

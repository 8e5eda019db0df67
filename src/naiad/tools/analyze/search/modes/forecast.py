"""What predictions say about each configuration: its best load, and its figures as if they had been measured."""

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from naiad.tools.analyze.point_measurement import Measured, Prediction
from naiad.tools.analyze.search.configurations import Configuration, configuration_key, useful_loads
from naiad.tools.analyze.search.distance import Places
from naiad.tools.analyze.search.goal_score import miss_share, misses, rank
from naiad.tools.analyze.search.modes.error_model import ErrorModel
from naiad.tools.analyze.search.survey import Survey
from naiad.tools.analyze.space import Point, Space
from naiad.tools.measure.result import Interval

_LATENCY_MARGIN = 1.03
"""Predicted latencies are taken this much longer, since a limit that is just missed is missed."""

_FAR = 1.2
"""Times a limit of the latency: percentiles are not quite proportional to the mean."""
_LONGEST_US = 1e12
"""An overloaded server has no latency; gains need a number."""


class Predictor(Protocol):
    """Predicts points from a few measurements."""

    def plan(self, space: Space, budget: int) -> Sequence[Point]:
        """Return at most `budget` points whose measurements say most about all points."""

    def fit(self, measured: Sequence[Measured]) -> None:
        """Take measurements as what predictions start from, instead of earlier ones."""

    def predict(self, point: Point) -> Prediction | None:
        """Return what is expected of a point; None where the measurements say nothing about it."""

    async def prepare(self, points: Sequence[Point]) -> None:
        """Predict points that `predict` is going to be called for, at the same time where that is possible."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The best load of a configuration by prediction."""

    prediction: Prediction
    figures: Measured
    """The prediction, corrected by the measurements of the configuration, or of those near it."""


class Forecaster:
    """Predicts with what has been measured so far."""

    def __init__(self, survey: Survey, predictor: Predictor) -> None:
        predictor.fit(survey.usable)
        self._survey = survey
        self._predictor = predictor
        self._known: dict[str, Forecast | None] = {}
        self._expected_metrics: dict[int, Mapping[str, float]] = {}
        """By the identity of the measurements in `_measured`."""
        self._places = Places(survey.space, survey.settings)
        self._measured: dict[str, list[Measured]] = {}
        for each in survey.usable:
            self._measured.setdefault(configuration_key(each.point.variants), []).append(each)
        self._errors = ErrorModel(
            [self._places.of(each[0].point.variants) for each in self._measured.values()],
            [sum(one.repeats for one in each) for each in self._measured.values()],
        )

    def deviation(self, configuration: Configuration) -> float:
        """Return the standard deviation of the error of a forecast, as a share."""
        return self._errors.deviation(self._places.of(configuration))

    def estimates(self) -> dict[str, Measured]:
        """Return the forecasts of the measured points, by their keys."""
        forecasts = [self.forecast(each.point) for each in self._survey.usable]
        return {each.figures.point.key: each.figures for each in forecasts if each is not None}

    @property
    def predictions(self) -> list[Prediction]:
        """All predictions that were made."""
        return [each.prediction for each in self._known.values() if each is not None]

    async def best(self, configurations: Sequence[Configuration]) -> AsyncIterator[Forecast | None]:
        """Yield the forecast of the best load of each configuration, in the order in which they become known.

        None for a configuration that cannot be predicted. The next loads of all configurations are predicted at the
        same time.
        """
        climbs = [_Climb(self, self._loads(each)) for each in configurations]
        while climbs:
            await self._predictor.prepare([climb.wanted for climb in climbs if climb.wanted is not None])
            for climb in climbs:
                if climb.wanted is not None:
                    climb.take(self.forecast(climb.wanted))
                if climb.wanted is None:
                    yield climb.best
            climbs = [climb for climb in climbs if climb.wanted is not None]

    def _loads(self, configuration: Configuration) -> list[Point]:
        """Return a configuration under its useful loads, the greatest last."""
        loads = useful_loads(self._survey.space, configuration, self._survey.settings)
        return [load.of(configuration) for load in loads]

    def is_too_much(self, point: Point, above: Forecast) -> bool:
        """Whether a load misses a limit of the latency by far, judged by the forecast of a greater load.

        The latency is the concurrency / the throughput (Little's law), and less load brings no more throughput.
        """
        greater = above.figures.point
        if not point.concurrency or point.batch_size != greater.batch_size:
            return False
        share = point.concurrency / greater.concurrency
        return any(
            each.metric.startswith("perf_latency") and each.value * share > _FAR * each.bound
            for each in misses(self._survey.goals, above.figures)
        )

    def refined(self, forecast: Forecast) -> Forecast:
        """Return the forecast of the greatest load within the constraints, where twice the load is outside."""
        low = forecast.figures.point
        if self._misses(forecast) or not low.concurrency or self._survey.space.concurrencies:
            return forecast
        best, high = forecast, replace(low, concurrency=2 * low.concurrency)
        above = self.forecast(high)
        if above is None or not self._misses(above):
            return forecast
        for _ in range(self._survey.settings.binary_search_steps):
            middle = replace(low, concurrency=(low.concurrency + high.concurrency) // 2)
            if middle.concurrency == low.concurrency:
                break
            each = self.forecast(middle)
            if each is None:
                break
            low, high = (low, middle) if self._misses(each) else (middle, high)
            if self.is_better(each, best):
                best = each
        return best

    def forecast(self, point: Point) -> Forecast | None:
        """Return the forecast of a point; None where it cannot be predicted."""
        if point.key not in self._known:
            prediction = self._predictor.predict(point)
            self._known[point.key] = Forecast(prediction, self._figures(prediction)) if prediction else None
        return self._known[point.key]

    def _figures(self, prediction: Prediction) -> Measured:
        metrics = _metrics(prediction)
        key = configuration_key(prediction.point.variants)
        weights = self._errors.weights(self._places.of(prediction.point.variants))
        errors = [
            (float(weight), self._nearest_load(each, prediction.point))
            for weight, each in zip(weights, self._measured.values(), strict=True)
        ]
        share = 1 / max(1, len(self._survey.space.models))
        found: dict[str, Mapping[str, Interval]] = {}
        for model in self._survey.space.models:
            # What is not predicted, such as memory, is taken from the configuration at another load.
            known = self._measured[key][0].metrics.get(model, {}) if key in self._measured else {}
            values = {
                name: value * (share if name == "perf_throughput" else 1.0) * self._error(errors, model, name, share)
                for name, value in metrics.items()
            }
            found[model] = {**known, **{name: Interval(value, value, value) for name, value in values.items()}}
        return Measured(prediction.point, metrics=found)

    @staticmethod
    def _nearest_load(measured: Sequence[Measured], point: Point) -> Measured:
        return min(measured, key=lambda each: _load_distance(each.point, point))

    def _error(self, measured: Sequence[tuple[float, Measured]], model: str, name: str, share: float) -> float:
        """Return how much greater a metric is expected to be than predicted."""
        total = 0.0
        for weight, each in measured:
            then = self._expected(each)
            total += weight * math.log(_ratio(each.metrics.get(model, {}), then, name, share))
        return math.exp(total)

    def _expected(self, measured: Measured) -> Mapping[str, float]:
        """Return the predicted metrics of a measured point; every forecast asks for many."""
        known = self._expected_metrics.get(id(measured))
        if known is None:
            prediction = self._predictor.predict(measured.point)
            known = self._expected_metrics[id(measured)] = _metrics(prediction) if prediction is not None else {}
        return known

    def is_better(self, forecast: Forecast, other: Forecast) -> bool:
        """Whether a forecast is better than another by the goals of the search."""
        goals = self._survey.goals
        return rank(goals, forecast.figures, other.figures) > rank(goals, other.figures, other.figures)

    def _misses(self, forecast: Forecast) -> bool:
        return miss_share(self._survey.goals, forecast.figures) > 0


class _Climb:
    """The loads of a configuration, from the one that saturates it down to where less load is no longer better."""

    def __init__(self, forecaster: Forecaster, points: list[Point]) -> None:
        self.best: Forecast | None = None
        self.wanted: Point | None = None
        """The load whose forecast is needed next; None at the end."""
        self._forecaster = forecaster
        self._left = points
        self._proceed()

    def take(self, forecast: Forecast | None) -> None:
        """Take the forecast of the wanted load; None ends the climb."""
        best = self.best
        if forecast is None:
            self._left = []
        elif best is None or self._forecaster.is_better(forecast, best):
            self.best = forecast
        elif forecast.figures.point.batch_size == best.figures.point.batch_size:
            self._left = []
        self._proceed()

    def _proceed(self) -> None:
        while self._left and self.best is not None and self._forecaster.is_too_much(self._left[-1], self.best):
            self._left.pop()
        self.wanted = self._left.pop() if self._left else None


def _metrics(prediction: Prediction) -> dict[str, float]:
    latencies = {
        f"perf_latency_p{number}": min(value, _LONGEST_US) / 1e3 * _LATENCY_MARGIN
        for number, value in prediction.latency_us.items()
    }
    return {
        "perf_throughput": prediction.throughput * prediction.point.batch_size,
        **latencies,
        "perf_latency_avg": latencies.get("perf_latency_p50", 0.0),
        "cpu_utilization": prediction.cpu_cores,
    }


def _ratio(measured: Mapping[str, Interval], then: Mapping[str, float], name: str, share: float) -> float:
    """Return how much greater a metric of the configuration was than predicted; 1 where that is not known."""
    expected = then.get(name, 0.0) * (share if name == "perf_throughput" else 1.0)
    if name not in measured or not expected or not measured[name].value:
        return 1.0
    margin = _LATENCY_MARGIN if name.startswith("perf_latency") else 1.0
    return measured[name].value / expected * margin


def _load_distance(point: Point, other: Point) -> float:
    return abs(point.concurrency - other.concurrency) + abs(point.request_rate - other.request_rate)

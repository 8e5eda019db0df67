"""How much better a measurement is than another, and how sure that is.

The gain of a metric is Model Analyzer's: the difference divided by the mean of both values, positive for the better.
Gains are summed by the weights of the objectives, which are normalised, and by the weights of the models. Each gain
has an uncertainty from the confidence intervals: a gain within it is a tie.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import TypeAlias

from naiad.tools.analyze.goal import LOWER_IS_BETTER, Goal
from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.measure.comparison import ASSUMED_RUN_TO_RUN
from naiad.tools.measure.result import Interval, Row

Goals: TypeAlias = Mapping[str, Goal]
"""By model under load; a model without one has the default goal."""

_Z = 1.96
_PERCENTILE = re.compile(r"_p\d+$")
_FEWEST_FOR_MEDIAN = 3
_DEVIATIONS = 1.4826
"""Standard deviation of a normal distribution / its median absolute deviation."""
_MEDIAN_FACTOR = 1.2533
"""Standard error of a median / that of a mean: the square root of pi / 2."""
_WIDEST = 20.0
"""Of an interval of logarithms: a ratio that is not known at all."""
_NEAR = 0.1
"""Share of a limit by which a measurement may miss it within the noise."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Of a measurement over another one."""

    value: float
    uncertainty: float

    @property
    def is_tie(self) -> bool:
        """The sign may be an accident."""
        return abs(self.value) <= self.uncertainty


@dataclass(frozen=True, slots=True)
class Miss:
    """A constraint that a measurement does not meet."""

    metric: str
    value: float
    bound: float
    share: float
    """Of the bound that is missing, or too much; 1 where the metric was not measured."""
    is_certain: bool = True
    """The bound is outside the confidence interval."""

    def __str__(self) -> str:
        if math.isnan(self.value):
            return f"{self.metric} was not measured"
        side = "over" if self.value > self.bound else "under"
        share = f"{self.share * 100:,.0f}" if self.share >= 1 else f"{self.share * 100:.3g}"
        return f"{self.metric} is {self.value:.4g}, {share} % {side} {self.bound:g}"


def interval_gain(metric: str, measured: Interval, other: Interval) -> Gain:
    """Return the gain of a value of a metric over another value; between -2 and 2 for values of one sign."""
    middle = (abs(measured.value) + abs(other.value)) / 2
    if not middle:
        return Gain(0.0, 0.0)
    sign = -1.0 if metric in LOWER_IS_BETTER else 1.0
    widths = math.hypot(_half_width(measured), _half_width(other))
    return Gain(sign * (measured.value - other.value) / middle, widths / middle)


def gain(goals: Goals, measured: Measured, other: Measured) -> Gain:
    """Return the gain of a measurement over another one. Metrics that either lacks do not count.

    The figures of a measurement depend on each other, so their uncertainties are summed, which errs on the wide side.
    What differs between two measurements of the same point, beyond their intervals, is added.
    """
    total = uncertainty = 0.0
    for share, metric, own, theirs in _compared(goals, measured, other):
        each = interval_gain(metric, own, theirs)
        total += share * each.value
        uncertainty += share * each.uncertainty
    between = _Z * ASSUMED_RUN_TO_RUN * math.sqrt(1 / measured.repeats + 1 / other.repeats)
    return Gain(total, math.hypot(uncertainty, between))


def percent_gain(goals: Goals, measured: Measured, baseline: Measured) -> Interval:
    """Return the gain in percent of the baseline's values: +200 % for three times the throughput.

    Its interval comes from the intervals of the values, and from what differs between two measurements of a point. It
    is that of the logarithm of a ratio, so that no throughput can lose more than 100 %.
    """
    total = lowest = highest = 0.0
    between = _Z * ASSUMED_RUN_TO_RUN * math.sqrt(1 / measured.repeats + 1 / baseline.repeats)
    for share, metric, own, theirs in _compared(goals, measured, baseline):
        if theirs.value:
            signed = -share if metric in LOWER_IS_BETTER else share
            ratio = own.value / theirs.value
            width = math.hypot(_relative_width(own), _relative_width(theirs), between)
            width = math.copysign(min(width, _WIDEST), signed)
            total += signed * (ratio - 1)
            lowest += signed * (ratio * math.exp(-width) - 1)
            highest += signed * (ratio * math.exp(width) - 1)
    return Interval(total * 100, lowest * 100, highest * 100)


def _compared(goals: Goals, measured: Measured, other: Measured) -> Iterator[tuple[float, str, Interval, Interval]]:
    """Yield the share of the goal, the metric and both values, for the metrics that both measurements have."""
    weights = {model: _goal(goals, model).weighting for model in measured.metrics}
    for model, metrics in measured.metrics.items():
        objectives = _goal(goals, model).objectives
        share = weights[model] / (sum(weights.values()) or 1.0) / (sum(objectives.values()) or 1.0)
        theirs = other.metrics.get(model, {})
        for metric, weight in objectives.items():
            if metric in metrics and metric in theirs:
                yield share * weight, metric, metrics[metric], theirs[metric]


def misses(goals: Goals, measured: Measured) -> list[Miss]:
    """Return the constraints that a measurement does not meet, the worst first."""
    found: list[Miss] = []
    for model, metrics in measured.metrics.items():
        for metric, bound in _goal(goals, model).constraints.items():
            if metric not in metrics:
                found.append(Miss(metric, math.nan, math.nan, 1.0))
                continue
            interval = metrics[metric]
            if bound.maximum is not None and interval.value > bound.maximum:
                found.append(_miss(metric, interval, bound.maximum, is_certain=interval.low > bound.maximum))
            if bound.minimum is not None and interval.value < bound.minimum:
                found.append(_miss(metric, interval, bound.minimum, is_certain=interval.high < bound.minimum))
    return sorted(found, key=lambda each: -each.share)


def miss_share(goals: Goals, measured: Measured) -> float:
    """Return by how much constraints are missed in all; 0 for a measurement that meets them."""
    return sum(each.share for each in misses(goals, measured))


def is_in_doubt(goals: Goals, measured: Measured) -> bool:
    """Whether a limit is within the interval of its metric: another measurement may fall on its other side."""
    return any(
        interval.low <= limit <= interval.high
        for model, metrics in measured.metrics.items()
        for metric, bound in _goal(goals, model).constraints.items()
        if (interval := metrics.get(metric)) is not None
        for limit in (bound.minimum, bound.maximum)
        if limit is not None
    )


def is_near(goals: Goals, measured: Measured) -> bool:
    """Whether every constraint that is missed is missed within the noise."""
    return not any(each.is_certain or each.share > _NEAR for each in misses(goals, measured))


def certain_rank(goals: Goals, measured: Measured, reference: Measured) -> tuple[float, float]:
    """Return what `rank` does, where a constraint that is missed within the noise counts as met."""
    missed = misses(goals, measured)
    share = sum(each.share for each in missed if each.is_certain or each.share > _NEAR)
    return -share, gain(goals, measured, reference).value


def rank(goals: Goals, measured: Measured, reference: Measured) -> tuple[float, float]:
    """Return what measurements are ordered by, the greatest first: within the constraints, then the gain.

    The gains of all measurements are over the same reference.
    """
    return -miss_share(goals, measured), gain(goals, measured, reference).value


def compare(goals: Goals, measured: Measured, other: Measured) -> Gain:
    """Return the gain over another measurement, where one that misses a constraint loses.

    Of two that miss constraints, the one that misses less is better. A miss within the noise is not certain.
    """
    mine, theirs = misses(goals, measured), misses(goals, other)
    if not mine and not theirs:
        return gain(goals, measured, other)
    lead = sum(each.share for each in theirs) - sum(each.share for each in mine)
    is_certain = any(each.is_certain for each in (*mine, *theirs))
    return Gain(lead, 0.0 if is_certain else abs(lead))


def combine(repeats: Sequence[Measured]) -> Measured:
    """Return several measurements of a point as one; the last one gives what cannot be averaged.

    The width of an interval comes from the intervals of the repeats or from their spread, whichever is greater.
    """
    good = [each for each in repeats if not each.error]
    if not good or len(good) < len(repeats):
        return next(each for each in reversed(repeats) if each.error)
    latest = good[-1]
    if len(good) == 1:
        return latest
    metrics = {
        model: {
            name: _combined(name, [each.metrics[model][name] for each in good if name in each.metrics.get(model, {})])
            for name in names
        }
        for model, names in latest.metrics.items()
    }
    rows = {model: _mean_row([each.rows[model] for each in good if model in each.rows]) for model in latest.rows}
    return replace(
        latest,
        metrics=metrics,
        rows=rows,
        duration_s=sum(each.duration_s for each in good),
        repeats=len(good),
        foreign_cores=fmean([each.foreign_cores for each in good]),
        loop_cores=fmean([each.loop_cores for each in good]),
    )


def _mean_row(rows: Sequence[Row]) -> Row:
    latency = replace(
        rows[-1].latency,
        mean=_mean([row.latency.mean for row in rows]),
        percentiles={
            number: _median([row.latency.percentiles[number] for row in rows if number in row.latency.percentiles])
            for number in rows[-1].latency.percentiles
        },
    )
    return replace(rows[-1], throughput=_mean([row.throughput for row in rows]), latency=latency)


def _combined(metric: str, intervals: Sequence[Interval]) -> Interval:
    return _median(intervals) if _PERCENTILE.search(metric) else _mean(intervals)


def _mean(intervals: Sequence[Interval]) -> Interval:
    value = fmean(each.value for each in intervals)
    half = math.hypot(*((each.high - each.low) / 2 for each in intervals)) / len(intervals)
    if len(intervals) > 1:
        half = max(half, _Z * stdev([each.value for each in intervals]) / math.sqrt(len(intervals)))
    return Interval(value, value - half, value + half)


def _median(intervals: Sequence[Interval]) -> Interval:
    """Return the median of a percentile: one pause of the machine in one measurement does not decide.

    Its spread is that of the middle half, as a normal distribution would have it.
    """
    values = sorted(each.value for each in intervals)
    if len(values) < _FEWEST_FOR_MEDIAN:
        return _mean(intervals)
    value = median(values)
    deviation = median([abs(each - value) for each in values]) * _DEVIATIONS
    own = median([(each.high - each.low) / 2 for each in intervals])
    half = max(own, _Z * deviation) * _MEDIAN_FACTOR / math.sqrt(len(values))
    return Interval(value, value - half, value + half)


def _half_width(interval: Interval) -> float:
    return (interval.high - interval.low) / 2


def _relative_width(interval: Interval) -> float:
    return _half_width(interval) / abs(interval.value) if interval.value else 0.0


def _miss(metric: str, interval: Interval, bound: float, *, is_certain: bool) -> Miss:
    return Miss(metric, interval.value, bound, abs(interval.value - bound) / (abs(bound) or 1.0), is_certain)


def _goal(goals: Goals, model: str) -> Goal:
    return goals.get(model) or Goal()

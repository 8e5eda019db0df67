"""Whether a run is faster or slower than an earlier one, by a statistical test.

Rows of the same load, model and batch size are compared by throughput and by the judged latency, as ratios. With r
the log of the ratio of the means and s its standard error, a difference is significant when |r| > t * s.

- Loads with several rows on both sides: s comes from the variation between the repetitions, pooled over both sides,
  with Student's t (two-sample t-test on logs).
- Single rows: two runs of the same program differ by more than their intervals say, since memory layout, CPU clock
  and neighbours change from run to run, and a single run cannot know by how much. s is that of the two intervals and
  of an assumed 1.5 % of variation between runs. Where a machine varies more, repeat the loads, best in alternation
  with the baseline.

A run with many loads makes many tests; the 5 % of false alarms is that of the whole comparison, divided over the
tests (Bonferroni). Throughput and mean latency of a closed loop are one test, since their product is the concurrency
(Little's law).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import NormalDist, fmean, variance

from naiad.tools.measure.intervals import latency_name, t_quantile
from naiad.tools.measure.result import Interval, Result, Row

ASSUMED_RUN_TO_RUN = 0.015
_FALSE_ALARMS = 0.05
_Z = NormalDist().inv_cdf(0.975)
_PLACE = ("system", "machine", "cores", "protocol")
"""What is the same in two runs that measure a change of the server or of its models."""


class Change(Enum):
    """A figure against that of the baseline."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    WORSE_PAST_LIMIT = "worse past the limit"


@dataclass(frozen=True, slots=True)
class FigureComparison:
    """A figure of a load in both runs; means of the repetitions."""

    mode: str
    value: float
    model: str
    batch_size: int
    figure: str
    """`throughput`, `mean latency`, `p99 latency`."""
    baseline: float
    current: float
    change_percent: Interval
    """From the baseline to the current run; the interval is that of the test."""
    change: Change


@dataclass(frozen=True, slots=True)
class Comparison:
    """All figures of the loads that both runs have."""

    figures: Sequence[FigureComparison]
    limit_percent: float
    is_repeated: bool
    """Each load was measured several times, so the variation between runs is known."""
    unmatched: Sequence[str] = ()
    """Loads that only one of the runs has."""
    doubts: Sequence[str] = ()
    """Why a verdict says little about the server: figures that are not to be trusted, other machines or programs."""

    @property
    def is_worse_past_limit(self) -> bool:
        """A figure is significantly worse, and by more than the limit."""
        return any(each.change is Change.WORSE_PAST_LIMIT for each in self.figures)


_Key = tuple[str, float, str, int]


def compare(baseline: Result, current: Result, limit_percent: float) -> Comparison:
    """Compare two runs; the latency is that judged by the current one.

    Raises ValueError when the runs have no load in common, or the baseline lacks the judged percentile.
    """
    before, after = _by_load(baseline), _by_load(current)
    common = [key for key in after if key in before]
    if not common:
        raise ValueError(
            f"the runs have no load in common: the baseline has {_names(before)}, the current run {_names(after)}"
        )
    tests = sum(1 if key[0] == "concurrency" and current.percentile is None else 2 for key in common)
    figures = [
        figure
        for key in common
        for figure in _compare_load(key, before[key], after[key], current.percentile, limit_percent, tests)
    ]
    return Comparison(
        figures=figures,
        limit_percent=limit_percent,
        is_repeated=all(len(before[key]) > 1 and len(after[key]) > 1 for key in common),
        unmatched=[_name(key) for key in before.keys() ^ after.keys()],
        doubts=[*_other_places(baseline, current), *(each for key in common for each in _doubts(key, before, after))],
    )


def _other_places(baseline: Result, current: Result) -> list[str]:
    here, there = current.environment, baseline.environment
    return [
        f"{name} was {there[name]} in the baseline and is {here[name]}"
        for name in _PLACE
        if name in here and name in there and here[name] != there[name]
    ]


def _doubts(key: _Key, before: Mapping[_Key, Sequence[Row]], after: Mapping[_Key, Sequence[Row]]) -> list[str]:
    found = []
    for side, rows in (("in the baseline", before[key]), ("now", after[key])):
        if any(row.generator.limited_by == "generator" for row in rows):
            found.append(f"{_name(key)} is limited by the load generator {side}: it says little about the server")
        if not all(row.is_stable for row in rows):
            found.append(f"{_name(key)} is not stable {side}")
    return found


def _by_load(result: Result) -> dict[_Key, list[Row]]:
    rows: dict[_Key, list[Row]] = {}
    for row in result.rows:
        rows.setdefault((row.mode, row.value, row.model, row.batch_size), []).append(row)
    return rows


def _name(key: _Key) -> str:
    mode, value, model, batch_size = key
    return f"{model} {mode.replace('_', ' ')} {value:g} batch {batch_size}"


def _names(rows: dict[_Key, list[Row]]) -> str:
    return ", ".join(_name(key) for key in rows) or "none"


def _compare_load(
    key: _Key, before: Sequence[Row], after: Sequence[Row], percentile: int | None, limit_percent: float, tests: int
) -> list[FigureComparison]:
    rates = [row.throughput for row in before], [row.throughput for row in after]
    figures = [_compare_figure(key, "throughput", *rates, limit_percent, tests)]
    if all(rate.value > 0 for side in rates for rate in side):
        old, new = ([_judged(row, percentile, key) for row in rows] for rows in (before, after))
        figures.append(_compare_figure(key, latency_name(percentile), old, new, limit_percent, tests))
    return figures


def _compare_figure(
    key: _Key, figure: str, old: Sequence[Interval], new: Sequence[Interval], limit_percent: float, tests: int
) -> FigureComparison:
    change = _change(old, new, tests)
    return FigureComparison(
        *key,
        figure=figure,
        baseline=fmean(each.value for each in old),
        current=fmean(each.value for each in new),
        change_percent=change,
        change=_verdict(change, limit_percent, is_higher_better=figure == "throughput"),
    )


def _judged(row: Row, percentile: int | None, key: _Key) -> Interval:
    if percentile is None:
        return row.latency.mean
    if percentile not in row.latency.percentiles:
        raise ValueError(f"a run has no p{percentile} of {_name(key)}; measure it with --percentile {percentile}")
    return row.latency.percentiles[percentile]


def _change(old: Sequence[Interval], new: Sequence[Interval], tests: int) -> Interval:
    """Percent from old to new, with the interval of the test."""
    if not all(each.value > 0 for each in (*old, *new)):
        change = 100.0 * ((fmean(each.value for each in new) > 0) - (fmean(each.value for each in old) > 0))
        return Interval(change, change, change)
    logs = [[math.log(each.value) for each in side] for side in (old, new)]
    ratio = fmean(logs[1]) - fmean(logs[0])
    shares = 1 / len(old) + 1 / len(new)
    probability = 1 - _FALSE_ALARMS / tests / 2
    if len(old) > 1 and len(new) > 1:
        degrees = len(old) + len(new) - 2
        pooled = sum((len(side) - 1) * variance(side) for side in logs) / degrees
        width = t_quantile(degrees, probability) * math.sqrt(pooled * shares)
    else:
        within = fmean(_relative_variance(each) for each in (*old, *new))
        width = NormalDist().inv_cdf(probability) * math.sqrt((within + ASSUMED_RUN_TO_RUN**2) * shares)
    low, middle, high = (math.expm1(min(each, 50.0)) * 100 for each in (ratio - width, ratio, ratio + width))
    return Interval(middle, low, high)


def _relative_variance(interval: Interval) -> float:
    return float((interval.half_width_share / _Z) ** 2)


def _verdict(change: Interval, limit_percent: float, *, is_higher_better: bool) -> Change:
    if change.low <= 0 <= change.high:
        return Change.SAME
    is_better = (change.value > 0) == is_higher_better
    if is_better:
        return Change.BETTER
    return Change.WORSE_PAST_LIMIT if abs(change.value) > limit_percent else Change.WORSE

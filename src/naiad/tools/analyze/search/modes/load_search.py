"""Which load of a configuration serves the goal best: a sweep that stops at saturation, then bisection."""

from collections.abc import Sequence
from dataclasses import replace

from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.analyze.search.configurations import Configuration, load_lists
from naiad.tools.analyze.search.goal_score import gain
from naiad.tools.analyze.search.survey import Survey
from naiad.tools.analyze.space import Point

TRIES = 4
"""Measurements without a gain that show saturation."""
_MIN_GAIN = 0.05


async def sweep(survey: Survey, configuration: Configuration) -> list[Measured]:
    """Measure a configuration under ascending loads, for each batch size, until more load gains nothing."""
    found: list[Measured] = []
    best_of_sizes: list[Measured] = []
    for loads in load_lists(survey.space, survey.settings):
        row = await survey.walk([load.of(configuration) for load in loads], lambda row: is_saturated(survey, row))
        if not row:
            break
        found += row
        best_of_sizes.append(max(row, key=lambda each: gain(survey.goals, each, row[0]).value))
        if is_saturated(survey, best_of_sizes):
            break
    return found


def is_saturated(survey: Survey, row: Sequence[Measured]) -> bool:
    """Whether the last four measurements gain less than 5 % over the first of them: Model Analyzer's rule."""
    last = row[-TRIES:]
    return len(last) == TRIES and all(gain(survey.goals, each, last[0]).value < _MIN_GAIN for each in last[1:])


async def refine(survey: Survey, row: Sequence[Measured]) -> None:
    """Bisect the load between the last measurement within the constraints and the next one.

    `row` is a configuration under ascending loads, of one batch size. Measurements that begin outside are bisected
    down to the least load.
    """
    inside = max((index for index, each in enumerate(row) if survey.meets(each)), default=-1)
    if inside == len(row) - 1:
        return
    high = row[inside + 1].point
    low = row[inside].point if inside >= 0 else replace(high, concurrency=0, request_rate=0.0)
    for _ in range(survey.settings.binary_search_steps):
        middle = _between(low, high)
        if middle is None:
            return
        measured = await survey.measure(middle)
        if measured.error:
            return
        low, high = (middle, high) if survey.meets(measured) else (low, middle)


def _between(low: Point, high: Point) -> Point | None:
    if high.request_rate:
        return replace(high, request_rate=(low.request_rate + high.request_rate) / 2)
    concurrency = (low.concurrency + high.concurrency) // 2
    return replace(high, concurrency=concurrency) if concurrency > low.concurrency else None

"""The comparison: the best configurations and that of the repository are measured in turns, under the same load.

The turns are interleaved, so that a machine that slows down slows all of them. What was measured before chooses what
is compared and under which load; it does not count in the comparison, since the best of many figures are too good.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.analyze.search.configurations import (
    Configuration,
    SearchLoad,
    configuration_key,
    repository_configuration,
    takes,
)
from naiad.tools.analyze.search.goal_score import Goals, certain_rank, compare, is_in_doubt, misses, rank
from naiad.tools.analyze.search.search_settings import MIN_TURNS
from naiad.tools.analyze.search.survey import PointComparison, Survey, TimeLimitError
from naiad.tools.analyze.space import Point

_MARGIN = 1.5
"""Uncertainties that separate two configurations. Over 1, since each turn is another chance to err."""
_FIRST_MARGIN = 2.5
"""For a point that was measured once, whose spread is not known."""
NARROW = 0.025
"""Uncertainty of a gain at which a difference no longer matters."""
_ATTEMPTS = 4
"""Loads under which a comparison is tried: the best may fail, or miss a limit in all turns."""
_EXPECTED_TURNS = 3
_LESS_LOAD = 0.97
"""Of the load at which a latency that was over its limit would meet it."""
_Order: TypeAlias = Callable[[Goals, Measured, Measured], tuple[float, float]]


def best_points(survey: Survey) -> list[Measured]:
    """Return the best point of each configuration, the best configuration first."""
    return _best_points(survey, survey.usable)


def _best_points(survey: Survey, usable: Sequence[Measured], order_by: _Order = rank) -> list[Measured]:
    if not usable:
        return []
    reference = usable[0]

    def order(measured: Measured) -> tuple[float, float]:
        missed, gained = order_by(survey.goals, measured, reference)
        estimate = None if measured.turn else survey.estimates.get(measured.point.key)
        return missed, gained if estimate is None else rank(survey.goals, estimate, reference)[1]

    ordered = sorted(usable, key=order, reverse=True)
    best: dict[str, Measured] = {}
    for each in ordered:
        best.setdefault(configuration_key(each.point.variants), each)
    return list(best.values())


def finalists(survey: Survey, load: SearchLoad | None = None) -> list[Point]:
    """Return what is to be compared, all under one load: the best, the configuration of the repository, contenders.

    The load is that of the best point, unless it is given. Configurations that miss a limit within the noise are
    contenders, too. Nothing is returned where the configuration of the repository has no figures, or is the only one.
    """
    present = repository_configuration(survey.space)
    usable = [each for each in survey.usable if takes(present, each.point.batch_size, survey.settings)]
    if survey.has_failed(present) or not _of(usable, present):
        return []
    best = _best_points(survey, usable)[0]
    rest = [
        each
        for each in _best_points(survey, usable, certain_rank)
        if configuration_key(each.point.variants) != configuration_key(best.point.variants)
    ]
    rivals = [each.point.variants for each in rest[: survey.settings.top - 1] if _is_contender(survey, best, each)]
    chosen: list[Configuration] = [best.point.variants, present, *rivals]
    if _is_same(best.point.variants, present) and not rivals:
        chosen += [each.point.variants for each in rest[:1]]
    unique = list({configuration_key(each): each for each in chosen}.values())
    at = load or SearchLoad(best.point.concurrency, best.point.request_rate, best.point.batch_size)
    fitting = [each for each in unique if takes(each, at.batch_size, survey.settings)]
    return [at.of(each) for each in fitting] if len(fitting) > 1 else []


def _of(measured: Sequence[Measured], configuration: Configuration) -> list[Measured]:
    return [each for each in measured if _is_same(each.point.variants, configuration)]


def _is_same(configuration: Configuration, other: Configuration) -> bool:
    return configuration_key(configuration) == configuration_key(other)


def _is_contender(survey: Survey, best: Measured, other: Measured) -> bool:
    """Whether a measurement may be as good as the best."""
    lead = compare(survey.goals, best, other)
    margin = _FIRST_MARGIN if 1 in (best.repeats, other.repeats) else _MARGIN
    return lead.value <= margin * lead.uncertainty


def expected_count(survey: Survey) -> int:
    """Return about how many measurements the comparison is going to take, as far as it is known."""
    if survey.comparison is not None:
        return 0
    return _EXPECTED_TURNS * (len(finalists(survey)) or 2)


async def compare_best(survey: Survey) -> None:
    """Compare the best with the configuration of the repository; `survey.comparison` has the result.

    Where all miss a limit, less load is tried. Where a configuration that was not compared is clearly better than
    what was, that one is compared, too. Raises ServerLostError, and TimeLimitError where the time that is left is
    too short for any comparison.
    """
    survey.enter("comparison of the best")
    load: SearchLoad | None = None
    for _ in range(_ATTEMPTS):
        points = finalists(survey, load)[: survey.affordable // MIN_TURNS]
        if len(points) < 2:
            if survey.comparison is None and finalists(survey):
                raise TimeLimitError
            return
        comparison = await _compared(survey, points)
        if comparison is None:
            continue
        measured = comparison.measured
        load = _less_load(survey, measured)
        if any(survey.meets(each) for each in measured):
            load = None
            if not _is_surpassed(survey, measured):
                return
        elif load is None:
            return


async def _compared(survey: Survey, points: Sequence[Point]) -> PointComparison | None:
    """Measure points in turns until they are separated or tied; None where one of them has failed."""
    name = hashlib.sha256("\n".join(each.key for each in points).encode()).hexdigest()[:16]
    rows: list[list[Measured]] = []
    most = max(MIN_TURNS, survey.settings.rounds)
    for turn in range(most):
        left = max(1, min(most, _EXPECTED_TURNS) - turn)
        survey.expected = survey.count + left * len(points) + 1
        # Every second turn runs backwards: a drift of the machine within a turn is of no use to any of them.
        order = points if turn % 2 else points[::-1]
        made = await survey.measure_turn(order, f"{name}:{turn}", is_planned=turn < MIN_TURNS)
        row = {each.point.key: each for each in made}
        if any(each.error for each in made):
            survey.comparison = None
            return None
        rows.append([row[each.key] for each in points])
        if len(rows) < MIN_TURNS:
            continue
        survey.comparison = PointComparison(list(rows))
        if _is_decided(survey, survey.comparison.measured) or survey.affordable < len(points):
            break
    return survey.comparison


def _is_surpassed(survey: Survey, compared: Sequence[Measured]) -> bool:
    """Whether a configuration that was not compared is clearly better: what was compared was chosen by luck."""
    names = {configuration_key(each.point.variants) for each in compared}
    best = max(compared, key=lambda each: rank(survey.goals, each, compared[0]))
    present = repository_configuration(survey.space)
    others = [
        each
        for each in best_points(survey)
        if configuration_key(each.point.variants) not in names
        and takes(present, each.point.batch_size, survey.settings)
    ]
    leads = [compare(survey.goals, each, best) for each in others]
    return any(each.value > _FIRST_MARGIN * each.uncertainty for each in leads)


def _is_decided(survey: Survey, measured: Sequence[Measured]) -> bool:
    """Whether no further turn is needed: no limit is in doubt, and the best is known or tied."""
    if any(is_in_doubt(survey.goals, each) for each in measured):
        return False
    best = max(measured, key=lambda each: rank(survey.goals, each, measured[0]))
    leads = [compare(survey.goals, best, each) for each in measured if each is not best]
    return all(each.uncertainty < NARROW or each.value > _MARGIN * each.uncertainty for each in leads)


def _less_load(survey: Survey, measured: Sequence[Measured]) -> SearchLoad | None:
    """Return the load at which the best would meet a limit of the latency that it missed; None where it has none.

    In saturation latency is proportional to the concurrency (Little's law). Of loads by the user, the next lower one.
    """
    best = max(measured, key=lambda each: rank(survey.goals, each, measured[0]))
    late = [each for each in misses(survey.goals, best) if each.metric.startswith("perf_latency")]
    point, space = best.point, survey.space
    if not late or late[0].bound <= 0:
        return None
    load = SearchLoad(point.concurrency, point.request_rate, point.batch_size)
    if space.request_rates:
        lower_rates = [each for each in space.request_rates if each < point.request_rate]
        return replace(load, request_rate=max(lower_rates)) if lower_rates else None
    if space.concurrencies:
        lower = [each for each in space.concurrencies if each < point.concurrency]
        return replace(load, concurrency=max(lower)) if lower else None
    wanted = min(point.concurrency - 1, int(point.concurrency * late[0].bound / late[0].value * _LESS_LOAD))
    return replace(load, concurrency=max(1, wanted)) if point.concurrency > 1 else None


async def measure_baseline(survey: Survey, points: Sequence[Point]) -> None:
    """Measure the configuration of the repository."""
    survey.phase = "the configuration of the repository"
    for point in points:
        if takes(point.variants, point.batch_size, survey.settings):
            await survey.measure(point)


async def check_drift(survey: Survey) -> None:
    """Measure the first measured point again, which is one of the configuration of the repository."""
    survey.phase = "the configuration of the repository again"
    survey.expected = survey.count + 1
    present = repository_configuration(survey.space)
    first = next(iter(_of(survey.usable, present)), None)
    if first is not None and survey.affordable:
        await survey.repeat(first.point)

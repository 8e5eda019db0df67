"""Successive rejects: the best configurations are measured again in turns until the best is separated.

The turns are interleaved, so that a machine that slows down slows all of them.
"""

from collections.abc import Sequence

from naiad.analyze.measurement import Measured
from naiad.analyze.search.configurations import configuration_key, repository_configuration
from naiad.analyze.search.goal_score import compare, rank
from naiad.analyze.search.survey import Survey
from naiad.analyze.space import Point

_MARGIN = 1.5
"""Uncertainties that reject. Over 1, since each round is another chance to err."""
_FIRST_MARGIN = 2.5
"""For a point that was measured once, whose spread is not known."""
NARROW = 0.025
"""Uncertainty of a gain at which a difference no longer matters."""


def best_points(survey: Survey) -> list[Measured]:
    """Return the best point of each configuration, the best configuration first."""
    usable = survey.usable
    if not usable:
        return []
    reference = usable[0]

    def order(measured: Measured) -> tuple[float, float]:
        missed, gained = rank(survey.goals, measured, reference)
        estimate = survey.estimates.get(measured.point.key)
        return missed, gained if estimate is None else rank(survey.goals, estimate, reference)[1]

    ordered = sorted(usable, key=order, reverse=True)
    best: dict[str, Measured] = {}
    for each in ordered:
        best.setdefault(configuration_key(each.point.variants), each)
    return list(best.values())


async def separate(survey: Survey, budget: int) -> None:
    """Measure the contenders again, with at most `budget` measurements, until one is left or they are tied.

    The best is measured twice at least: it may be the best, or within the constraints, by accident.
    """
    left = budget
    for turn in range(survey.settings.rounds):
        contenders = _contenders(survey, best_points(survey)[: survey.settings.top])[:left]
        left -= len(contenders)
        if not contenders or _is_decided(survey, contenders):
            return
        survey.expected = survey.count + len(contenders) + 1
        for each in contenders if turn % 2 else reversed(contenders):
            await survey.repeat(each.point)


def _is_decided(survey: Survey, contenders: Sequence[Measured]) -> bool:
    return all(each.repeats > 1 for each in contenders) and all(
        compare(survey.goals, contenders[0], each).uncertainty < NARROW for each in contenders[1:]
    )


def _contenders(survey: Survey, ordered: Sequence[Measured]) -> list[Measured]:
    """Return the best and the measurements that may be as good."""
    if not ordered:
        return []
    best = ordered[0]
    found = [best]
    for each in ordered[1:]:
        lead = compare(survey.goals, best, each)
        margin = _FIRST_MARGIN if 1 in (best.repeats, each.repeats) else _MARGIN
        if lead.value <= margin * lead.uncertainty:
            found.append(each)
    return found


async def measure_baseline(survey: Survey, points: Sequence[Point]) -> None:
    """Measure the configuration of the repository."""
    survey.phase = "the configuration of the repository"
    for point in points:
        await survey.measure(point)


async def check_drift(survey: Survey) -> None:
    """Measure the first measured point again, which is one of the configuration of the repository."""
    survey.phase = "the configuration of the repository again"
    name = configuration_key(repository_configuration(survey.space))
    first = next((each for each in survey.usable if configuration_key(each.point.variants) == name), None)
    if first is not None and survey.affordable:
        await survey.repeat(first.point)

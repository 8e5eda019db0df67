"""Model Analyzer's `brute`: every configuration under ascending loads, then the loads of the best refined."""

from naiad.tools.analyze.search.best_comparison import best_points
from naiad.tools.analyze.search.configurations import (
    Configuration,
    configuration_key,
    configurations,
    load_lists,
    repository_configuration,
    useful_loads,
)
from naiad.tools.analyze.search.modes.load_search import TRIES, refine, sweep
from naiad.tools.analyze.search.survey import Survey


async def brute(survey: Survey) -> None:
    """Measure all configurations. Raises ServerLostError, and ValueError for a space that is too large."""
    found = configurations(survey.space)
    lengths = [_expected_loads(survey, each) for each in found]
    refinements = _expected_refinements(survey)
    survey.expected = sum(lengths) + refinements
    for number, configuration in enumerate(found, 1):
        survey.phase = f"configuration {number} of {len(found)}"
        await sweep(survey, configuration)
        # Sweeps stop at saturation: the ones so far correct what is expected of the ones to come.
        ratio = survey.count / sum(lengths[:number])
        survey.expected = round(survey.count + ratio * sum(lengths[number:])) + refinements
    await refine_best(survey)


def _expected_loads(survey: Survey, configuration: Configuration) -> int:
    """Return about how many loads the sweep of a configuration takes: up to saturation, and some that show it."""
    useful = len(useful_loads(survey.space, configuration, survey.settings))
    every = sum(len(loads) for loads in load_lists(survey.space, survey.settings))
    return min(every, useful + TRIES - 1)


def _expected_refinements(survey: Survey) -> int:
    """Return about how many measurements `refine_best` takes."""
    has_limits = any(goal.constraints for goal in survey.goals.values())
    return (survey.settings.top + 1) * survey.settings.binary_search_steps if has_limits else 0


async def refine_best(survey: Survey) -> None:
    """Find the greatest load within the constraints of the best configurations and that of the repository."""
    survey.phase = "loads at the constraints"
    best = best_points(survey)
    names = [configuration_key(each.point.variants) for each in best[: survey.settings.top]]
    baseline = configuration_key(repository_configuration(survey.space))
    for name in dict.fromkeys([*names, baseline]):
        points = [each for each in survey.usable if configuration_key(each.point.variants) == name]
        for size in sorted({each.point.batch_size for each in points}):
            row = [each for each in points if each.point.batch_size == size]
            await refine(survey, sorted(row, key=lambda each: (each.point.concurrency, each.point.request_rate)))

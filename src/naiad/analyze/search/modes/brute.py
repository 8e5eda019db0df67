"""Model Analyzer's `brute`: every configuration under ascending loads, then the loads of the best refined."""

from naiad.analyze.search.comparison import best_points
from naiad.analyze.search.configurations import (
    configuration_key,
    configurations,
    load_lists,
    repository_configuration,
)
from naiad.analyze.search.modes.load_search import refine, sweep
from naiad.analyze.search.survey import Survey


async def brute(survey: Survey) -> None:
    """Measure all configurations. Raises ServerLostError, and ValueError for a space that is too large."""
    found = configurations(survey.space)
    survey.expected = len(found) * sum(len(loads) for loads in load_lists(survey.space, survey.settings))
    for number, configuration in enumerate(found, 1):
        survey.phase = f"configuration {number} of {len(found)}"
        await sweep(survey, configuration)
        # Sweeps stop at saturation: the ones so far predict the ones to come.
        survey.expected = round(survey.count / number * len(found))
    await refine_best(survey)


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

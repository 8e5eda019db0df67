"""The result of a search from its measurements."""

from collections.abc import Sequence
from dataclasses import replace

from naiad.tools.analyze.point_measurement import Measured, Ranked, Ranking
from naiad.tools.analyze.search.best_comparison import best_points
from naiad.tools.analyze.search.configurations import complexity, configuration_key, repository_configuration
from naiad.tools.analyze.search.goal_score import compare, misses, percent_gain, rank
from naiad.tools.analyze.search.reason import reason
from naiad.tools.analyze.search.survey import Survey

INDIFFERENT = 0.03
"""Gain up to which a simpler configuration is preferred among ties."""


def rank_all(survey: Survey, ended: str = "") -> Ranking:
    """Return the ranking of what was measured. `ended` says why the search ended early."""
    present = configuration_key(repository_configuration(survey.space))
    best = best_points(survey)
    measurements = survey.measurements
    ranking = Ranking(
        winner=None,
        candidates=(),
        baseline=_of(best, present) or _of(measurements, present),
        measurements=measurements,
        predictions=survey.predictions,
        pareto=pareto(measurements),
    )
    compared = survey.comparison.measured if survey.comparison is not None else []
    baseline = _of(compared, present)
    if survey.comparison is not None and baseline is not None:
        ranking = replace(
            _ranked_by_comparison(survey, ranking, compared, baseline), turns=len(survey.comparison.rows)
        )
    elif best and _is_alone(survey):
        alone = _ranked(survey, best[0])
        ranking = replace(ranking, winner=alone if alone.meets_constraints else None)
    done = {configuration_key(each.measured.point.variants) for each in ranking.candidates}
    others = [_ranked(survey, each) for each in best if configuration_key(each.point.variants) not in done]
    ranking = replace(ranking, others=others)
    return replace(ranking, reason=reason(survey, ranking, ended))


def _is_alone(survey: Survey) -> bool:
    """Whether there is nothing but the configuration of the repository."""
    present = repository_configuration(survey.space)
    return all(each in present for variants in survey.space.variants.values() for each in variants)


def _of(measured: Sequence[Measured], name: str) -> Measured | None:
    return next((each for each in measured if configuration_key(each.point.variants) == name), None)


def _ranked_by_comparison(
    survey: Survey, ranking: Ranking, compared: Sequence[Measured], baseline: Measured
) -> Ranking:
    """Rank by the turns alone: what was measured before, under any load, does not count."""
    best = sorted(compared, key=lambda each: rank(survey.goals, each, baseline), reverse=True)
    winner = _winner(survey, best)
    ordered = [winner, *(each for each in best if each is not winner)] if winner is not None else best
    candidates = [
        _ranked(
            survey,
            each,
            baseline,
            is_tie=winner is not None and each is not winner and _is_tie(survey, winner, each),
        )
        for each in ordered
    ]
    return replace(
        ranking,
        winner=candidates[0] if winner is not None else None,
        candidates=candidates,
        baseline=baseline,
        is_compared=True,
    )


def _winner(survey: Survey, best: Sequence[Measured]) -> Measured | None:
    """Return the best measurement, or the simplest that is nearly as good within the uncertainty."""
    if not best or not survey.meets(best[0]):
        return None
    equal = [
        each
        for each in best
        if _is_tie(survey, best[0], each) and compare(survey.goals, best[0], each).value <= INDIFFERENT
    ]
    return min([best[0], *equal], key=lambda each: complexity(each, survey.settings))


def _is_tie(survey: Survey, winner: Measured, other: Measured) -> bool:
    return survey.meets(other) and compare(survey.goals, winner, other).is_tie


def _ranked(survey: Survey, measured: Measured, baseline: Measured | None = None, *, is_tie: bool = False) -> Ranked:
    """`baseline` is measured in turns with the measurement, under the same load."""
    missed = misses(survey.goals, measured)
    gained = percent_gain(survey.goals, measured, baseline) if baseline is not None else None
    return Ranked(measured, gained, not missed, "; ".join(map(str, missed)), is_tie)


def pareto(measurements: Sequence[Measured], costs: Sequence[str] = ("perf_latency_p99",)) -> list[Measured]:
    """Return the measurements that no other one beats in throughput and in each of `costs`, by throughput.

    Of several models the throughputs are summed, and the greatest cost counts. `costs` may name memory.
    """
    points = [(_values(each, costs), each) for each in measurements if not each.error and each.metrics]
    front = [
        (values, each)
        for values, each in points
        if not any(_dominates(other, values) for other, rival in points if rival is not each)
    ]
    return [each for _, each in sorted(front, key=lambda entry: entry[0])]


def _values(measured: Measured, costs: Sequence[str]) -> tuple[float, ...]:
    """Return throughput and negative costs: more is better in all."""
    models = measured.metrics.values()
    throughput = sum(metrics["perf_throughput"].value for metrics in models if "perf_throughput" in metrics)
    return (
        throughput,
        *(-max((metrics[name].value for metrics in models if name in metrics), default=0.0) for name in costs),
    )


def _dominates(values: Sequence[float], others: Sequence[float]) -> bool:
    return values != others and all(mine >= theirs for mine, theirs in zip(values, others, strict=True))

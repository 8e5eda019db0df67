"""Why the winner won, or why there is none, in sentences."""

import statistics
from collections.abc import Sequence

from naiad.tools.analyze.point_measurement import Measured, Ranked, Ranking
from naiad.tools.analyze.search.configurations import changes, configuration_key, repository_configuration
from naiad.tools.analyze.search.goal_score import compare, interval_gain, is_near, misses, percent_gain
from naiad.tools.analyze.search.survey import Survey

_PARTS = {
    "the queue": "queue_us",
    "the input of the backend": "compute_input_us",
    "the computation": "compute_infer_us",
    "the output of the backend": "compute_output_us",
}
_NAMED = 3
_FOREIGN_CORES = 0.2
"""Cores used by other programs from which a measurement counts as disturbed; a terminal and its like use less."""
_DRIFT = 0.05
"""Change of the throughput that is reported; less is usual between two measurements."""


def reason(survey: Survey, ranking: Ranking, ended: str) -> str:
    """Return the sentences about a ranking; `ended` says why the search ended early."""
    found = [ended] if ended else []
    if ranking.is_compared:
        found += _about_comparison(survey, ranking)
    elif ranking.winner is not None:
        found.append(
            f"The configuration of the repository is the only one; it was compared with nothing: "
            f"{_figures(ranking.winner.measured)} under {ranking.winner.measured.point.load}."
        )
    elif ranking.others:
        found += _without_comparison(survey, ranking)
    elif not ranking.measurements:
        found.append("Nothing was measured.")
    else:
        found.append(f"All measurements failed, the first one with: {ranking.measurements[0].error}.")
    failed = {configuration_key(each.point.variants) for each in ranking.measurements if each.error}
    if failed and (ranking.candidates or ranking.others):
        found.append(f"{_count(len(failed), 'configuration')} failed.")
    return " ".join([*found, *_about_drift(survey), *_about_other_programs(ranking)])


def _without_comparison(survey: Survey, ranking: Ranking) -> list[str]:
    """Say that nothing is recommended, and why. No figures of different loads are put beside each other."""
    best = ranking.others[0]
    if not any(is_near(survey.goals, each.measured) for each in ranking.others):
        return [
            f"No configuration meets the constraints. {_name(best.measured)} comes closest, "
            f"under {best.measured.point.load}: {best.misses}."
        ]
    baseline = ranking.baseline
    failed = f": that configuration failed with: {baseline.error}" if baseline is not None and baseline.error else ""
    return [f"Nothing was compared with the configuration of the repository, so nothing is recommended{failed}."]


def _about_comparison(survey: Survey, ranking: Ranking) -> list[str]:
    winner, load = ranking.winner, ranking.candidates[0].measured.point.load
    count = _count(len(ranking.candidates), "configuration")
    turns = f"{count} that were compared in {ranking.turns} turns under {load}"
    if winner is None:
        best = ranking.candidates[0]
        closest = f"{_name(best.measured)} comes closest: {best.misses}"
        return [f"No configuration meets the constraints. Of {turns}, {closest}."]
    return [*_about_winner(survey, ranking, winner, turns), *_about_second(survey, ranking, winner)]


def _about_winner(survey: Survey, ranking: Ranking, winner: Ranked, turns: str) -> list[str]:
    baseline = ranking.baseline
    if baseline is None or winner.gain_percent is None or _is_baseline(ranking, winner):
        return [f"Of {turns}, the configuration of the repository is the best: {_figures(winner.measured)}."]
    gained = winner.gain_percent
    found = [
        f"Of {turns}, {_name(winner.measured)} is the best: {_figures(winner.measured)}.",
        f"That is {gained.value:+.0f} % ({gained.low:+.0f} to {gained.high:+.0f} %) against the configuration of "
        f"the repository under the same load ({_figures(baseline)}). It changes {_changes(survey, winner.measured)}.",
    ]
    missed = misses(survey.goals, baseline)
    if missed:
        found.append(
            f"Under this load the configuration of the repository misses the constraints: "
            f"{'; '.join(map(str, missed))}."
        )
    return found + _about_parts(baseline, winner.measured)


def _is_baseline(ranking: Ranking, ranked: Ranked) -> bool:
    baseline = ranking.baseline
    return baseline is not None and baseline.point.key == ranked.measured.point.key


def _about_parts(baseline: Measured, winner: Measured) -> list[str]:
    """Name the part of the latency that shrank most, and the batches that were formed."""
    found: list[str] = []
    for model, row in winner.rows.items():
        before, now = baseline.rows[model].server if model in baseline.rows else None, row.server
        if before is None or now is None:
            continue
        saved = {name: getattr(before, part) - getattr(now, part) for name, part in _PARTS.items()}
        most = max(saved, key=lambda name: saved[name])
        if saved[most] > 0:
            old, new = getattr(before, _PARTS[most]), getattr(now, _PARTS[most])
            found.append(f"A request spends {_ms(new)} in {most} instead of {_ms(old)}.")
        old_batch, new_batch = (each.inference_count / max(1, each.execution_count) for each in (before, now))
        if new_batch > 1.1 * old_batch:
            found.append(
                f"An execution serves {new_batch:.1f} inferences instead of {old_batch:.1f}; answers were not "
                "compared, so see that rows of one batch do not change each other (naiad compare)."
            )
    return found


def _about_second(survey: Survey, ranking: Ranking, winner: Ranked) -> list[str]:
    """Compare with the next one of the comparison, in the figures of its table."""
    tied = [each.measured for each in ranking.candidates if each.is_tie]
    if tied:
        lead = max(compare(survey.goals, winner.measured, each).uncertainty for each in tied)
        return [
            f"Its difference from {_list(tied)} is within the uncertainty of {lead * 100:.1f} %; "
            "of the candidates within 3 %, the simplest is chosen."
        ]
    second = next((each for each in ranking.candidates[1:] if each.meets_constraints), None)
    if second is not None and not _is_baseline(ranking, second):
        lead = percent_gain(survey.goals, winner.measured, second.measured).value
        side = "better" if lead >= 0 else "worse"
        return [f"It is {abs(lead):.1f} % {side} than the second, {_name(second.measured)}, under the same load."]
    if second is None and len(ranking.candidates) > 1:
        return [f"It is the only one of {len(ranking.candidates)} that meets the constraints under this load."]
    return []


def _about_drift(survey: Survey) -> list[str]:
    """Say when the configuration of the repository is not as fast at the end as at the beginning."""
    name = configuration_key(repository_configuration(survey.space))
    for measured in survey.usable:
        repeats = survey.repeats(measured.point)
        if configuration_key(measured.point.variants) != name or len(repeats) < 2:
            continue
        for model, metrics in repeats[-1].metrics.items():
            before = repeats[0].metrics.get(model, {}).get("perf_throughput")
            if before is None or "perf_throughput" not in metrics:
                continue
            change = interval_gain("perf_throughput", metrics["perf_throughput"], before)
            if abs(change.value) > max(change.uncertainty, _DRIFT):
                side = "faster" if change.value > 0 else "slower"
                return [
                    f"The machine drifted: the configuration of the repository was {abs(change.value) * 100:.0f} % "
                    f"{side} at the end of the search than at its beginning."
                ]
    return []


def _about_other_programs(ranking: Ranking) -> list[str]:
    """Say when other programs competed for the cores."""
    measured = [each for each in ranking.measurements if not each.error]
    disturbed = [each.foreign_cores for each in measured if each.foreign_cores >= _FOREIGN_CORES]
    if not disturbed:
        return []
    return [
        f"Other programs used {statistics.fmean(disturbed):.1f} cores of the machine during {len(disturbed)} of "
        f"{len(measured)} points, so these figures are rough: stop them and analyse again."
    ]


def _name(measured: Measured) -> str:
    return " + ".join(each.name for each in measured.point.variants)


def _list(measured: Sequence[Measured]) -> str:
    names = [_name(each) for each in measured[:_NAMED]]
    return ", ".join(names) + (f" and {len(measured) - _NAMED} more" if len(measured) > _NAMED else "")


def _changes(survey: Survey, measured: Measured) -> str:
    found: list[str] = []
    for variant in measured.point.variants:
        configured = survey.settings.configured.get(variant.model, {})
        prefix = f"{variant.model}: " if len(measured.point.variants) > 1 else ""
        for field, value in changes(variant, survey.settings).items():
            before = f"from {configured[field]} " if field in configured else ""
            found.append(f"{prefix}{field} {before}to {'off' if value is None else value}")
    return ", ".join(found) or "nothing"


def _figures(measured: Measured) -> str:
    throughput = sum(
        metrics["perf_throughput"].value for metrics in measured.metrics.values() if "perf_throughput" in metrics
    )
    p99_ms = max(
        (metrics["perf_latency_p99"].value for metrics in measured.metrics.values() if "perf_latency_p99" in metrics),
        default=0.0,
    )
    return f"{throughput:,.1f} inferences/s with p99 {p99_ms:.3g} ms"


def _ms(value_us: float) -> str:
    return f"{value_us / 1e3:.3g} ms"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

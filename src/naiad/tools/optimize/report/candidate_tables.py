"""The candidates as a table in the terminal and as CSV."""

import csv
from collections.abc import Mapping
from pathlib import Path

from naiad.tools.optimize.optimize_result import OptimizationResult
from naiad.tools.optimize.report.candidate_figures import Figures, figures_of

_HEADINGS = (
    "", "candidate", "precision", "status", "measured", "latency ms", "samples/s", "gain", "memory MiB", "difference",
)  # fmt: skip
_TEXTS = 5
"""Columns of text at the left."""


def text_table(result: OptimizationResult) -> str:
    """Return what won and why, the candidates, and the reasons of those that failed."""
    rows = [_HEADINGS, *(_cells(each, result.winner) for each in figures_of(result))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = [result.why, ""]
    for row in rows:
        cells = [
            cell.ljust(width) if column < _TEXTS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    if len({row[4] for row in rows[1:]} - {""}) > 1:
        lines += ["", "Compare latencies and rates that were measured alike: served by naiad, or called directly."]
    alike: dict[str, list[str]] = {}
    for each in result.outcomes:
        if each.reason:
            alike.setdefault(f"{each.status.value}: {each.reason}", []).append(each.candidate.name)
    reasons = [f"{', '.join(names)}: {reason}" for reason, names in alike.items()]
    reasons += [
        f"{each.candidate.name}: not shown by these samples: {'; '.join(each.verdict.not_shown)}"
        for each in result.outcomes
        if each.verdict and each.verdict.not_shown and each.candidate.name == result.winner
    ]
    reasons += [
        f"{each.candidate.name}: {note}" for each in result.outcomes if each.verdict for note in each.verdict.notes
    ]
    return "\n".join([*lines, *([""] if reasons else []), *reasons])


def _cells(figures: Figures, winner: str) -> tuple[str, ...]:
    outcome = figures.outcome
    return (
        "*" if outcome.candidate.name == winner else "",
        outcome.candidate.name,
        outcome.candidate.precision.value,
        outcome.status.value,
        figures.measured,
        f"{figures.latency.value / 1e3:.3g}" if figures.latency else "",
        rate(figures.throughput.value) if figures.throughput else "",
        gains(figures),
        f"{figures.memory_mib:.0f}" if figures.memory_mib else "",
        f"{max(outcome.verdict.worst_absolute.values()):.2g}"
        if outcome.verdict and outcome.verdict.worst_absolute
        else "",
    )


def gains(figures: Figures) -> str:
    """Return both factors over the source: that of the latency and that of the throughput."""
    if figures.latency_gain is None or figures.throughput_gain is None:
        return ""
    return f"{figures.latency_gain:.2f} / {figures.throughput_gain:.2f}"


def rate(per_s: float) -> str:
    """Return a rate for reading."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def write_csv(result: OptimizationResult, path: Path) -> None:
    """Write a row for each candidate; figures that were not measured are empty. Raises OSError."""
    rows = [_row(each, result.winner) for each in figures_of(result)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["candidate"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _row(figures: Figures, winner: str) -> dict[str, object]:
    outcome, fastest, busiest, served = figures.outcome, figures.fastest, figures.busiest, figures.served
    candidate, verdict = outcome.candidate, outcome.verdict
    return {
        "candidate": candidate.name,
        "is_winner": candidate.name == winner,
        "format": candidate.format.value,
        "precision": candidate.precision.value,
        "backend": candidate.backend,
        "status": outcome.status.value,
        "reason": outcome.reason,
        "worst_absolute": _by_output(verdict.worst_absolute) if verdict else "",
        "worst_relative": _by_output(verdict.worst_relative) if verdict else "",
        "top1_agreement": _by_output(verdict.top1_agreement) if verdict else "",
        "metric": "" if verdict is None or verdict.metric is None else verdict.metric,
        "source_metric": "" if verdict is None or verdict.source_metric is None else verdict.source_metric,
        "latency_us": fastest.latency.value if fastest else "",
        "latency_runtime": fastest.runtime.name if fastest else "",
        "throughput_per_s": busiest.throughput.value if busiest else "",
        "throughput_runtime": busiest.runtime.name if busiest else "",
        "batch": busiest.batch if busiest else "",
        "memory_mib": busiest.memory_mib if busiest else "",
        "served_latency_us": served.latency.value if served else "",
        "served_latency_p99_us": served.latency_p99_us if served else "",
        "served_throughput_per_s": served.throughput.value if served else "",
        "served_concurrency": served.concurrency if served else "",
        "served_memory_mib": served.memory_mib if served else "",
        "latency_gain": "" if figures.latency_gain is None else figures.latency_gain,
        "throughput_gain": "" if figures.throughput_gain is None else figures.throughput_gain,
    }


def _by_output(values: Mapping[str, float]) -> str:
    return "; ".join(f"{name}={value:.6g}" for name, value in values.items())

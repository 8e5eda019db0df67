"""The report as one HTML file, without scripts and without a network."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from naiad.tools.measure.page import Page
from naiad.tools.measure.result import Interval
from naiad.tools.optimize.candidate import Status
from naiad.tools.optimize.optimize_result import OptimizationResult, Outcome
from naiad.tools.optimize.report import candidate_charts
from naiad.tools.optimize.report.candidate_figures import Figures, figures_of
from naiad.tools.optimize.report.candidate_tables import gains, rate

_COLUMNS = (
    "candidate", "format", "precision", "status", "worst difference", "top-1", "measured", "latency ms", "samples/s",
    "memory MiB", "gain: latency / throughput",
)  # fmt: skip
_TEXTS = (0, 1, 2, 3, 4, 6)
_FAILED_COLUMNS = ("candidate", "check", "output", "sample", "element", "source", "candidate has", "reason")
_CLASSES = {Status.REJECTED: "bad", Status.FAILED: "bad"}


def write_html(result: OptimizationResult, path: Path) -> None:
    """Write the report. Raises OSError, ChartsMissingError."""
    report(result).write(path)


def report(result: OptimizationResult) -> Page:
    """Return the page. Raises ChartsMissingError."""
    page = Page(f"Optimization of {result.source.name}")
    page.text(result.why if result.winner in result.why else f"{result.winner}: {result.why}")
    figures = figures_of(result)
    _add_tiles(page, result, figures)
    page.heading("Candidates")
    page.table(
        _COLUMNS,
        [_cells(each) for each in figures],
        [_class(each.outcome, result.winner) for each in figures],
        _TEXTS,
    )
    page.text(
        "Latency and throughput are naiad's under load where a candidate was served, otherwise of direct "
        "calls. The gain is the factor over the source, of figures that were measured alike.",
        is_note=True,
    )
    _add_failures(page, result)
    _add_charts(page, result, figures)
    page.heading("Run")
    page.code(shlex.join(result.command))
    facts = {
        "started": result.started,
        "duration": f"{result.duration_s:.0f} s",
        "samples": str(result.samples),
        "strategy": result.objective.strategy.value,
        "SHA-256 of the source": result.source_digest,
        "SHA-256 of the samples": result.samples_digest,
        **{name.replace("_mib", ", MiB"): value for name, value in result.environment.items()},
    }
    page.table(("", ""), list(facts.items()), texts=(0, 1))
    return page


def _add_tiles(page: Page, result: OptimizationResult, figures: Sequence[Figures]) -> None:
    counts = {status: sum(each.status is status for each in result.outcomes) for status in Status}
    tiles = [(str(counts[status]), status.value) for status in reversed(Status) if counts[status]]
    winner = next((each for each in figures if each.outcome.candidate.name == result.winner), None)
    if winner is not None and winner.throughput and winner.latency:
        tiles = [
            (f"{rate(winner.throughput.value)}/s", "throughput of the winner"),
            (f"{winner.latency.value / 1e3:.3g} ms", "its latency"),
            *([(gains(winner), "gain in latency / throughput")] if gains(winner) else []),
            *tiles,
        ]
    page.tiles(tiles)


def _cells(figures: Figures) -> tuple[str, ...]:
    outcome = figures.outcome
    candidate, verdict = outcome.candidate, outcome.verdict
    differences = verdict.worst_absolute if verdict else {}
    agreement = verdict.top1_agreement if verdict else {}
    return (
        candidate.name,
        candidate.format.value,
        candidate.precision.value,
        outcome.status.value,
        ", ".join(_whole(f"{name} {value:.2g}") for name, value in differences.items()),
        ", ".join(f"{value:.2%}" for value in agreement.values()),
        figures.measured,
        _spread(figures.latency, 1e-3),
        _spread(figures.throughput, 1.0),
        f"{figures.memory_mib:.0f}" if figures.memory_mib else "",
        gains(figures),
    )


def _whole(text: str) -> str:
    """Return text that no line break divides."""
    return text.replace(" ", "\u00a0").replace("-", "\u2011")


def _spread(interval: Interval | None, scale: float) -> str:
    if interval is None:
        return ""
    value, half = interval.value * scale, (interval.high - interval.low) / 2 * scale
    return _whole(f"{f'{value:.3g}' if value < 100 else f'{value:,.0f}'} ± {_short(half)}")


def _short(half: float) -> str:
    return f"{half:.2g}" if half < 10 else f"{half:,.0f}"


def _class(outcome: Outcome, winner: str) -> str:
    return "best" if outcome.candidate.name == winner else _CLASSES.get(outcome.status, "")


def _add_charts(page: Page, result: OptimizationResult, figures: Sequence[Figures]) -> None:
    measured = [each for each in figures if each.latency]
    if measured:
        page.heading("Latency")
        page.chart(
            candidate_charts.latencies(measured, result.winner),
            "The lines at the bars are 95 % confidence intervals.",
        )
        page.heading("Throughput")
        page.chart(candidate_charts.throughputs(measured, result.winner))
    for each in result.outcomes:
        if each.curve:
            page.heading(f"Accuracy over speed: {each.candidate.name}")
            page.chart(
                candidate_charts.accuracy_over_speed(each.curve),
                "The search for sensitive layers: each point keeps some nodes in higher precision.",
            )
    if measured:
        page.heading("Memory")
        page.chart(candidate_charts.memories(measured, result.winner))


def _add_failures(page: Page, result: OptimizationResult) -> None:
    rows: list[tuple[str, ...]] = []
    for each in result.outcomes:
        name = each.candidate.name
        failures = each.verdict.failures if each.verdict else ()
        if not failures and each.status in (Status.FAILED, Status.REJECTED, Status.NOT_RUN):
            rows.append((name, each.status.value, "", "", "", "", "", each.reason))
        for failure in failures:
            values = [
                f"{value:.6g}" if isinstance(value, float) else value for value in (failure.expected, failure.found)
            ]
            sample = "" if failure.sample < 0 else str(failure.sample)
            element = str(list(failure.index)) if failure.index else ""
            rows.append((name, failure.check, failure.output, sample, element, *values, failure.message))
    if rows:
        page.heading("Not chosen, and why")
        page.table(_FAILED_COLUMNS, rows, texts=(0, 1, 2, 7))

"""The HTML report of an analysis, in one file; as PDF where Chromium is installed."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from naiad.tools.analyze.point_measurement import Ranked, Ranking
from naiad.tools.analyze.report import analyze_charts
from naiad.tools.analyze.report.analyze_tables import by_load, gain_text, mark, variants_text
from naiad.tools.analyze.report.analyze_text import latency_ms
from naiad.tools.measure.charts import parts_of_requests
from naiad.tools.measure.page import Page
from naiad.tools.measure.result import Interval
from naiad.tools.process.child import ProcessError
from naiad.tools.process.running import run_checked

_log = logging.getLogger(__name__)
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PDF_TIMEOUT_S = 60
_COLUMNS = ("", "configuration", "inferences/s", "p50 ms", "p99 ms", "gain", "constraints")
_UNCOMPARED_COLUMNS = (*_COLUMNS[:5], _COLUMNS[6])
_TEXTS = (0, 1, 6)
_UNCOMPARED_TEXTS = (0, 1, 5)


def report(ranking: Ranking, title: str, facts: Sequence[tuple[str, str]] = (), limit_ms: float = 0.0) -> Page:
    """Return the page. `facts` describe the run: machine, server, command. Raises ChartsMissingError."""
    page = Page(title)
    page.text(ranking.reason)
    if ranking.is_compared and ranking.winner is not None and ranking.winner.gain_percent is not None:
        _add_tiles(page, ranking, ranking.winner, ranking.winner.gain_percent)
    if ranking.is_compared:
        load = ranking.candidates[0].measured.point.load
        page.heading(f"Comparison in {ranking.turns} turns under {load}")
        rows, classes = _table(ranking, ranking.candidates)
        page.table(_COLUMNS, rows, classes, _TEXTS)
    page.heading("Throughput and latency")
    page.chart(
        analyze_charts.throughput_over_p99(ranking, limit_ms),
        "Each point is a measurement. No measurement is better in both ways than one on the Pareto front.",
    )
    named = analyze_charts.bar_names(ranking)
    if named:
        page.heading("Where the time goes")
        page.chart(
            parts_of_requests([(name, next(iter(each.rows.values()))) for name, each in named]),
            "Mean parts of a request of what was compared.",
        )
    _add_memory(page, ranking)
    if ranking.predictions:
        page.heading("Prediction")
        page.chart(
            analyze_charts.predicted_over_measured(ranking),
            f"{len(ranking.predictions)} configurations were predicted by simulation, "
            f"{len(ranking.measurements)} measured. On the line both agree.",
        )
    for load, ranked in by_load(ranking.others).items():
        page.heading(f"Measured under {load}, not compared")
        rows, classes = _table(ranking, ranked)
        page.table(_UNCOMPARED_COLUMNS, [(*row[:5], row[6]) for row in rows], [""] * len(classes), _UNCOMPARED_TEXTS)
    _add_failures(page, ranking)
    if facts:
        page.heading("Run")
        page.table(("", ""), facts, texts=(0, 1))
    return page


def _add_tiles(page: Page, ranking: Ranking, winner: Ranked, gain_percent: Interval) -> None:
    throughput = sum(row.inferences_per_s for row in winner.measured.rows.values())
    tiles = [
        (f"{throughput:,.0f}/s", "throughput of the winner"),
        (f"{latency_ms(winner.measured, 99):.3g} ms", "its p99 latency"),
        (f"{gain_percent.value:+.0f} %", f"gain under {winner.measured.point.load}"),
        (str(len(ranking.measurements)), "measurements"),
    ]
    page.tiles(tiles)


def _table(ranking: Ranking, ranked: Sequence[Ranked]) -> tuple[list[tuple[str, ...]], list[str]]:
    rows: list[tuple[str, ...]] = []
    classes: list[str] = []
    for index, each in enumerate(ranked, 1):
        measured = each.measured
        throughput = sum(row.inferences_per_s for row in measured.rows.values())
        rows.append(
            (
                f"{index} {mark(ranking, each)}".strip(),
                variants_text(measured),
                f"{throughput:,.1f}",
                f"{latency_ms(measured, 50):.3g}",
                f"{latency_ms(measured, 99):.3g}",
                gain_text(ranking, each, 1),
                "met" if each.meets_constraints else each.misses,
            )
        )
        is_winner = ranking.winner is not None and each.measured.point.key == ranking.winner.measured.point.key
        classes.append("best" if is_winner else "" if each.meets_constraints else "bad")
    return rows, classes


def _add_memory(page: Page, ranking: Ranking) -> None:
    found = {name for each in ranking.measurements for metrics in each.metrics.values() for name in metrics}
    for metric, unit, title in (
        ("cpu_used_ram", "RAM, MB", "Memory"),
        ("gpu_used_memory", "GPU memory, MB", "GPU memory"),
    ):
        if metric in found:
            page.heading(title)
            page.chart(
                analyze_charts.memory_over_p99([each for each in ranking.measurements if each.rows], metric, unit)
            )


def _add_failures(page: Page, ranking: Ranking) -> None:
    failed = [each for each in ranking.measurements if each.error]
    if failed:
        page.heading("Failed")
        rows = [(variants_text(each), each.point.load, each.error) for each in failed]
        page.table(("configuration", "load", "reason"), rows, texts=(0, 1, 2))


def write_pdf(html: Path, pdf: Path) -> bool:
    """Print the page with Chromium; return whether that succeeded. Raises OSError."""
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        return False
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    command += [f"--print-to-pdf={pdf}", html.resolve().as_uri()]
    try:
        run_checked(command, _PDF_TIMEOUT_S)
    except ProcessError as error:
        _log.warning("%s has the report; there is no PDF of it: %s", html, error)
        return False
    return True

"""The HTML report of a run."""

from naiad.tools.measure import charts
from naiad.tools.measure.page import Page
from naiad.tools.measure.result import Result, Row
from naiad.tools.perf.report.perf_text import row_title

_LIMITED_BY = {
    "server": "server",
    "generator": "generator",
    "network": "network",
    "load": "load (all was answered)",
}
_COLUMNS = (
    "load", "inferences/s", "95 %", "p50 ms", "p90 ms", "p99 ms (95 %)", "goodput/s", "errors", "limited by",
    "stable",
)  # fmt: skip
_TEXTS = (8, 9)


def report(result: Result, latency_limit_us: float = 0.0) -> Page:
    """Return the report of a run. Raises ChartsMissingError."""
    models = ", ".join(dict.fromkeys(row.model for row in result.rows)) or "no model"
    page = Page(f"Performance of {models}")
    page.text(f"{result.started}, {result.environment.get('server', 'unknown server')}", is_note=True)
    if result.exit_reason:
        page.text(f"The run ended early: {result.exit_reason}")
    if not result.rows:
        page.text("Nothing was measured.")
        return page
    _add_tiles(page, result)
    page.heading("Loads")
    page.table(
        _COLUMNS,
        [_cells(row) for row in result.rows],
        ["" if row.is_stable and row.generator.limited_by != "generator" else "bad" for row in result.rows],
        _TEXTS,
    )
    page.text(
        "A latency counts from the moment at which the request was due to the last byte of its response. 95 % is the "
        "confidence interval of the figure before it.",
        is_note=True,
    )
    page.heading("Latency over throughput")
    page.chart(charts.latency_over_throughput(result.rows, latency_limit_us), "Numbers at the points are the loads.")
    page.heading("Percentiles")
    page.chart(charts.latency_percentiles(result.rows), "The tail of the distribution: each step adds a nine.")
    page.heading("Where the time goes")
    page.chart(
        charts.parts_of_requests([(f"{row.value:g}", row) for row in result.rows], "load"), _parts_caption(result)
    )
    page.heading("Over time")
    for row in result.rows:
        _add_timeline(page, row)
    _add_errors(page, result)
    page.heading("Run")
    page.code(" ".join(result.command))
    page.table(("", ""), [(name, value) for name, value in result.environment.items()], texts=(0, 1))
    return page


def _add_tiles(page: Page, result: Result) -> None:
    best = max(result.rows, key=lambda row: row.throughput.value)
    fastest = min(result.rows, key=lambda row: row.latency.percentiles[50].value)
    tiles = [
        (f"{_rate(best.inferences_per_s)}/s", f"highest throughput, at {best.mode.replace('_', ' ')} {best.value:g}"),
        (f"{best.latency.percentiles[99].value / 1e3:.3g} ms", "p99 there"),
        (f"{fastest.latency.percentiles[50].value / 1e3:.3g} ms", "lowest p50"),
        (str(sum(error.count for row in result.rows for error in row.errors)), "errors"),
    ]
    if result.found is not None:
        tiles.append((f"{result.found:g}", "highest load within the latency limit"))
    page.tiles(tiles)


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _cells(row: Row) -> tuple[str, ...]:
    throughput = row.throughput
    size = row.batch_size
    return (
        f"{row.mode.replace('_', ' ')} {row.value:g}",
        _rate(row.inferences_per_s),
        f"{_rate(throughput.low * size)} to {_rate(throughput.high * size)}",
        f"{row.latency.percentiles[50].value / 1e3:.3g}",
        f"{row.latency.percentiles[90].value / 1e3:.3g}",
        charts.spread(row.latency),
        _rate(row.goodput.value * size),
        str(sum(error.count for error in row.errors)),
        _LIMITED_BY.get(row.generator.limited_by, row.generator.limited_by),
        "yes" if row.is_stable else f"no: {row.verdict}",
    )


def _parts_caption(result: Result) -> str:
    sampled = sum(row.parts.requests for row in result.rows if row.parts is not None)
    if sampled:
        return f"Means of {sampled} sampled requests, from the times that the server sent with their responses."
    return "Means of the server's statistics; the rest of the service time is shown as network."


def _add_timeline(page: Page, row: Row) -> None:
    if len(row.windows) > 1:
        page.chart(charts.timeline(row), row_title(row))


def _add_errors(page: Page, result: Result) -> None:
    rows = [
        (f"{row.mode.replace('_', ' ')} {row.value:g}", error.kind, str(error.count), error.message)
        for row in result.rows
        for error in row.errors
    ]
    if rows:
        page.heading("Errors")
        page.table(("load", "kind", "count", "first message"), rows, texts=(1, 3))

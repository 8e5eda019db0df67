"""The result of an analysis in the terminal."""

from naiad.analyze.measurement import Measured, Ranked, Ranking
from naiad.analyze.report.tables import load_name, variants_text

_SHOWN = 10


def ranking_text(ranking: Ranking) -> str:
    """Return a table of the best candidates, the configuration of the repository, and the reason."""
    if not ranking.measurements:
        return ranking.reason
    rows: list[tuple[str, ...]] = [("", "throughput/s", "p50 ms", "p99 ms", "gain", "load", "configuration")]
    rows += [_row(each) for each in ranking.candidates[:_SHOWN]]
    if ranking.baseline is not None and not ranking.baseline.error:
        rows.append(("now", *_figures(ranking.baseline), "", load_name(ranking.baseline), "as configured"))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = [
        "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[6]]) for row in rows
    ]
    failed = [each for each in ranking.measurements if each.error]
    lines += [f"failed: {variants_text(each)}: {each.error}" for each in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        lines.append(f"failed: {len(failed) - _SHOWN} more")
    return "\n".join([*lines, "", ranking.reason])


def _row(ranked: Ranked) -> tuple[str, ...]:
    mark = "tie" if ranked.is_tie else "" if ranked.meets_constraints else "misses"
    gain = f"{ranked.gain_percent:+.0f} %"
    return (mark, *_figures(ranked.measured), gain, load_name(ranked.measured), variants_text(ranked.measured))


def _figures(measured: Measured) -> tuple[str, str, str]:
    throughput = sum(row.inferences_per_s for row in measured.rows.values())
    p50_ms, p99_ms = (latency_ms(measured, percentile) for percentile in (50, 99))
    return f"{throughput:,.1f}", f"{p50_ms:.3g}", f"{p99_ms:.3g}"


def latency_ms(measured: Measured, percentile: int) -> float:
    """Return a percentile of the latency, of the slowest model under load."""
    values = [row.latency.percentiles[percentile].value for row in measured.rows.values()]
    return max(values, default=0.0) / 1e3

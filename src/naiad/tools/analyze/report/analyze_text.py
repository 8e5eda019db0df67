"""The result of an analysis in the terminal."""

from collections.abc import Sequence

from naiad.tools.analyze.point_measurement import Measured, Ranked, Ranking
from naiad.tools.analyze.report.analyze_tables import by_load, gain_text, mark, variants_text

_SHOWN = 10


def ranking_text(ranking: Ranking) -> str:
    """Return the table of the comparison, or tables of each load where nothing was compared, and the reason."""
    if not ranking.measurements:
        return ranking.reason
    lines: list[str] = []
    if ranking.is_compared:
        load = ranking.candidates[0].measured.point.load
        lines += [f"compared in {ranking.turns} turns under {load}:", *_table(ranking, ranking.candidates)]
        if ranking.others:
            lines.append(f"measured, not compared: {len(ranking.others)} more, in the reports")
    else:
        for load, ranked in by_load(ranking.others[:_SHOWN]).items():
            lines += [f"measured under {load}, not compared:", *_table(ranking, ranked)]
    failed = [each for each in ranking.measurements if each.error]
    lines += [f"failed: {variants_text(each)}: {each.error}" for each in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        lines.append(f"failed: {len(failed) - _SHOWN} more")
    return "\n".join([*lines, "", ranking.reason])


def _table(ranking: Ranking, ranked: Sequence[Ranked]) -> list[str]:
    names = ("", "throughput/s", "p50 ms", "p99 ms", "gain" if ranking.is_compared else "", "configuration")
    rows = [names, *(_row(ranking, each) for each in ranked)]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[5]]) for row in rows
    ]


def _row(ranking: Ranking, ranked: Ranked) -> tuple[str, ...]:
    gain = gain_text(ranking, ranked)
    return (mark(ranking, ranked), *_figures(ranked.measured), gain, variants_text(ranked.measured))


def _figures(measured: Measured) -> tuple[str, str, str]:
    throughput = sum(row.inferences_per_s for row in measured.rows.values())
    p50_ms, p99_ms = (latency_ms(measured, percentile) for percentile in (50, 99))
    return f"{throughput:,.1f}", f"{p50_ms:.3g}", f"{p99_ms:.3g}"


def latency_ms(measured: Measured, percentile: int) -> float:
    """Return a percentile of the latency, of the slowest model under load."""
    values = [row.latency.percentiles[percentile].value for row in measured.rows.values()]
    return max(values, default=0.0) / 1e3

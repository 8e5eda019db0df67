"""Charts of an analysis."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from naiad.tools.analyze.point_measurement import Measured, Ranking
from naiad.tools.analyze.report.analyze_text import latency_ms
from naiad.tools.measure.charts import colour, draw, log_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABELLED = 5


def throughput_over_p99(ranking: Ranking, limit_ms: float = 0.0) -> str:
    """Return all measurements as points, with the Pareto front and the limit.

    The winner and the configuration of the repository are marked with their figures of the comparison.
    """

    def paint(axes: "Axes") -> None:
        measured = [each for each in ranking.measurements if each.rows]
        axes.scatter(*_points(measured), s=16, color="#94a3b8", label="measured")
        front = sorted(ranking.pareto, key=lambda each: latency_ms(each, 99))
        axes.plot(*_points(front), color=colour(0), linewidth=1.2, marker="o", markersize=4, label="Pareto front")
        if ranking.is_compared and ranking.baseline is not None and ranking.baseline.rows:
            axes.scatter(*_points([ranking.baseline]), marker="s", s=48, color=colour(1), label="as configured now")
        if ranking.is_compared and ranking.winner is not None:
            axes.scatter(
                *_points([ranking.winner.measured]), marker="*", s=170, color=colour(2), label="winner", zorder=5
            )
        if limit_ms:
            axes.axvline(limit_ms, color="#24292f", linestyle="--", linewidth=1, label="latency limit")
        log_axis(axes)
        axes.set_xlabel("p99 latency, ms")
        axes.set_ylabel("inferences/s")
        axes.set_ylim(0, max(_points(measured)[1], default=1.0) * 1.1)
        axes.legend(frameon=False, fontsize=8)

    return draw(paint, 4.2)


def _points(measured: Sequence[Measured]) -> tuple[list[float], list[float]]:
    return (
        [latency_ms(each, 99) for each in measured],
        [sum(row.inferences_per_s for row in each.rows.values()) for each in measured],
    )


def memory_over_p99(measured: Sequence[Measured], metric: str, unit: str) -> str:
    """Return the memory of each measurement over its latency."""

    def paint(axes: "Axes") -> None:
        shown = [each for each in measured if any(metric in metrics for metrics in each.metrics.values())]
        memory = [max(m[metric].value for m in each.metrics.values() if metric in m) for each in shown]
        axes.scatter([latency_ms(each, 99) for each in shown], memory, s=16, color=colour(4))
        log_axis(axes)
        axes.set_xlabel("p99 latency, ms")
        axes.set_ylabel(unit)
        axes.set_ylim(0, max(memory, default=1.0) * 1.15)

    return draw(paint, 3.0)


def predicted_over_measured(ranking: Ranking) -> str:
    """Return the predicted throughput of the points that were measured, over the measured one."""

    def paint(axes: "Axes") -> None:
        expected = {each.point.key: each.throughput for each in ranking.predictions}
        pairs = [
            (sum(row.throughput.value for row in each.rows.values()), expected[each.point.key])
            for each in ranking.measurements
            if each.rows and each.point.key in expected
        ]
        top = max((max(pair) for pair in pairs), default=1.0) * 1.05
        axes.plot([0, top], [0, top], color="#94a3b8", linewidth=1, linestyle="--")
        axes.scatter([measured for measured, _ in pairs], [each for _, each in pairs], s=22, color=colour(0))
        axes.set_xlabel("measured requests/s")
        axes.set_ylabel("predicted requests/s")
        axes.set_xlim(0, top)
        axes.set_ylim(0, top)

    return draw(paint, 3.4)


def bar_names(ranking: Ranking) -> list[tuple[str, Measured]]:
    """Return what the chart of parts shows, with its name: what was compared, under one load."""
    baseline = ranking.baseline.point.key if ranking.baseline is not None else ""
    return [
        ("now" if each.measured.point.key == baseline else str(index), each.measured)
        for index, each in enumerate(ranking.candidates[:_LABELLED], 1)
        if each.measured.rows
    ]

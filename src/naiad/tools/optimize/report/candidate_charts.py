"""Charts of an optimization."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from naiad.tools.measure.charts import colour, draw
from naiad.tools.measure.result import Interval
from naiad.tools.optimize.optimize_result import CurvePoint
from naiad.tools.optimize.report.candidate_figures import Figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR = 0.38
_DIRECT, _SERVED = "called directly", "served by naiad"


def latencies(figures: Sequence[Figures], winner: str) -> str:
    """Return the latency of one sample by candidate, in ms with intervals."""
    return _bars(
        figures,
        winner,
        lambda each: each.fastest.latency if each.fastest else None,
        lambda each: each.served.latency if each.served else None,
        1e-3,
        "median latency of one sample, ms; shorter is better",
    )


def throughputs(figures: Sequence[Figures], winner: str) -> str:
    """Return the throughput by candidate, in samples/s with intervals."""
    return _bars(
        figures,
        winner,
        lambda each: each.busiest.throughput if each.busiest else None,
        lambda each: each.served.throughput if each.served else None,
        1.0,
        "samples/s at the best batch size; longer is better",
    )


def memories(figures: Sequence[Figures], winner: str) -> str:
    """Return the memory by candidate, in MiB: of the model alone, and of the server with it."""

    def exact(value: float | None) -> Interval | None:
        return Interval(value, value, value) if value else None

    return _bars(
        figures,
        winner,
        lambda each: exact(each.busiest.memory_mib if each.busiest else None),
        lambda each: exact(each.served.memory_mib if each.served else None),
        1.0,
        "resident memory, MiB",
    )


def _bars(
    figures: Sequence[Figures],
    winner: str,
    direct: Callable[[Figures], Interval | None],
    served: Callable[[Figures], Interval | None],
    scale: float,
    label: str,
) -> str:
    def paint(axes: "Axes") -> None:
        for index, (name, kind) in enumerate(((_DIRECT, direct), (_SERVED, served))):
            found = [(place, interval) for place, each in enumerate(figures) if (interval := kind(each))]
            if not found:
                continue
            # A candidate with one bar has it beside its name, with two on both sides.
            both = [place for place, each in enumerate(figures) if direct(each) and served(each)]
            at = [place + (index - 0.5) * _BAR * (place in both) for place, _ in found]
            values = [each.value * scale for _, each in found]
            errors = [
                [max(0.0, each.value - each.low) * scale for _, each in found],
                [max(0.0, each.high - each.value) * scale for _, each in found],
            ]
            bars = axes.barh(
                at, values, height=_BAR * 0.9, xerr=errors if any(map(any, errors)) else None,
                color=colour(index * 2), label=name,
                error_kw={"ecolor": "#24292f", "elinewidth": 1, "capsize": 2},
            )  # fmt: skip
            axes.bar_label(bars, [f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in values],
                           padding=6, fontsize=8)  # fmt: skip
        names = [each.outcome.candidate.name for each in figures]
        axes.set_yticks(range(len(names)), [f"{name} (winner)" if name == winner else name for name in names])
        axes.grid(visible=False, axis="y")
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlim(left=0)
        axes.set_xlabel(label)
        axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0))

    return draw(paint, 1.3 + 0.5 * len(figures))


def accuracy_over_speed(points: Sequence[CurvePoint]) -> str:
    """Return the differences of a sensitivity search over the latency, or over the share of nodes if not measured."""
    is_timed = any(each.latency_us for each in points)

    def across(point: CurvePoint) -> float:
        return point.latency_us / 1e3 if is_timed else point.share * 100

    def paint(axes: "Axes") -> None:
        shown = sorted((each for each in points if each.latency_us or not is_timed), key=across)
        axes.plot([across(each) for each in shown], [each.error for each in shown], color="#94a3b8", linewidth=1)
        for is_accepted, name in ((True, "accepted"), (False, "rejected")):
            some = [each for each in shown if each.is_accepted is is_accepted]
            if some:
                axes.scatter([across(each) for each in some], [each.error for each in some], s=34, zorder=3,
                             color=colour(2 if is_accepted else 1), label=name)  # fmt: skip
        for each in shown:
            axes.annotate(
                f"{len(each.kept)} kept, {each.share:.0%} low", (across(each), each.error),
                textcoords="offset points", xytext=(6, 5), fontsize=8,
            )  # fmt: skip
        axes.set_xlabel("latency of one sample, ms" if is_timed else "nodes in lower precision, %")
        axes.set_ylabel("worst difference")
        axes.margins(x=0.15)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=8)

    return draw(paint, 3.2)

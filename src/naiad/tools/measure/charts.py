"""Charts of a result, as SVG for a page. Drawn with matplotlib, which the extra `report` installs."""

import importlib.util
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from naiad.tools.measure.result import Latency, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PERCENTILES = (50, 90, 95, 99)
_COLOURS = (
    "#1f6feb", "#d1495b", "#2a9d8f", "#e9a23b", "#7a5cc7", "#5f6b7a", "#0b7285", "#9c6644", "#b5179e", "#94a3b8",
    "#4d7c0f", "#111827",
)  # fmt: skip
_WIDTH_INCHES = 7.6
_SVG_METADATA = {"Date": None, "Creator": "naiad"}


class ChartsMissingError(ImportError):
    """matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__("an HTML report needs matplotlib; pip install 'naiad[report]'")


def check_charts() -> None:
    """Raise ChartsMissingError unless charts can be drawn; it imports nothing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ChartsMissingError


def draw(paint: "Callable[[Axes], None]", height_inches: float = 3.6) -> str:
    """Return the chart that `paint` makes as an SVG element. Raises ChartsMissingError."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ChartsMissingError from None
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "naiad", "font.family": "sans-serif", "font.size": 9}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
        axes = figure.subplots()
        axes.grid(visible=True, color="#d0d7de", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        paint(axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata=_SVG_METADATA)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def log_axis(axes: "Axes") -> None:
    """Make the horizontal axis logarithmic, with plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def colour(index: int) -> str:
    """Return the colour of series number `index`."""
    return _COLOURS[index % len(_COLOURS)]


def latency_over_throughput(rows: Sequence[Row], limit_us: float = 0.0) -> str:
    """Return p50 to p99 of each load over its throughput, with intervals and the latency limit."""

    def paint(axes: "Axes") -> None:
        ordered = sorted(rows, key=lambda row: row.inferences_per_s)
        rates = [row.inferences_per_s for row in ordered]
        for index, number in enumerate(_PERCENTILES):
            intervals = [row.latency.percentiles[number] for row in ordered]
            values = [each.value / 1e3 for each in intervals]
            low = [max(0.0, each.value - each.low) / 1e3 for each in intervals]
            high = [max(0.0, each.high - each.value) / 1e3 for each in intervals]
            axes.errorbar(
                rates, values, yerr=[low, high], marker="o", markersize=4, capsize=2, linewidth=1.4,
                color=colour(index), label=f"p{number}",
            )  # fmt: skip
        for row in ordered:
            position = (row.inferences_per_s, row.latency.percentiles[50].value / 1e3)
            axes.annotate(f"{row.value:g}", position, textcoords="offset points", xytext=(4, -11), fontsize=8)
        if limit_us:
            axes.axhline(limit_us / 1e3, color="#24292f", linestyle="--", linewidth=1, label="limit")
        axes.set_xlabel("inferences/s")
        axes.set_ylabel("latency, ms")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, ncols=5, loc="upper left")

    return draw(paint)


def latency_percentiles(rows: Sequence[Row]) -> str:
    """Return the latency of each load over the percentile, which is spread by nines, from the histograms."""

    def paint(axes: "Axes") -> None:
        for index, row in enumerate(rows):
            xs, ys = _tail(row.histogram)
            axes.plot(xs, ys, color=colour(index), linewidth=1.4, label=f"{row.mode.replace('_', ' ')} {row.value:g}")
        ticks = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)
        axes.set_xscale("log")
        axes.set_xticks([1 / (1 - tick) for tick in ticks], [f"p{tick * 100:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("percentile")
        axes.set_ylabel("latency, ms")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=8)

    return draw(paint)


def _tail(histogram: Sequence[tuple[float, int]]) -> tuple[list[float], list[float]]:
    """Return 1 / (1 - share of requests within the bound), and the bound in ms."""
    total = sum(count for _, count in histogram)
    xs: list[float] = []
    ys: list[float] = []
    below = 0
    for bound_us, count in histogram:
        below += count
        if count and total > below:
            xs.append(total / (total - below))
            ys.append(bound_us / 1e3)
    return xs, ys


def parts_of_requests(rows: Sequence[tuple[str, Row]], what: str = "") -> str:
    """Return the mean parts of a request as stacked bars, one a named row; `what` describes the names.

    They are on one clock where the server sends its times, otherwise from the server's statistics.
    """

    def paint(axes: "Axes") -> None:
        parts = [mean_parts_us(row) for _, row in rows]
        names = list(dict.fromkeys(name for each in parts for name in each))
        labels = [name for name, _ in rows]
        left = [0.0] * len(rows)
        for index, name in enumerate(names):
            widths = [each.get(name, 0.0) / 1e3 for each in parts]
            axes.barh(labels, widths, left=left, color=colour(index), label=name.replace("_", " "), height=0.6)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.set_xlabel("mean time, ms")
        axes.set_ylabel(what)
        axes.legend(frameon=False, ncols=5, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.25))

    return draw(paint, 1.9 + 0.35 * len(rows))


def mean_parts_us(row: Row) -> dict[str, float]:
    """Return the mean parts of a request in order."""
    if row.parts is not None and row.parts.requests:
        return {name: value for name, value in row.parts.mean_us.items() if value or name != "cache"}
    parts = {"client send": row.client.send_us, "network": row.client.network_us}
    if row.server is not None:
        parts |= {
            "queue": row.server.queue_us,
            "compute input": row.server.compute_input_us,
            "compute": row.server.compute_infer_us,
            "compute output": row.server.compute_output_us,
        }
    return parts | {"client receive": row.client.receive_us}


def timeline(row: Row) -> str:
    """Return throughput and judged latency of a load over its windows."""

    def paint(axes: "Axes") -> None:
        at = [begin_s for begin_s, _, _ in row.windows]
        axes.plot(at, [rate for _, rate, _ in row.windows], color=colour(0), label="requests/s", linewidth=1.4)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds")
        axes.set_ylabel("requests/s", color=colour(0))
        other = axes.twinx()
        other.spines["top"].set_visible(False)
        other.plot(at, [latency_us / 1e3 for _, _, latency_us in row.windows], color=colour(1), linewidth=1.2)
        other.set_ylim(bottom=0)
        other.set_ylabel("latency, ms", color=colour(1))

    return draw(paint, 2.6)


def spread(latency: Latency) -> str:
    """Return p99 with its interval, in ms."""
    interval = latency.percentiles[99]
    return f"{interval.value / 1e3:.3g} ({interval.low / 1e3:.3g} to {interval.high / 1e3:.3g})"

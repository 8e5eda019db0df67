"""The comparison of two runs in the terminal."""

from naiad.perf.statistics.comparison import Change, Comparison, FigureComparison

_NAMES = {"concurrency": "concurrency", "request_rate": "request rate"}


def comparison_text(comparison: Comparison) -> str:
    """Return a line for each figure of each load, and what it means."""
    lines = ["", "Comparison with the baseline (change, 95 % interval)"]
    lines += [_line(figure) for figure in comparison.figures]
    lines += [f"  not compared: {load}" for load in comparison.unmatched]
    if not comparison.figures:
        lines.append("  no load is in both runs")
    elif not comparison.is_repeated:
        lines.append("  Single runs: the variation between runs is assumed; --repeat 3 on both sides measures it.")
    if comparison.is_worse_past_limit:
        lines.append(f"WORSE than the baseline by more than {comparison.limit_percent:g} %")
    return "\n".join(lines)


def _line(figure: FigureComparison) -> str:
    change = figure.change_percent
    mark = "" if figure.change is Change.SAME else f"  {figure.change.value}"
    return (
        f"  {_NAMES.get(figure.mode, figure.mode)} {figure.value:g} {figure.model} {figure.figure}: "
        f"{figure.baseline:.5g} -> {figure.current:.5g}, {change.value:+.1f} % "
        f"({change.low:+.1f} to {change.high:+.1f}){mark}"
    )

"""From columns of requests to figures that can be trusted: intervals, the end of a measurement, rows, comparison.

Pure: no clock, no I/O. `verdict` ends a measurement, `row` sums it up, `compare` compares two runs.
"""

from naiad.perf.statistics.comparison import Change, Comparison, FigureComparison, compare
from naiad.perf.statistics.row import row
from naiad.perf.statistics.stability import Verdict, is_window_complete, verdict

__all__ = [
    "Change",
    "Comparison",
    "FigureComparison",
    "Verdict",
    "compare",
    "is_window_complete",
    "row",
    "verdict",
]

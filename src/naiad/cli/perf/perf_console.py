"""The progress of a run in the terminal: one line that changes, and the block of each load when it has ended."""

import sys
from collections.abc import Sequence

from naiad.cli.status_line import StatusLine
from naiad.tools.measure.result import Row
from naiad.tools.perf.measuring.level import PerfProgress, Tick
from naiad.tools.perf.perf_plan import Concurrency, Load, PeriodicConcurrency, RequestRate
from naiad.tools.perf.report.perf_text import row_text


class ConsoleProgress(PerfProgress):
    """Shows progress on stderr, and results on stdout."""

    def __init__(self, percentile: int | None, verbosity: int, *, is_quiet: bool) -> None:
        self._percentile = percentile
        self._verbosity = verbosity
        self._status = StatusLine(is_quiet=is_quiet)
        self._load = ""

    def note(self, text: str) -> None:
        """Print a sentence, also without progress: it is about what is measured."""
        print(f"note: {text}", file=sys.stderr, flush=True)

    def level_connects(self, load: Load) -> None:
        """Show that connections are opened, which takes time if they are thousands."""
        self._status.replace(f"{load_name(load)}: opens connections")

    def level_started(self, load: Load) -> None:
        """Note the load."""
        self._load = load_name(load)
        self._status.restart_interval()
        self._status.replace(f"{self._load}: warm-up")

    def tick(self, tick: Tick) -> None:
        """Show the load so far."""
        line = (
            f"{self._load}: {tick.elapsed_s:.1f} s, {tick.requests:,} requests, {tick.rate_per_s:,.0f}/s, "
            f"p50 {tick.p50_us / 1e3:.3g} ms, p99 {tick.p99_us / 1e3:.3g} ms"
        )
        if tick.failures:
            line += f", {tick.failures:,} errors"
        if tick.reason:
            line += f" ({tick.reason})"
        self._status.show(line)

    def level_done(self, rows: Sequence[Row]) -> None:
        """Print the figures of the load."""
        self.clear()
        for row in rows:
            print(row_text(row, self._percentile, self._verbosity), end="\n\n", flush=True)

    def clear(self) -> None:
        """Remove the line of progress."""
        self._status.clear()


def load_name(load: Load) -> str:
    """Return a load in words."""
    if isinstance(load, Concurrency):
        return f"concurrency {load.value}"
    if isinstance(load, PeriodicConcurrency):
        return f"periodic concurrency {load.end}"
    if isinstance(load, RequestRate):
        return f"{load.per_s:g} requests/s"
    return type(load).__name__.lower()

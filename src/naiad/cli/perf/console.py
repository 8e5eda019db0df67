"""The progress of a run in the terminal: one line that changes, and the block of each load when it has ended."""

import sys
import time
from collections.abc import Sequence

from naiad.tools.measure.result import Row
from naiad.tools.perf.measuring.level import PerfProgress, Tick
from naiad.tools.perf.plan import Concurrency, Load, PeriodicConcurrency, RequestRate
from naiad.tools.perf.report.text import row_text

_PLAIN_INTERVAL_S = 10.0
"""Between lines where the terminal cannot change one, in a log of CI for example."""


class ConsoleProgress(PerfProgress):
    """Shows progress on stderr, and results on stdout."""

    def __init__(self, percentile: int | None, verbosity: int, *, is_quiet: bool) -> None:
        self._percentile = percentile
        self._verbosity = verbosity
        self._is_quiet = is_quiet
        self._status = sys.stderr
        self._is_terminal = self._status.isatty()
        self._load = ""
        self._shown_s = 0.0

    def note(self, text: str) -> None:
        """Print a sentence, also without progress: it is about what is measured."""
        print(f"note: {text}", file=self._status, flush=True)

    def level_started(self, load: Load) -> None:
        """Note the load."""
        self._load = load_name(load)
        self._shown_s = time.monotonic()
        if self._is_terminal and not self._is_quiet:
            self._replace(f"{self._load}: warm-up")

    def tick(self, tick: Tick) -> None:
        """Show the load so far."""
        if self._is_quiet or (not self._is_terminal and time.monotonic() - self._shown_s < _PLAIN_INTERVAL_S):
            return
        self._shown_s = time.monotonic()
        line = (
            f"{self._load}: {tick.elapsed_s:.1f} s, {tick.requests:,} requests, {tick.rate_per_s:,.0f}/s, "
            f"p50 {tick.p50_us / 1e3:.3g} ms, p99 {tick.p99_us / 1e3:.3g} ms"
        )
        if tick.failures:
            line += f", {tick.failures:,} errors"
        if tick.reason:
            line += f" ({tick.reason})"
        if self._is_terminal:
            self._replace(line)
        else:
            print(line, file=self._status, flush=True)

    def level_done(self, rows: Sequence[Row]) -> None:
        """Print the figures of the load."""
        self.clear()
        for row in rows:
            print(row_text(row, self._percentile, self._verbosity), end="\n\n", flush=True)

    def clear(self) -> None:
        """Remove the line of progress."""
        if self._is_terminal and not self._is_quiet:
            self._replace("")

    def _replace(self, line: str) -> None:
        self._status.write(f"\r\x1b[2K{line}")
        self._status.flush()


def load_name(load: Load) -> str:
    """Return a load in words."""
    if isinstance(load, Concurrency):
        return f"concurrency {load.value}"
    if isinstance(load, PeriodicConcurrency):
        return f"periodic concurrency {load.end}"
    if isinstance(load, RequestRate):
        return f"{load.per_s:g} requests/s"
    return type(load).__name__.lower()

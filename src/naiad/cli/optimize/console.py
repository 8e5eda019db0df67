"""The progress of an optimization: a line for each step, and in a terminal the step that runs."""

import sys
import time

_STAGES = {
    "convert": "conversion",
    "judge": "compared",
    "search": "searched for sensitive layers",
    "profile": "measured",
    "tune": "tuned",
    "serve": "served",
}


class ConsoleProgress:
    """Shows steps on stderr, with the time left in a stage of several steps."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._stage = ""
        self._begin_s = self._step_s = 0.0

    def step(self, stage: str, name: str, index: int, count: int) -> None:
        """Show the step that begins."""
        now_s = time.monotonic()
        if stage != self._stage:
            self._stage, self._begin_s = stage, now_s
        self._step_s = now_s
        if self._is_terminal and not self._is_quiet:
            left = f", {(now_s - self._begin_s) / index * (count - index):.0f} s left" if index else ""
            sys.stderr.write(f"\r\x1b[2K{stage} {name} ({index + 1} of {count}{left})")
            sys.stderr.flush()

    def done(self, stage: str, name: str, message: str, *, was_cached: bool = False) -> None:
        """Show how the step ended."""
        if self._is_quiet:
            return
        took = "from an earlier run" if was_cached else f"{time.monotonic() - self._step_s:.1f} s"
        self._step_s = time.monotonic()
        start = "\r\x1b[2K" if self._is_terminal else ""
        detail = f": {message}" if message else ""
        print(f"{start}{_STAGES[stage]} {name}{detail} ({took})", file=sys.stderr, flush=True)

"""The progress of a command on stderr: one line that changes in a terminal, a line now and then elsewhere."""

import sys
import time

INTERVAL_S = 10.0
"""Between lines where none can change: in the log of a CI job, for example."""


class StatusLine:
    """Shows how far a command has come. With `is_quiet` it shows nothing."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._stream = sys.stderr
        self._is_terminal = self._stream.isatty()
        self._is_quiet = is_quiet
        self._phase = ""
        self._printed_s = time.monotonic()

    def show(self, line: str, phase: str = "") -> None:
        """Replace the line. Where it cannot change, print it when a phase begins, and once in an interval."""
        if self._is_terminal:
            self.replace(line)
        elif phase != self._phase or time.monotonic() - self._printed_s >= INTERVAL_S:
            self._phase = phase
            self.restart_interval()
            self._print(line)

    def replace(self, line: str) -> None:
        """Replace the line in a terminal; elsewhere show nothing."""
        if self._is_terminal and not self._is_quiet:
            self._stream.write(f"\r\x1b[2K{line}")
            self._stream.flush()

    def restart_interval(self) -> None:
        """Print the next line, where it cannot change, after a whole interval."""
        self._printed_s = time.monotonic()

    def clear(self) -> None:
        """Remove the line."""
        self.replace("")

    def finish(self, line: str) -> None:
        """Print a line that stays, in place of the one that changes."""
        self.clear()
        self._print(line)

    def _print(self, line: str) -> None:
        if not self._is_quiet:
            print(line, file=self._stream, flush=True)

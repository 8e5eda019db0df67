"""The progress of a command: a line or a text that changes in a terminal, one now and then elsewhere."""

import sys
import time
from typing import TextIO

INTERVAL_S = 10.0
"""Between lines where none can change: in the log of a CI job, for example."""


class StatusLine:
    """Shows how far a command has come. With `is_quiet` it shows nothing."""

    def __init__(self, *, is_quiet: bool = False, stream: TextIO | None = None) -> None:
        """`stream`: by default stderr."""
        self._stream = sys.stderr if stream is None else stream
        self._lines_above = 0
        """Lines of the text that is shown, above the last one."""
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

    def replace(self, text: str) -> None:
        """Replace the line, or several ones, in a terminal; elsewhere show nothing."""
        if self._is_terminal and not self._is_quiet:
            back = f"\x1b[{self._lines_above}A\r\x1b[J" if self._lines_above else "\r\x1b[2K"
            self._lines_above = text.count("\n")
            self._stream.write(back + text)
            self._stream.flush()

    def show_lines(self, text: str) -> None:
        """Replace a text of several lines; where it cannot change, print it below the one before."""
        if self._is_terminal and self._lines_above:
            self.replace(f"{text}\n")
        else:
            self._print(f"\n{text}" if self._lines_above else text)
            self._lines_above = text.count("\n") + 1

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

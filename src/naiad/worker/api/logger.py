"""`pb_utils.Logger`, and the way of log lines, prints and `logging` from a worker to the server's log."""

from __future__ import annotations

import enum
import io
import logging
import sys
import threading
from typing import BinaryIO, Callable


class LogLevel(enum.IntEnum):
    """Triton's log levels."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_STANDARD = {
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.VERBOSE: logging.DEBUG,
}

Sink = Callable[[int, str, int, str], None]
"""Takes a level of the standard module, file, line and text."""


def _to_standard_logging(level: int, file: str, line: int, text: str) -> None:
    logger = logging.getLogger("triton_python_backend_utils")
    logger.handle(logger.makeRecord(logger.name, level, file, line, text, (), None))


_sink: Sink = _to_standard_logging


def set_sink(sink: Sink) -> None:
    """Send what is logged to `sink`; without one it goes to standard logging."""
    global _sink  # noqa: PLW0603 - there is one log
    _sink = sink


class Logger:
    """Writes to the server's log; lines carry the place of the call, the model and the ids of its requests."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: int = LogLevel.INFO) -> None:
        """Log `message` with `level`."""
        _log(message, LogLevel(level))

    @staticmethod
    def log_info(message: str) -> None:
        """Log `message` as information."""
        _log(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log `message` as a warning."""
        _log(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        """Log `message` as an error."""
        _log(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log `message` when the server logs verbosely."""
        _log(message, LogLevel.VERBOSE)


def _log(message: str, level: LogLevel) -> None:
    frame = sys._getframe(2)
    _sink(_STANDARD[level], frame.f_code.co_filename, frame.f_lineno, str(message))


class SinkHandler(logging.Handler):
    """Sends the records of standard logging to a sink."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._to = sink

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            self._to(record.levelno, record.pathname, record.lineno, self.format(record))
        except Exception:
            self.handleError(record)


class _Begun(threading.local):
    """The line that a thread has begun: those of several threads are not mixed."""

    text = ""


class LineStream(io.TextIOBase):
    """Takes the place of `sys.stdout` or `sys.stderr`: each line goes to a sink, with the place of the print."""

    _LONGEST = 65536

    def __init__(self, sink: Sink, descriptor: int) -> None:
        super().__init__()
        self._to = sink
        self._descriptor = descriptor
        self._begun = _Begun()
        self._binary: BinaryIO | None = None

    def write(self, text: str) -> int:
        """Take text; lines that it completes are sent."""
        begun = self._begun
        *lines, begun.text = (begun.text + text).split("\n")
        frame = sys._getframe(1)
        if len(begun.text) > self._LONGEST:
            lines, begun.text = [*lines, begun.text], ""
        for line in lines:
            if line:
                self._to(logging.INFO, frame.f_code.co_filename, frame.f_lineno, line)
        return len(text)

    def flush(self) -> None:
        """Do nothing: a line goes when it is complete."""

    def writable(self) -> bool:
        """Tell that it can be written to."""
        return True

    def fileno(self) -> int:
        """Return the descriptor that native code writes to."""
        return self._descriptor

    @property
    def buffer(self) -> BinaryIO:
        """What takes bytes: they go the way of native code."""
        if self._binary is None:
            self._binary = open(self._descriptor, "wb", buffering=0, closefd=False)  # noqa: SIM115 - lives as long
        return self._binary

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only, as in io
        """The encoding: UTF-8."""
        return "utf-8"

"""`pb_utils.Logger`, and the path of log lines, prints and `logging` from a worker to the server's log."""

from __future__ import annotations

import io
import logging
import sys
import threading
from typing import BinaryIO, Callable

from naiad.worker.api.arguments import NativeEnum, instance, text


class LogLevel(NativeEnum):
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
    """Send log lines to `sink`; without one they go to standard logging."""
    global _sink  # noqa: PLW0603 - there is one log
    _sink = sink


class Logger:
    """Writes to the server's log; lines carry the source position of the call, the model and the ids of its
    requests.
    """

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: NativeEnum = LogLevel.INFO) -> None:
        """Log `message` with `level`."""
        _log(message, instance(level, LogLevel, "Logger: expected level"))

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
        """Log `message` if the server logs verbosely."""
        _log(message, LogLevel.VERBOSE)


def _log(message: str, level: LogLevel) -> None:
    line = text(message, "Logger: expected message", "replace")
    frame = sys._getframe(2)
    _sink(_STANDARD[level], frame.f_code.co_filename, frame.f_lineno, line)


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
    """The incomplete line of each thread, so that lines of several threads are not mixed."""

    text = ""


class LineStream(io.TextIOBase):
    """Replaces `sys.stdout` or `sys.stderr`: each line goes to a sink, with the source position of the print."""

    _LONGEST = 65536

    def __init__(self, sink: Sink, descriptor: int) -> None:
        super().__init__()
        self._to = sink
        self._descriptor = descriptor
        self._begun = _Begun()
        self._binary: BinaryIO | None = None

    def write(self, text: str) -> int:
        """Write text; the lines that it completes are sent."""
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
        """Do nothing: only complete lines are sent."""

    def send_rest(self) -> None:
        """Send the incomplete line of the calling thread, at the end of the process."""
        if self._begun.text:
            self.write("\n")

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of native code."""
        return self._descriptor

    @property
    def buffer(self) -> BinaryIO:
        """The binary stream, which bypasses the sink."""
        if self._binary is None:
            self._binary = open(self._descriptor, "wb", buffering=0, closefd=False)  # noqa: SIM115 - lives as long
        return self._binary

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only, as in io
        """The encoding: UTF-8."""
        return "utf-8"

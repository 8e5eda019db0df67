"""The server's log: standard `logging` in Triton's form, one line for every failed request."""

import itertools
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from naiad.options.options import LogOptions
from naiad.telemetry.logs.access_log import audit
from naiad.telemetry.logs.console import has_colors
from naiad.telemetry.logs.failures import FailureLog, ObserveFailure, RepeatFilter
from naiad.telemetry.logs.log_output import BackgroundHandler, LogFile, format_table, make_formatter

_escapes = True
_settings = LogOptions()
_failures = FailureLog(logging.getLogger("naiad.request"))
_repeats = RepeatFilter(logging.getLogger(__name__), ("naiad.frontend.", "naiad.server.", "naiad.engine."))
"""For lines caused by clients without a request: protocol errors, reset streams."""


def configure(options: LogOptions, *, escapes: bool = True) -> None:
    """Send every logger of the process to the console (stderr) or to `options.file`.

    May be called again to change the settings. Raises OSError if the file cannot be opened, ValueError for an unknown
    format. `escapes` False writes messages unescaped (Triton: TRITON_SERVER_ESCAPE_LOG_MESSAGES=0).
    """
    global _settings, _escapes
    formatter = _make_formatter(options, escapes=escapes)
    if options.file:
        handler = BackgroundHandler(LogFile(options.file), closes_stream=True)
    else:
        handler = BackgroundHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(is_written)
    handler.addFilter(_repeats)
    previous = _installed()
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    _set_level(options)
    _settings, _escapes = options, escapes
    _remove(previous)


def settings() -> LogOptions:
    """Return the current settings."""
    return _settings


def change(options: LogOptions) -> None:
    """Change levels and format, at once; the file stays. Raises ValueError for an unknown format."""
    global _settings  # noqa: PLW0603 - the log is one for the process
    formatter = _make_formatter(replace(options, file=_settings.file), escapes=_escapes)
    _settings = replace(options, file=_settings.file)
    for handler in _installed():
        handler.setFormatter(formatter)
    _set_level(options)


def _make_formatter(options: LogOptions, *, escapes: bool) -> logging.Formatter:
    return make_formatter(options.format, escapes=escapes, colors=not options.file and has_colors(sys.stderr))


def _set_level(options: LogOptions) -> None:
    """Have the loggers make only records that some handler may write: one costs as much as reading a small file."""
    plain = logging.INFO if options.info else logging.WARNING
    logging.getLogger("naiad").setLevel(verbose(options.verbose) if options.verbose else plain)


def shut_down() -> bool:
    """Write waiting lines and detach from the loggers; `configure` starts again. Return whether all were written."""
    _failures.flush()
    _repeats.flush()
    audit.flush()
    handlers = _installed()
    _remove(handlers)
    return all(handler.is_written for handler in handlers)


def _installed() -> Sequence[BackgroundHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, BackgroundHandler)]


def _remove(handlers: Sequence[BackgroundHandler]) -> None:
    for handler in handlers:
        logging.getLogger().removeHandler(handler)
        handler.close()


def is_written(record: logging.LogRecord) -> bool:
    """Return whether --log-info, --log-warning and --log-error admit a record."""
    if record.levelno >= logging.ERROR:
        return _settings.error
    if record.levelno >= logging.WARNING:
        return _settings.warning
    # Triton: only --log-verbose applies to verbose lines.
    return _settings.info or record.levelno < logging.INFO


def verbose(level: int) -> int:
    """Return the standard logging level of Triton's verbose level: DEBUG for 1, less for each further one."""
    return max(1, logging.DEBUG + 1 - level)


def log_table(logger: logging.Logger, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Log a table, as Triton does at start-up for backends and models."""
    logger.info("", extra={"table": format_table(headings, rows)}, stacklevel=2)


def show_failures(observe: ObserveFailure) -> None:
    """Call `observe` for each failed request from now on, on any thread."""
    _failures.observers = (*_failures.observers, observe)


def stop_showing_failures(observe: ObserveFailure) -> None:
    """Call `observe` no more."""
    _failures.observers = tuple(each for each in _failures.observers if each != observe)


# --- requests -------------------------------------------------------------------------------------------------------


class _RequestIds:
    """A random word for the process and a number for the request."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._word = ""
        self.renew()
        if hasattr(os, "register_at_fork"):  # absent on Windows, where nothing forks
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self._word = os.urandom(5).hex()

    def create(self) -> str:
        return f"{self._word}-{next(self._numbers):x}"


_ids = _RequestIds()


def new_request_id() -> str:
    """Return an id for a request without one: unique across processes and cheap."""
    return _ids.create()


log_request_failure = _failures.log

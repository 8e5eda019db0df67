"""Log output: Triton's line formats and tables, and a handler that never blocks its caller."""

import contextlib
import functools
import json
import logging
import os
import re
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TextIO

from naiad.core.errors import shortened
from naiad.options.options import LOG_FORMATS
from naiad.telemetry.logs.console import RED, YELLOW, painted

_LEVELS = ((logging.ERROR, "ERROR"), (logging.WARNING, "WARNING"), (logging.INFO, "INFO"))
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029]")
"""Characters besides those that JSON escapes with which a text would control a terminal or begin a line."""


_encode_json = json.JSONEncoder(ensure_ascii=False).encode
"""As `json.dumps`, which makes an encoder for each text that is not in ASCII alone."""


def escaped_json(value: object) -> str:
    """Return a value as JSON on one line; no character of it controls a terminal."""
    line = _encode_json(value)
    return line if line.isprintable() else _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def level_name(level: int) -> str:
    """Return the level of a line: ERROR, WARNING, INFO or VERBOSE."""
    return next((name for least, name in _LEVELS if level >= least), "VERBOSE")


def utc_time(epoch_s: float) -> str:
    """Return a time in UTC as ISO 8601 with microseconds: `2024-05-20T20:03:25.829575Z`."""
    # One rounding for both parts: 1.9999996 s is second 2, not second 1 with 1000000 us.
    seconds, microseconds = divmod(round(epoch_s * 1_000_000), 1_000_000)
    return f"{_utc_second(seconds)}.{microseconds:06d}Z"


@functools.lru_cache(maxsize=4)
def _utc_second(seconds: int) -> str:
    """Return a second; many lines of a log share it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, message, process and place, and what the record has besides.

    The attribute `fields` of a record is a mapping with more of them: `request_id`, `model`, `version`, `protocol`,
    `key`, `error` and others. The message of a table is the table.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without a final newline."""
        shown = {
            "time": utc_time(record.created),
            "level": level_name(record.levelno),
            "message": getattr(record, "table", "") or text_of(record),
            "logger": record.name,
            "pid": record.process,
            "place": f"{record.filename}:{record.lineno}",
        }
        fields: Mapping[str, object] = getattr(record, "fields", None) or {}
        return escaped_json(shown | {name: value for name, value in fields.items() if name not in shown})


def text_of(record: logging.LogRecord) -> str:
    """Return message, traceback and stack of a record, without the middle of a long text.

    What makes a line, often the event loop, escapes its text, and thousands of lines may wait.
    """
    text = record.getMessage()
    if record.exc_info:
        text += "\n" + logging.Formatter().formatException(record.exc_info)
    return shortened(f"{text}\n{record.stack_info}" if record.stack_info else text)


class TritonFormatter(logging.Formatter):
    """Formats records as Triton does: level, time (UTC), process, place, and the message as a JSON string.

    `default`: `I0520 20:03:25.829575 3355 file.py:12] "text"`
    `ISO8601`: `2024-05-20T20:03:25Z I 3355 file.py:12] "text"`

    The attribute `table` of a record is written unchanged, on lines of its own.
    """

    def __init__(self, form: str = "default", *, escapes: bool = True, colors: bool = False) -> None:
        """`escapes` False writes messages unchanged (Triton: TRITON_SERVER_ESCAPE_LOG_MESSAGES=0).

        With `colors`, errors are red, warnings are yellow, and the attribute `color` of a record selects another.
        """
        super().__init__()
        self._is_iso = form == "ISO8601"
        self._escapes = escapes
        self._colors = colors

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without a final newline."""
        opening = f"{self._stamp(record)} {record.process} {record.filename}:{record.lineno}] "
        table = getattr(record, "table", "")
        if table:
            return f"{opening}{record.getMessage()}\n{table}\n"
        text = text_of(record)
        line = opening + (escaped_json(text) if self._escapes else text)
        color = _color_of(record) if self._colors else ""
        return painted(line, color) if color else line

    def _stamp(self, record: logging.LogRecord) -> str:
        letter = "E" if record.levelno >= logging.ERROR else "W" if record.levelno >= logging.WARNING else "I"
        moment = utc_time(record.created)
        if self._is_iso:
            return f"{moment[:19]}Z {letter}"
        return f"{letter}{moment[5:7]}{moment[8:10]} {moment[11:26]}"


def make_formatter(form: str, *, escapes: bool = True, colors: bool = False) -> logging.Formatter:
    """Return the formatter of a value of `--log-format`. Raises ValueError for an unknown one."""
    if form not in LOG_FORMATS:
        raise ValueError(f"log format '{form}' is not known; known are {', '.join(LOG_FORMATS)}")
    return JsonFormatter() if form == "json" else TritonFormatter(form, escapes=escapes, colors=colors)


def _color_of(record: logging.LogRecord) -> str:
    if record.levelno >= logging.WARNING:
        return RED if record.levelno >= logging.ERROR else YELLOW
    return getattr(record, "color", "")


def format_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table drawn with +, - and |; a cell that is long or has newlines takes several lines."""
    cells = [[_cell_lines(str(cell)) for cell in row] for row in [list(headings), *rows]]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*cells, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    drawn = [_table_row(row, widths) for row in cells]
    return "\n".join([rule, drawn[0], rule, *drawn[1:], rule])


_MAX_CELL_CHARACTERS = 80


def _cell_lines(text: str) -> list[str]:
    """Return the lines of a cell; long ones are wrapped, and characters that control a terminal are escaped."""
    if len(text) <= _MAX_CELL_CHARACTERS and text.isprintable() and text == text.strip():
        return [text]
    lines = text.split("\n")
    if not all(map(str.isprintable, lines)):
        lines = [
            "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line) for line in lines
        ]
    return [
        part for line in lines for part in textwrap.wrap(line, _MAX_CELL_CHARACTERS, break_on_hyphens=False) or [""]
    ]


def _table_row(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    lines = []
    for position in range(max(len(cell) for cell in cells)):
        texts = [cell[position] if position < len(cell) else "" for cell in cells]
        lines.append("| " + " | ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)) + " |")
    return "\n".join(lines)


_FLUSH_TIMEOUT_S = 2.0


class BackgroundHandler(logging.Handler):
    """Formats records in the calling thread and writes them in a thread of its own.

    At most `capacity` lines wait; further ones are counted and their number is written when there is room again. A
    slow reader of the log thus costs log lines, not requests.
    """

    def __init__(
        self,
        stream: "TextIO | LogFile",
        *,
        closes_stream: bool = False,
        capacity: int = 10_000,
        gather_s: float = 0.0,
    ) -> None:
        """`gather_s`: how long the thread waits after the first line for others, to write them together."""
        super().__init__()
        self._gather_s = gather_s
        self._stream = stream
        self._closes_stream = closes_stream
        self._capacity = capacity
        self._lines: SimpleQueue[str | threading.Event | None] = SimpleQueue()
        self._lost_count = 0
        self.lost_total = 0
        """Number of lines that were lost so far."""
        self._thread = threading.Thread(target=self._write_lines, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line of a record."""
        if self._lines.qsize() >= self._capacity:
            self._lost_count += 1
            self.lost_total += 1
            return
        try:
            line = self.format(record)
        except BaseException:
            # An invalid log message must not raise in the code that logs it.
            self.handleError(record)
            return
        self._lines.put(line)

    def flush(self) -> None:
        """Wait, for a bounded time, until all lines are written."""
        if self._thread.is_alive():
            written = threading.Event()
            self._lines.put(written)
            written.wait(_FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """Write the waiting lines and end the thread."""
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join(_FLUSH_TIMEOUT_S)
        if self._closes_stream and not self._thread.is_alive():
            with contextlib.suppress(OSError):  # the disk is full
                self._stream.close()
        super().close()

    @property
    def is_written(self) -> bool:
        """Whether every line was written, after `close`."""
        return not self._thread.is_alive() and not self._lost_count

    def _write_lines(self) -> None:
        is_open = True
        while is_open:
            item = self._lines.get()
            if self._gather_s and isinstance(item, str):
                time.sleep(self._gather_s)
            lines: list[str] = []
            flushed: list[threading.Event] = []
            # Lines that have accumulated meanwhile are written together.
            while True:
                if item is None:
                    is_open = False
                elif isinstance(item, str):
                    lines.append(item)
                else:
                    flushed.append(item)
                try:
                    item = self._lines.get_nowait()
                except Empty:
                    break
            self._write(lines)
            for event in flushed:
                event.set()

    def _write(self, lines: list[str]) -> None:
        lost, self._lost_count = self._lost_count, 0
        if lost:
            notice = logging.makeLogRecord(
                {"levelno": logging.WARNING, "msg": f"{lost} log lines were lost: the log was not read fast enough"}
            )
            lines.append(self.format(notice))
        if not lines:
            return
        try:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()
        except BaseException:
            # The disk is full, the reader has closed the pipe, or there is no memory: only the next line can report
            # it, and without this thread no line would be written.
            self._lost_count += len(lines)
            self.lost_total += len(lines)


_CHECK_NS = 1_000_000_000
"""Interval of checks whether the path still names the open file."""


class LogFile:
    """A file that is opened again when its path names another file or none; written by one thread."""

    def __init__(self, path: str) -> None:
        """Open the file to append. Raises OSError."""
        self._path = Path(path)
        self._file = self._open()
        self._check_ns = 0

    def write(self, text: str) -> object:
        """Append text. Raises OSError."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._check_ns:
            self._check_ns = now_ns + _CHECK_NS
            self._reopen()
        return self._file.write(text)

    def flush(self) -> None:
        """Pass what was written to the system. Raises OSError."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self) -> TextIO:
        # In append mode, writes after a truncation begin at the new end.
        return self._path.open("a", encoding="utf-8", errors="backslashreplace")

    def _reopen(self) -> None:
        try:
            is_current = os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            is_current = False
        if is_current:
            return
        # The directory may have become read-only: then the lines stay in the file that is open.
        with contextlib.suppress(OSError):
            file, self._file = self._file, self._open()
            file.close()  # raises when the disk is full

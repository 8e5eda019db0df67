"""Trace files in Triton's form: JSON arrays, written by a thread of their own."""

import errno
import functools
import logging
import os
import shutil
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import IO, Protocol

from naiad.telemetry.last_resort import keep_running
from naiad.telemetry.trace.trace_record import TraceRecord

_log = logging.getLogger(__name__)

_CAPACITY = 4096
"""Limit of traces that wait to be written; further ones are dropped and counted."""
_CLOSE_TIMEOUT_S = 5.0


class TraceSeries:
    """The traces sampled by one set of settings. After its creation only the writing thread uses it."""

    __slots__ = ("frequency", "is_counted")

    def __init__(self, frequency: int = 0, *, is_counted: bool = False) -> None:
        self.frequency = frequency
        """Traces per file; 0 for no limit."""
        self.is_counted = is_counted
        """Whether it ends with a certain trace: its traces then get a file of their own."""


class _TraceArray:
    """One file with a JSON array, which is complete after every write."""

    def __init__(self, path: str) -> None:
        """Open the file, empty. Raises OSError."""
        self.path = path
        self.trace_count = 0
        self._file: IO[bytes] = open(path, "w+b")  # noqa: SIM115 - closed by close

    def append(self, record: TraceRecord) -> None:
        """Add a trace. Raises OSError."""
        encoded = record.encoded()
        self._open_end()
        self._file.write(encoded + b"]")
        self._file.flush()
        self.trace_count += 1

    def append_all(self, other: "_TraceArray") -> None:
        """Append the traces of another file, piece by piece. Raises OSError."""
        self._open_end()
        other._file.seek(1)  # behind the opening bracket; the closing one becomes that of this file
        shutil.copyfileobj(other._file, self._file)
        self._file.flush()
        self.trace_count += other.trace_count

    def _open_end(self) -> None:
        if self.trace_count:
            self._file.seek(-1, 2)  # over the closing bracket
            self._file.write(b",\n")
        else:
            self._file.write(b"[")

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError as error:
            _log.error("traces cannot be written: %s", error)


class TraceFile:
    """One path, or with a frequency `<path>.0`, `<path>.1` and so on. After every write each file is valid JSON.

    Triton: a series that ends with a certain trace gets one of the numbered files when it is complete. If it ends
    early, by other settings or by the end of the server, its traces go to the path itself.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._whole: _TraceArray | None = None
        self._numbered: _TraceArray | None = None
        """Series with a frequency."""
        self._number = 0
        self._parts: dict[TraceSeries, _TraceArray] = {}
        """Series with a count."""
        self._part_count = 0

    def write(self, record: TraceRecord, series: TraceSeries) -> None:
        """Append a trace. Raises OSError."""
        if series.frequency:
            if self._numbered is None:
                self._numbered = _TraceArray(self._next_path())
            self._numbered.append(record)
            if self._numbered.trace_count >= series.frequency:
                self._close_numbered()
        elif series.is_counted:
            if series not in self._parts:
                self._parts[series] = _TraceArray(f"{self._path}.counting-{self._part_count}")
                self._part_count += 1
            self._parts[series].append(record)
        else:
            self._open_whole().append(record)

    def end(self, series: TraceSeries, *, is_complete: bool) -> None:
        """End a series, which is complete or ended early. Raises OSError."""
        series.is_counted = False
        if series.frequency:
            self._close_numbered()
        part = self._parts.pop(series, None)
        if part is None:
            return
        try:
            if not is_complete:
                self._open_whole().append_all(part)
        finally:
            part.close()
        if is_complete:
            os.replace(part.path, self._next_path())
        else:
            os.unlink(part.path)

    def _open_whole(self) -> _TraceArray:
        if self._whole is None:
            self._whole = _TraceArray(self._path)
        return self._whole

    def _next_path(self) -> str:
        self._number += 1
        return f"{self._path}.{self._number - 1}"

    def _close_numbered(self) -> None:
        file, self._numbered = self._numbered, None
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close open files; incomplete series end early. Raises OSError."""
        for series in list(self._parts):
            self.end(series, is_complete=False)
        self._close_numbered()
        file, self._whole = self._whole, None
        if file is not None:
            file.close()


def obstacle(path: str, frequency: int) -> OSError | None:
    """Return why no trace can be written to a path, if that shows before the first one; creates no file."""
    path = f"{path}.0" if frequency else path
    directory = os.path.dirname(path) or "."
    if os.path.isdir(path):
        number = errno.EISDIR
    elif not os.path.isdir(directory):
        number = errno.ENOENT
    elif not os.access(path if os.path.exists(path) else directory, os.W_OK):
        number = errno.EACCES
    else:
        return None
    return OSError(number, os.strerror(number), path)


class TraceSink(Protocol):
    """Destination of traces; used by one thread."""

    def write(self, record: TraceRecord, series: TraceSeries) -> None:
        """Write a trace. Raises OSError."""

    def end(self, series: TraceSeries, *, is_complete: bool) -> None:
        """End a series, which is complete or ended early. Raises OSError."""

    def close(self) -> None:
        """Finish open work."""


class TraceWriter:
    """Writes traces in the background."""

    def __init__(self, file: TraceSink) -> None:
        self._file = file
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lost_count = 0
        self._has_failed = False

    def report(self, error: OSError) -> None:
        """Log why traces cannot be written: once until one is written again."""
        if not self._has_failed:
            _log.error("traces cannot be written: %s", error)
        self._has_failed = True

    def put(self, record: TraceRecord, series: TraceSeries) -> None:
        """Queue a trace; never blocks."""
        if self._waiting.qsize() >= _CAPACITY:
            self._lost_count += 1
            return
        self._waiting.put(functools.partial(self._file.write, record, series))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
            self._thread.start()

    def end(self, series: TraceSeries, *, is_complete: bool) -> None:
        """Queue the end of a series, behind its traces."""
        if self._thread is not None:
            self._waiting.put(functools.partial(self._file.end, series, is_complete=is_complete))

    def close(self) -> None:
        """Write waiting traces, within bounds, and close the file."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        keep_running("the thread of the traces", self._write, self._pause)

    def _pause(self, seconds: float) -> bool:
        return threading.Event().wait(seconds)

    def _write(self) -> None:
        while (work := self._waiting.get()) is not None:
            try:
                work()
            except OSError as error:
                self.report(error)
            else:
                self._has_failed = False
            lost, self._lost_count = self._lost_count, 0
            if lost:
                _log.warning("%d traces were lost: they arrived faster than they could be written", lost)
        try:
            self._file.close()
        except OSError as error:
            _log.error("traces cannot be written: %s", error)

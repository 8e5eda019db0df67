"""Trace files in Triton's form: JSON arrays, written by a thread of their own."""

import logging
import threading
from queue import SimpleQueue
from typing import IO, Protocol

import orjson

from naiad.telemetry.trace_record import TraceRecord

_log = logging.getLogger(__name__)

_CAPACITY = 4096
"""Traces that wait to be written; further ones are lost, and counted."""
_CLOSE_TIMEOUT_S = 5.0


class TraceFile:
    """One path, or with a frequency `<path>.0`, `<path>.1` and so on. After every write the file is valid JSON."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._index = 0
        self._trace_count = 0
        """In the file that is open."""

    def write(self, record: TraceRecord, frequency: int) -> None:
        """Append a trace; with a `frequency` so many traces fill a file. Raises OSError."""
        if self._file is None:
            self._open(f"{self._path}.{self._index}" if frequency else self._path)
        file = self._file
        assert file is not None
        text = b",\n".join([orjson.dumps(entry) for entry in record.entries()])
        if self._trace_count:
            file.seek(-1, 2)  # over the closing bracket
            file.write(b",\n" + text + b"]")
        else:
            file.write(b"[" + text + b"]")
        file.flush()
        self._trace_count += 1
        if frequency and self._trace_count >= frequency:
            self._index += 1
            self.close()

    def _open(self, path: str) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close
        self._trace_count = 0

    def close(self) -> None:
        """Close what is open."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


class TraceSink(Protocol):
    """Where traces go; used by one thread."""

    def write(self, record: TraceRecord, frequency: int) -> None:
        """Take a trace. Raises OSError."""

    def close(self) -> None:
        """Finish what is open."""


class TraceWriter:
    """Writes traces in the background."""

    def __init__(self, file: TraceSink) -> None:
        self._file = file
        self._waiting: SimpleQueue[tuple[TraceRecord, int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lost_count = 0

    def put(self, record: TraceRecord, frequency: int) -> None:
        """Have a trace written; never waits."""
        if self._waiting.qsize() >= _CAPACITY:
            self._lost_count += 1
            return
        self._waiting.put((record, frequency))
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="trace", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write what waits, within bounds, and close the file."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _write(self) -> None:
        has_failed = False
        while (item := self._waiting.get()) is not None:
            try:
                self._file.write(*item)
            except OSError as error:
                if not has_failed:
                    _log.error("traces cannot be written: %s", error)
                has_failed = True
            else:
                has_failed = False
            lost, self._lost_count = self._lost_count, 0
            if lost:
                _log.warning("%d traces were lost: they came faster than they could be written", lost)
        self._file.close()

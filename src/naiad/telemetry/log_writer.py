"""A log handler that never makes its caller wait for the disk or the terminal."""

import logging
import threading
from queue import Empty, SimpleQueue
from typing import TextIO

_FLUSH_TIMEOUT_S = 2.0


class BackgroundHandler(logging.Handler):
    """Formats records where they are logged and writes them in a thread of its own.

    At most `capacity` lines wait; further ones are counted and the count is written when there is room again, so a
    reader that stalls costs log lines, not requests.
    """

    def __init__(self, stream: TextIO, *, closes_stream: bool = False, capacity: int = 10_000) -> None:
        super().__init__()
        self._stream = stream
        self._closes_stream = closes_stream
        self._capacity = capacity
        self._lines: SimpleQueue[str | threading.Event | None] = SimpleQueue()
        self._lost_count = 0
        self._thread = threading.Thread(target=self._write_lines, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line of a record."""
        if self._lines.qsize() >= self._capacity:
            self._lost_count += 1
            return
        try:
            line = self.format(record)
        except Exception:
            # A message whose arguments do not fit must not fail the code that logs it.
            self.handleError(record)
            return
        self._lines.put(line)

    def flush(self) -> None:
        """Wait until what was logged is written, for a bounded time."""
        if self._thread.is_alive():
            written = threading.Event()
            self._lines.put(written)
            written.wait(_FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """Write what is left and end the thread."""
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join(_FLUSH_TIMEOUT_S)
        if self._closes_stream:
            self._stream.close()
        super().close()

    def _write_lines(self) -> None:
        is_open = True
        while is_open:
            item = self._lines.get()
            lines: list[str] = []
            flushed: list[threading.Event] = []
            # What has gathered meanwhile goes out in one write.
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
        except (OSError, ValueError):
            # The disk is full or the reader has gone; there is no place left to say so but the next line.
            self._lost_count += len(lines)

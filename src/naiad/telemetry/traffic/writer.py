"""Writes the lines of a recording in the background, from a queue that is bounded in bytes."""

import logging
import threading
import time
from binascii import b2a_base64
from collections import deque
from collections.abc import Iterator, Sequence

from naiad.core.tensor import Buffer
from naiad.telemetry.traffic.ring import RingFile

_log = logging.getLogger(__name__)

_MAX_QUEUED_BYTES = 64 << 20
_INTERVAL_S = 0.2
"""A line is in the file after this time. To wake the thread for every line would cost more than the line."""
_TURN_LINES = 256
_PAUSE_S = 0.0001
"""After this number of lines the event loop gets its turn: it waits for less than a millisecond."""
_SLICE_BYTES = 3 << 14
"""Data is encoded in slices of this size, a multiple of 3: base64 holds the interpreter's lock."""
_CLOSE_TIMEOUT_S = 5.0
_LINE_OVERHEAD_BYTES = 512
"""Memory of a queued line besides its bytes; data counts as its base64, which is larger."""

Payload = Sequence[Buffer | None]
"""The data of each input; None if it is not in the message."""


class TrafficWriter:
    """The queue and its thread. `put` is called on the event loop; the counters may be read on any thread."""

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self._lines: deque[tuple[bytes, Payload | None, int]] = deque()
        # A line that does not fit into a file is dropped as one that does not fit into the queue.
        self._max_queued_bytes = min(_MAX_QUEUED_BYTES, ring.max_line_bytes)
        # One counter for each thread: no lock is needed.
        self._put_bytes = self._taken_bytes = 0
        self._wake = threading.Event()
        self._is_closing = False
        self._has_logged_drops = False
        self.is_open = True
        """False after an error: nothing is recorded any more."""
        self.written_count = 0
        self.dropped_count = 0
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self._thread.start()

    def put(self, line: bytes, payload: Payload | None = None) -> None:
        """Queue a line: an object of JSON and a newline. It gets the member `data` from a payload. Never blocks."""
        line_bytes = len(line)
        if payload:
            line_bytes += len(_DATA) + sum(map(_base64_bytes, payload)) + len(payload)
        size_bytes = _LINE_OVERHEAD_BYTES + line_bytes
        queued_bytes = self._put_bytes - self._taken_bytes + size_bytes
        if queued_bytes > self._max_queued_bytes or not self.is_open:
            self.dropped_count += 1
            return
        self._put_bytes += size_bytes
        self._lines.append((line, payload, line_bytes))
        if queued_bytes > self._max_queued_bytes // 4:
            self._wake.set()

    def close(self) -> None:
        """Write what is queued, within a time limit, and close the file."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._wake.wait(_INTERVAL_S)
                self._wake.clear()
                self._write_queued()
            self._write_queued()  # what came between the last look and the closing
            self._ring.close()
        except OSError as error:
            self._stop(error)

    def _write_queued(self) -> None:
        while self._lines:
            entries = [self._lines.popleft() for _ in range(min(len(self._lines), _TURN_LINES))]
            turn_bytes = sum([line_bytes for _, _, line_bytes in entries])
            if turn_bytes > self._ring.max_line_bytes or any(payload for _, payload, _ in entries):
                for line, payload, line_bytes in entries:
                    self._ring.append(_with_data(line, payload) if payload else (line,), line_bytes)
            else:
                self._ring.append([line for line, _, _ in entries], turn_bytes)
            self._taken_bytes += turn_bytes + len(entries) * _LINE_OVERHEAD_BYTES
            self.written_count += len(entries)
            if self._lines:
                time.sleep(_PAUSE_S)
        self._ring.flush()
        if self.dropped_count and not self._has_logged_drops:
            self._has_logged_drops = True
            _log.warning(
                "requests are missing in the recording: they came faster than they could be written, or are larger "
                "than half of --record-traffic-size; naiad_traffic_records_dropped_total counts them"
            )

    def _stop(self, error: OSError) -> None:
        self.is_open = False
        self._lines.clear()
        _log.error("the recording of traffic has stopped, requests continue: %s", error)
        try:
            self._ring.close()
        except OSError as again:
            _log.debug("closing the recording: %s", again)


_DATA = b',"data":['
_OPEN, _CLOSE, _ABSENT = b'{"b64":"', b'"}', b"null"


def _with_data(line: bytes, payload: Payload) -> Iterator[Buffer]:
    """Yield a line with the data of its inputs, in perf_analyzer's form."""
    yield line[:-2]  # without the closing brace and the newline
    separator = _DATA
    for data in payload:
        yield separator
        separator = b","
        if data is None:
            yield _ABSENT
            continue
        yield _OPEN
        view = memoryview(data)
        for start in range(0, len(view), _SLICE_BYTES):
            yield b2a_base64(view[start : start + _SLICE_BYTES], newline=False)
        yield _CLOSE
    yield b"]}\n"


def _base64_bytes(data: Buffer | None) -> int:
    return len(_ABSENT) if data is None else len(_OPEN) + -(-len(data) // 3) * 4 + len(_CLOSE)

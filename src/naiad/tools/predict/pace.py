"""Decisions of a run about amounts: rows in a chunk, too many failed rows, rate and time left.

Pure: time is an argument.
"""

from collections.abc import Sequence

from naiad.core.errors import invalid_argument
from naiad.tools.predict.prediction_job import JobProgress

MEMORY_BYTES = 64 << 20
"""For the rows of all chunks between reading and writing, as tensors."""
_MAX_CHUNK_ROWS = 1 << 16
_RATE_S = 10.0
"""The rate is that of about the last seconds."""

ALL_FAILED_ROWS = 1000
"""This number of failed rows, without one that succeeds, ends a job that has no limit of its own."""


class ChunkSize:
    """How many rows are read at once: one request at first, later as many as fit the memory of a chunk."""

    def __init__(self, rows_per_request: int, concurrency: int) -> None:
        self._unit = rows_per_request
        self.max_bytes = MEMORY_BYTES // (concurrency + 4)
        """Limit of a chunk's inputs."""
        self.rows = rows_per_request
        """A multiple of the rows of a request."""

    def learn(self, rows: int, size_bytes: int) -> None:
        """Take the inputs and outputs of a chunk into account."""
        wanted = self.max_bytes * rows // max(1, size_bytes)
        limit = min(wanted, 4 * self.rows, max(_MAX_CHUNK_ROWS, self._unit))
        self.rows = max(1, limit // self._unit) * self._unit


class FailureLimit:
    """Counts rows and failed rows, and ends the job when there are too many of those. Pure."""

    def __init__(self, max_failed_rows: int | None, rows: int = 0, failed_rows: int = 0) -> None:
        self._limit = max_failed_rows
        self.succeeded = rows - failed_rows
        self.failed = failed_rows

    def count(self, succeeded: int, reasons: Sequence[str]) -> None:
        """Count rows. Raises InferError(INVALID_ARG) when too many have failed."""
        self.succeeded += succeeded
        self.failed += len(reasons)
        if self._limit is not None and self.failed > self._limit:
            raise invalid_argument(
                f"{self.failed:,} rows failed, and max_failed_rows is {self._limit:,}; the last one: {reasons[-1]}"
            )
        if self._limit is None and not self.succeeded and self.failed >= ALL_FAILED_ROWS:
            raise invalid_argument(
                f"all of the first {self.failed:,} rows failed; the last one: {reasons[-1]}; with max_failed_rows "
                "the job goes on up to that number"
            )


class Pace:
    """Rate and time left of a run."""

    def __init__(self, total_bytes: int, rows: int, failed_rows: int) -> None:
        self._total_bytes = total_bytes
        self.rows = rows
        self.failed_rows = failed_rows
        self._done_bytes = 0
        self._marks: list[tuple[float, int, int]] = []
        """Time, rows and bytes at some moments."""

    def add(self, now_s: float, rows: int, failed_rows: int, done_bytes: int) -> None:
        """Count rows that are written."""
        self.rows += rows
        self.failed_rows += failed_rows
        self._done_bytes = done_bytes
        self._marks.append((now_s, self.rows, done_bytes))
        while len(self._marks) > 2 and self._marks[1][0] < now_s - _RATE_S:
            del self._marks[0]

    def begin(self, now_s: float, done_bytes: int) -> None:
        """Note the state in which the run begins."""
        self._done_bytes = done_bytes
        self._marks = [(now_s, self.rows, done_bytes)]

    def progress(self, phase: str) -> JobProgress:
        """Return the state for a display."""
        fraction = min(1.0, self._done_bytes / self._total_bytes) if self._total_bytes else 1.0
        rate = left = 0.0
        if len(self._marks) > 1:
            (start_s, rows, done), (end_s, rows_now, done_now) = self._marks[0], self._marks[-1]
            elapsed_s = max(1e-9, end_s - start_s)
            rate = (rows_now - rows) / elapsed_s
            speed = (done_now - done) / elapsed_s
            left = (self._total_bytes - done_now) / speed if speed > 0 else 0.0
        return JobProgress(phase, self.rows, self.failed_rows, fraction, rate, max(0.0, left) if rate else None)

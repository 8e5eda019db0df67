"""Statistics of parts of requests: responses of decoupled models by position, steps of ensembles, calls of models."""

import threading
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Final

from naiad.telemetry.statistics.version_statistics import Duration, PositionStatistics, StepStatistics

MAX_POSITIONS = 1024
"""The last position also counts all following responses: a request may have any number of them."""
MAX_CALLED_MODELS = 256
"""Limit of the models that the calls of one version are counted for; a model may call any name."""
MAX_NAME_CHARACTERS = 512


# The outcome of a response: the index of its count in a row. Plain integers, since enums take longer to add to.
SUCCESS: Final = 4
FAIL: Final = 6
EMPTY: Final = 8
CANCEL: Final = 10


class LatencyBuckets:
    """Durations by size. One thread at a time may add to them."""

    def __init__(self, bounds_ns: Sequence[int]) -> None:
        """`bounds_ns` are the upper bounds, ascending; the last bucket is beyond all of them."""
        self._bounds_ns = tuple(bounds_ns)
        self.counts = [0] * (len(self._bounds_ns) + 1)
        self.total_ns = 0

    def observe(self, duration_ns: int) -> None:
        """Count a duration."""
        self.counts[bisect_left(self._bounds_ns, duration_ns)] += 1
        self.total_ns += duration_ns


class ResponseStatistics:
    """Counts responses; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first_latencies: list[LatencyBuckets] = []
        self._rows: list[list[int]] = []
        """Count and ns of each field of `PositionStatistics`, in their order."""

    def record(self, position: int, outcome: int, start_ns: int, output_ns: int, end_ns: int) -> None:
        """Count a response with the monotonic times of its start, end of computation and delivery.

        `outcome` is one of SUCCESS, FAIL, EMPTY, CANCEL.
        """
        # hot: once a response
        rows = self._rows
        with self._lock:
            if position >= len(rows):
                position = self._make_row(position)
            row = rows[position]
            row[outcome] += 1
            row[outcome + 1] += end_ns - start_ns
            if outcome <= FAIL:
                row[0] += 1
                row[1] += output_ns - start_ns
                row[2] += 1
                row[3] += end_ns - output_ns

    def keep_first_latencies(self, bounds_ns: Sequence[int]) -> LatencyBuckets:
        """Return the buckets for the times from requests to their first responses, which are counted from now on."""
        buckets = LatencyBuckets(bounds_ns)
        with self._lock:
            self._first_latencies.append(buckets)
        return buckets

    def record_first(self, latency_ns: int) -> None:
        """Count the time from a request to its first response."""
        with self._lock:
            for buckets in self._first_latencies:
                buckets.observe(latency_ns)

    def _make_row(self, position: int) -> int:
        """Return the row for a position that has none yet."""
        rows = self._rows
        while len(rows) <= position and len(rows) < MAX_POSITIONS:
            rows.append([0] * 12)
        return min(position, MAX_POSITIONS - 1)

    def snapshot(self) -> Sequence[PositionStatistics]:
        """Return the counts of one moment, by position."""
        with self._lock:
            rows = [list(row) for row in self._rows]
        return [PositionStatistics(*(Duration(row[i], row[i + 1]) for i in range(0, 12, 2))) for row in rows]


class StepCounts:
    """Counts the requests of one step, or the calls of one model. Recorded on the event loop, read on any thread."""

    __slots__ = (
        "_compute_ns",
        "_executed_count",
        "_fail_count",
        "_fail_ns",
        "_model",
        "_ns",
        "_queue_ns",
        "_success_count",
    )

    def __init__(self, model: str) -> None:
        self._model = model
        self._success_count = self._ns = 0
        self._fail_count = self._fail_ns = 0
        self._executed_count = self._queue_ns = self._compute_ns = 0

    def record_success(self, duration_ns: int) -> None:
        """Count a successful request."""
        self._success_count += 1
        self._ns += duration_ns

    def record_execution(self, queue_ns: int, compute_ns: int) -> None:
        """Count the execution of a successful request; cache hits have none."""
        self._executed_count += 1
        self._queue_ns += queue_ns
        self._compute_ns += compute_ns

    def record_failure(self, duration_ns: int) -> None:
        """Count a request that was rejected, failed or was cancelled."""
        self._fail_count += 1
        self._fail_ns += duration_ns

    def snapshot(self) -> StepStatistics:
        """Return the counts so far."""
        return StepStatistics(
            self._model,
            Duration(self._success_count, self._ns),
            Duration(self._fail_count, self._fail_ns),
            Duration(self._executed_count, self._queue_ns),
            Duration(self._executed_count, self._compute_ns),
        )


class CallStatistics:
    """Counts the calls of one version to other models, by their names. Recorded on the event loop."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, StepCounts] = {}

    def record(self, model: str, duration_ns: int, *, has_failed: bool) -> None:
        """Count a call that has ended; further models than `MAX_CALLED_MODELS` are left out."""
        # hot: once a call
        counts = self._counts.get(model)
        if counts is None:
            if len(self._counts) >= MAX_CALLED_MODELS or len(model) > MAX_NAME_CHARACTERS:
                return
            counts = self._counts[model] = StepCounts(model)
        if has_failed:
            counts.record_failure(duration_ns)
        else:
            counts.record_success(duration_ns)

    @property
    def counts(self) -> Collection[StepCounts]:
        """The counts of each called model."""
        return tuple(self._counts.values())

"""Parts of statistics: durations, and the requests of each step of an ensemble."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Duration:
    """Number of events and their total duration."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """The requests of one step of an ensemble to its member, up to a moment."""

    model: str
    success: Duration
    """From sending a request to its final response."""
    fail: Duration
    queue: Duration
    """From sending a request to its execution, for requests that were executed successfully."""
    compute: Duration
    """From the start of the execution to its end, for the same requests."""


class StepCounts:
    """Counts the results of one step's requests. Recorded on the event loop, read on any thread."""

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

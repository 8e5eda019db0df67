"""Statistics of the steps of an ensemble: what each of its members takes as part of it.

How often something happened and how long it took.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened and how long it took in all."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """The requests that one step of an ensemble has sent to its member, up to a moment."""

    model: str
    success: Duration
    """From sending a request to its final response."""
    fail: Duration
    queue: Duration
    """From sending a request to its execution, of those that were executed and succeeded."""
    compute: Duration
    """From the begin of the execution to its end, of the same."""


class StepCounts:
    """Counts what becomes of the requests of one step. Recorded on the event loop, read on any thread."""

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
        """Count a request that was answered."""
        self._success_count += 1
        self._ns += duration_ns

    def record_execution(self, queue_ns: int, compute_ns: int) -> None:
        """Count the execution of an answered request; those that a cache answers have none."""
        self._executed_count += 1
        self._queue_ns += queue_ns
        self._compute_ns += compute_ns

    def record_failure(self, duration_ns: int) -> None:
        """Count a request that was refused, failed or was cancelled."""
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

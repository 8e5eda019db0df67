"""The counters of one model version in a small form, for the live stream, which reads them every second.

Plain integers: a row of 1,000 versions is made, sent between processes and summed in milliseconds.
"""

from collections.abc import Sequence
from operator import add
from typing import Any, NamedTuple


class LiveCounts(NamedTuple):
    """Totals since the version was loaded, and what is in progress. Durations are in nanoseconds."""

    success: int = 0
    failure: int = 0
    executions: int = 0
    inferences: int = 0
    request_ns: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_ns: int = 0
    compute_output_ns: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    pending: int = 0
    """Requests that wait in the queue now."""
    executing: int = 0
    """Requests that execute now."""
    failures: tuple[int, ...] = ()
    """By `FailureReason`, in its order; shorter than that, for a version without failures."""
    latency_counts: tuple[int, ...] = ()
    """Successful requests by bucket of `LATENCY_BOUNDS_NS`; empty before the first."""
    batch_sizes: tuple[tuple[int, int], ...] = ()
    """Batch size and number of executions, ascending by size."""


NOTHING = LiveCounts()
_NUMBERS = LiveCounts._fields.index("failures")


def add_counts(one: LiveCounts, other: LiveCounts) -> LiveCounts:
    """Return the sums of the counters of one version in two processes."""
    values: list[Any] = list(map(add, one[:_NUMBERS], other[:_NUMBERS]))
    values.append(_added(one.failures, other.failures))
    values.append(_added(one.latency_counts, other.latency_counts))
    values.append(_added_sizes(one.batch_sizes, other.batch_sizes))
    return LiveCounts._make(values)


def without_gauges(row: LiveCounts) -> LiveCounts:
    """Return the totals alone: what is left of a process that has exited."""
    return row._replace(pending=0, executing=0)


def has_restarted(now: LiveCounts, before: LiveCounts) -> bool:
    """Return whether counters began again: the version was reloaded, or its process has exited."""
    return now.success + now.failure < before.success + before.failure or now.executions < before.executions


def _added(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    if not one or not other:
        return tuple(one or other)
    return tuple(map(add, one, other))


def _added_sizes(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    if not one or not other:
        return one or other
    sums = dict(one)
    for size, count in other:
        sums[size] = sums.get(size, 0) + count
    return tuple(sorted(sums.items()))

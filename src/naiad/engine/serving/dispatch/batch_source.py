"""The next batch of an instance: from the scheduler, within the instance's resources, without overdue requests."""

from collections.abc import Callable, Sequence
from functools import partial

from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError
from naiad.engine.instances.instance_resources import ModelResources
from naiad.scheduler.api import Dropped, Scheduler

_LATE_NS = 10_000_000
"""Requests that waited for less are not checked again for an expired deadline before execution."""


class BatchSource:
    """Takes batches from a scheduler; every call holds the lock of the dispatcher."""

    def __init__(self, scheduler: Scheduler, resources: ModelResources | None) -> None:
        self._scheduler = scheduler
        self._take: Callable[[int, int], Batch | None] = (
            scheduler.take if resources is None else partial(resources.take, scheduler)
        )

    def take(self, now_ns: int, index: int) -> tuple[Batch | None, Sequence[Dropped]]:
        """Return the next batch for an instance, and the requests that left the queue without execution."""
        # hot: bench/micro_engine.py
        scheduler = self._scheduler
        dropped: Sequence[Dropped] = scheduler.expire(now_ns) if scheduler.has_timeouts else ()
        batch = self._take(now_ns, index)
        if batch is not None and batch.requests[0].arrival_ns < now_ns - _LATE_NS:
            batch, overdue = self._without_overdue(batch, now_ns, index)
            dropped = (*dropped, *overdue)
        if scheduler.dropped:
            dropped = (*dropped, *scheduler.pop_dropped())
        return batch, dropped

    def _without_overdue(
        self, batch: Batch | None, now_ns: int, index: int
    ) -> tuple[Batch | None, Sequence[Dropped]]:
        """Return a batch, or a later one, without the requests past their deadline, and those requests.

        Timers drop them too, but a busy loop is late for its timers.
        """
        dropped: list[Dropped] = []
        if self._scheduler.is_by_instance:
            return batch, dropped  # A sequence continues with each of its requests, or not at all.
        while batch is not None:
            overdue = [request for request in batch.requests if 0 < request.deadline_ns <= now_ns]
            if not overdue:
                break
            dropped += [Dropped(request, _overdue()) for request in overdue]
            batch.requests = [request for request in batch.requests if request not in overdue]
            if batch.requests:
                batch.size -= sum(request.batch_size for request in overdue)
                break
            if self._scheduler.learns:
                batch.exec_start_ns = batch.exec_end_ns = now_ns
                self._scheduler.record_execution(batch, failed=True)
            batch = self._take(now_ns, index)
        return batch, dropped


def _overdue() -> InferError:
    return InferError(
        ErrorCode.DEADLINE_EXCEEDED, "the deadline passed while it was queued", reason=FailureReason.CANCELED
    )

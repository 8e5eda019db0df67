"""A scheduler with its instances in simulated time, driven as a served model drives it."""

import functools
from collections.abc import Callable, Sequence

from naiad.core.batch import Batch
from naiad.core.request import InferRequest
from naiad.scheduler.api import Dropped, Scheduler
from naiad.tools.analyze.simulation.timeline import Timeline


def _ignore(_: object) -> None:
    """Do nothing about a batch or dropped requests."""


class Station:
    """The queue of a model and the instances that execute its batches."""

    def __init__(  # noqa: PLR0913 - keyword-only
        self,
        timeline: Timeline,
        scheduler: Scheduler,
        work_ns: Callable[[Batch], float],
        *,
        instance_count: int = 1,
        threads: int = 1,
        wake_up_ns: int = 0,
        when_awake: Callable[[Callable[[], None]], None] | None = None,
        after: Callable[[Batch, Callable[[], None]], None] | None = None,
        on_end: Callable[[Batch], None] = _ignore,
        on_drop: Callable[[Sequence[Dropped]], None] = _ignore,
    ) -> None:
        """`work_ns` is called when a batch begins; `threads` is the number of one instance.

        An idle instance takes a batch `wake_up_ns` after it was woken, and with `when_awake` not before that calls
        its argument. With `after`, one that has executed a batch takes the next one when that calls its second
        argument.
        """
        self.scheduler = scheduler
        self.on_end = on_end
        self.running_count = 0
        self._timeline = timeline
        self._work_ns = work_ns
        self._threads = threads
        self._wake_up_ns = wake_up_ns
        self._when_awake = when_awake
        self._after = after
        self._on_drop = on_drop
        self._idle: dict[int, int] = {}
        """Free instances, and when they call `take` again."""
        self._timer_ns = 0
        for instance in range(instance_count):
            self._take(instance)

    def enqueue(self, request: InferRequest) -> None:
        """Add a request that arrives now. Raises InferError(UNAVAILABLE) for a full queue."""
        if self.scheduler.enqueue(request, self._timeline.now_ns) and self._idle:
            self._wake(next(reversed(self._idle)))
        self._set_timer()

    def _wake(self, instance: int) -> None:
        if not self._wake_up_ns and self._when_awake is None:
            self._take(instance)
            return
        del self._idle[instance]
        take = functools.partial(self._take_again, instance)
        if self._when_awake is not None:
            take = functools.partial(self._when_awake, take)
        if self._wake_up_ns:
            self._timeline.at(self._timeline.now_ns + self._wake_up_ns, take)
        else:
            take()

    def _take_again(self, instance: int) -> None:
        self._take(instance)
        self._set_timer()

    def _take(self, instance: int) -> None:
        self._idle.pop(instance, None)
        timeline, scheduler = self._timeline, self.scheduler
        batch = scheduler.take(timeline.now_ns, instance)
        if scheduler.dropped:
            self._on_drop(scheduler.pop_dropped())
        if batch is None:
            self._idle[instance] = scheduler.wake_ns(instance)
            return
        batch.exec_start_ns = timeline.now_ns
        self.running_count += 1
        timeline.work(self._work_ns(batch), functools.partial(self._end, instance, batch), self._threads)
        if self._idle and scheduler.pending_count:
            self._wake(next(reversed(self._idle)))

    def _end(self, instance: int, batch: Batch) -> None:
        self.running_count -= 1
        batch.exec_end_ns = self._timeline.now_ns
        if self.scheduler.learns:
            self.scheduler.record_execution(batch)
        self.on_end(batch)
        if self._after is None:
            self._take_again(instance)
        else:
            self._after(batch, functools.partial(self._take_again, instance))

    def _set_timer(self) -> None:
        """Plan the next moment at which something happens without a request or the end of a batch."""
        scheduler = self.scheduler
        times_ns = [wake_ns for wake_ns in self._idle.values() if wake_ns] if self._idle else []
        if self._idle and scheduler.wake_up_ns:
            times_ns.append(scheduler.wake_up_ns)
        if scheduler.has_timeouts and scheduler.expire_ns():
            times_ns.append(scheduler.expire_ns())
        if not times_ns:
            return
        time_ns = max(min(times_ns), self._timeline.now_ns)
        if not self._timer_ns or time_ns < self._timer_ns:
            self._timer_ns = time_ns
            self._timeline.at(time_ns, functools.partial(self._end_timer, time_ns))

    def _end_timer(self, planned_ns: int) -> None:
        if planned_ns != self._timer_ns:
            return
        self._timer_ns = 0
        now_ns, scheduler = self._timeline.now_ns, self.scheduler
        if scheduler.has_timeouts and (expired := scheduler.expire(now_ns)):
            self._on_drop(expired)
        due = next((each for each, wake_ns in self._idle.items() if 0 < wake_ns <= now_ns), None)
        if due is None and self._idle and 0 < scheduler.wake_up_ns <= now_ns:
            due = next(reversed(self._idle))
        if due is not None:
            self._take(due)
        self._set_timer()

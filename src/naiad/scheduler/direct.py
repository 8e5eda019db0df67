"""The default scheduler: every request is a batch of its own, in order of arrival."""

from naiad.core.batch import Batch
from naiad.core.request import InferRequest
from naiad.scheduler.api import Scheduler
from naiad.scheduler.overload import OverloadGuard, OverloadPolicy
from naiad.scheduler.queue import PriorityLevel, QueueLimits, RequestQueue


class DirectScheduler(Scheduler):
    """Gives requests one by one to any free instance.

    Triton: without a `dynamic_batching` block there are neither priorities nor queue policies, and a request's
    timeout has no effect.
    """

    def __init__(self, overload: OverloadPolicy | None = None) -> None:
        """With `overload`, the order changes and the oldest requests are rejected under overload; None for Triton's
        rule.
        """
        self._level = PriorityLevel(QueueLimits(), is_watched=True)
        self._queue = self._level.waiting
        self._guard = OverloadGuard(overload)
        self._look_ns = self._guard.look_ns
        """Time of the next check for overload; 0 while overloaded."""

    def enqueue(self, request: InferRequest, now_ns: int) -> bool:
        """Add a request; it is always worth waking a free instance."""
        # hot: bench/micro_scheduler.py
        queue = self._queue if self._look_ns else self._level.queue_for(request)
        queue.append(request)
        self.pending_count += 1
        return True

    def take(self, now_ns: int, instance: int = 0) -> Batch | None:
        """Return the oldest request, released as `full` because its batch can never grow.

        Under overload it is the newest.
        """
        # hot: bench/micro_scheduler.py
        if now_ns >= self._look_ns:
            self._check_overload(now_ns)
            if not self._look_ns:
                return self._take_overloaded()
        if not self.pending_count:
            return None
        queue = self._queue
        request = queue.requests.popleft()
        while request.queue is not queue:
            request = queue.requests.popleft()
        request.queue = None
        queue.live_count -= 1
        self.pending_count -= 1
        return Batch((request,), request.batch_size, "full")

    def _take_overloaded(self) -> Batch | None:
        for queue in self._level.queues:
            for request in queue.in_order():
                if request.queue is queue:
                    request.queue = None
                    queue.live_count -= 1
                    queue.trim()
                    self.pending_count -= 1
                    self._guard.taken_count += 1
                    return Batch((request,), request.batch_size, "full")
        return None

    def _check_overload(self, now_ns: int) -> None:
        is_overloaded, dropped = self._guard.guard(now_ns, self.pending_count, (self._level,))
        self._look_ns = 0 if is_overloaded else self._guard.look_ns
        if dropped:
            self.pending_count -= len(dropped)
            self.dropped = (*self.dropped, *dropped)

    def oldest_ns(self) -> int:
        """Return the arrival of the oldest queued request; 0 for an empty queue."""
        return self._level.oldest_ns()

    def wake_ns(self, instance: int = 0) -> int:
        """Return 1, a time in the past, while requests are queued; otherwise 0."""
        return 1 if self.pending_count else 0

    def cancel(self, request: InferRequest) -> bool:
        """Remove a request; return True if it was queued."""
        queue: RequestQueue | None = request.queue
        if queue is None:
            return False
        queue.remove(request)
        self.pending_count -= 1
        self._guard.left_count += 1
        return True

    def drain(self) -> list[InferRequest]:
        """Remove and return all queued requests."""
        self.pending_count = 0
        return self._level.drain()

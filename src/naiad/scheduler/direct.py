"""The default scheduler: every request is a batch of its own, first come, first served."""

from collections.abc import Sequence

from naiad.core.batch import Batch
from naiad.core.request import InferRequest
from naiad.scheduler.api import Dropped, Scheduler
from naiad.scheduler.overload import OverloadGuard, OverloadPolicy
from naiad.scheduler.queue import PriorityLevel, QueuePolicy, RequestQueue


class DirectScheduler(Scheduler):
    """Hands requests one by one to whatever instance is free.

    Triton: without a `dynamic_batching` block there are neither priorities nor queue policies, and a request's
    timeout has no effect.
    """

    def __init__(self, overload: OverloadPolicy | None = None) -> None:
        """`overload` changes the order under overload and has the oldest requests refused; None for Triton's rule."""
        self._level = PriorityLevel(QueuePolicy(), is_watched=True)
        self._lane = self._level.waiting
        self._guard = OverloadGuard(overload)
        self._look_ns = self._guard.look_ns
        """When to ask the guard; 0 while overloaded."""

    def enqueue(self, request: InferRequest, now_ns: int) -> bool:
        """Take in a request; always worth a free instance."""
        # hot: bench/micro_scheduler.py
        lane = self._lane if self._look_ns else self._level.lane_for(request)
        lane.append(request)
        self.pending_count += 1
        return True

    def take(self, now_ns: int, instance: int = 0) -> Batch | None:
        """Return the request that waits longest, released as `full`: it never could have grown.

        Under overload it is the newest.
        """
        # hot: bench/micro_scheduler.py
        if now_ns >= self._look_ns:
            self._look(now_ns)
            if not self._look_ns:
                return self._take_overloaded()
        if not self.pending_count:
            return None
        lane = self._lane
        request = lane.requests.popleft()
        while request.lane is not lane:
            request = lane.requests.popleft()
        request.lane = None
        lane.live_count -= 1
        self.pending_count -= 1
        return Batch((request,), request.batch_size, "full")

    def _take_overloaded(self) -> Batch | None:
        for lane in self._level.lanes:
            for request in lane.in_order():
                if request.lane is lane:
                    request.lane = None
                    lane.live_count -= 1
                    lane.trim()
                    self.pending_count -= 1
                    self._guard.taken_count += 1
                    return Batch((request,), request.batch_size, "full")
        return None

    def _look(self, now_ns: int) -> None:
        is_overloaded, dropped = self._guard.guard(now_ns, self.pending_count, (self._level,))
        self._look_ns = 0 if is_overloaded else self._guard.look_ns
        if dropped:
            self.pending_count -= len(dropped)
            self.dropped = (*self.dropped, *dropped)

    def oldest_ns(self) -> int:
        """Return the arrival of the oldest request that waits; 0 when none does."""
        return self._level.oldest_ns()

    def wake_ns(self, instance: int = 0) -> int:
        """Return 1, long past, while requests wait for a `take`; otherwise 0."""
        return 1 if self.pending_count else 0

    def expire_ns(self) -> int:
        """Return 0: nothing times out."""
        return 0

    def expire(self, now_ns: int) -> Sequence[Dropped]:
        """Return nothing: nothing times out."""
        return ()

    def cancel(self, request: InferRequest) -> bool:
        """Remove a request; True when it still waited."""
        lane: RequestQueue | None = request.lane
        if lane is None:
            return False
        lane.remove(request)
        self.pending_count -= 1
        self._guard.left_count += 1
        return True

    def drain(self) -> list[InferRequest]:
        """Remove and return everything that waits."""
        self.pending_count = 0
        return self._level.drain()

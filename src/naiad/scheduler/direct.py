"""The default scheduler: every request is a batch of its own, first come, first served."""

from collections.abc import Sequence

from naiad.core.batch import Batch
from naiad.core.request import InferRequest
from naiad.scheduler.api import Dropped, Scheduler
from naiad.scheduler.queue import Lane


class DirectScheduler(Scheduler):
    """Hands requests one by one to whatever instance is free.

    Triton: without a `dynamic_batching` block there are neither priorities nor queue policies, and a request's
    timeout has no effect.
    """

    def __init__(self) -> None:
        self._lane = Lane()

    def enqueue(self, request: InferRequest, now_ns: int) -> bool:
        """Take in a request; always worth a free instance."""
        # hot: bench/micro_scheduler.py
        self._lane.append(request)
        self.pending_count += 1
        return True

    def take(self, now_ns: int, instance: int = 0) -> Batch | None:
        """Return the request that waits longest, released as `full`: it never could have grown."""
        # hot: bench/micro_scheduler.py
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
        if request.lane is not self._lane:
            return False
        self._lane.remove(request)
        self.pending_count -= 1
        return True

    def drain(self) -> list[InferRequest]:
        """Remove and return everything that waits."""
        self.pending_count = 0
        return self._lane.drain()

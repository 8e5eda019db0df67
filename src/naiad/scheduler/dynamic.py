"""The dynamic batcher: requests that are queued together execute together.

A batch is formed only when an instance is free to run it, so batches grow while instances are busy. The rules, in
Triton's order (`_gather`, then `_decide`):

1. The first request is always taken.
2. If the next request would exceed every preferred size, the batch is marked as sendable.
3. It never grows beyond max_batch_size, ...
4. ... nor over a request of another shape, or one that the batching strategy excludes: such a batch is cut.
5. If its size is a preferred one, the mark moves there.
6. A mark applies while the oldest request is younger than the delay, or if there is no delay.
7. Otherwise a cut batch, one of the largest preferred size, or one with an expired delay is sent whole.
8. All other requests wait for the delay.

With padding to few lengths, another shape does not cut a batch: `gather_by_shape` skips the requests between and
returns one candidate batch per shape. The oldest request is still sent first, so no request starves.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError, Rejection
from naiad.core.request import InferRequest
from naiad.scheduler.api import Dropped, Scheduler
from naiad.scheduler.overload import OverloadGuard, OverloadPolicy
from naiad.scheduler.queue import Deadlines, PriorityLevel, QueueLimits, RequestQueue, oldest_ns

SCAN_LIMIT = 1024
"""Limit of the queued requests that are searched for equal shapes."""


class BatchCandidate:
    """The requests that fit one batch, and the preferred size it could be sent at."""

    __slots__ = ("cut", "mark", "mark_rows", "requests", "rows")

    def __init__(self) -> None:
        self.requests: list[InferRequest] = []
        self.rows = 0
        """Rows of all requests, unless the batch was cut."""
        self.mark = 0
        """Number of requests that make a preferred batch; 0 for none."""
        self.mark_rows = 0
        self.cut = ""
        """Reason why the batch cannot grow: full, shape, strategy, or ""."""

    def oldest_ns(self) -> int:
        """Return the arrival of its oldest request; the candidate is not empty."""
        requests = self.requests
        return requests[0].arrival_ns if len(requests) == 1 else min([request.arrival_ns for request in requests])


def gather_by_shape(
    queues: Iterable[RequestQueue], preferred: Collection[int], max_rows: int
) -> Sequence[BatchCandidate]:
    """Return one candidate batch per queued shape, in the order of their first requests.

    The batcher's rules 1, 2, 3 and 5 hold for each; `preferred` has at least one size.
    """
    groups: dict[object, BatchCandidate] = {}
    largest_preferred = max(preferred)
    seen_count = 0
    for queue in queues:
        for request in queue.in_order():
            if request.queue is not queue:
                continue
            group = groups.get(request.shape_key)
            if group is None:
                group = groups[request.shape_key] = BatchCandidate()
            if not group.cut:
                _add(group, request, preferred, largest_preferred, max_rows)
            seen_count += 1
            if seen_count >= SCAN_LIMIT:
                return list(groups.values())
    return list(groups.values())


def _add(
    group: BatchCandidate, request: InferRequest, preferred: Collection[int], largest_preferred: int, max_rows: int
) -> None:
    grown = group.rows + (request.batch_size or 1)
    if group.requests:
        if grown > largest_preferred and not group.mark:
            group.mark, group.mark_rows = len(group.requests), group.rows
        if grown > max_rows:
            group.cut = "full"
            return
    group.requests.append(request)
    group.rows = grown
    if grown in preferred:
        group.mark, group.mark_rows = len(group.requests), grown


_AT_ONCE = 1
"""A wake-up time in the past."""


class BatchStrategy(Protocol):
    """A custom rule in addition to the batcher's own, like a custom batching library of Triton.

    No method raises. The record of a waiting batch is created again for each check.
    """

    def begin(self) -> Any:
        """Return the record of a new batch."""

    def includes(self, record: Any, request: InferRequest) -> bool:
        """Return whether `request` may join the batch; False cuts the batch, except for its first request."""

    def end(self, record: Any) -> None:
        """Release the record of a batch."""

    def close(self) -> None:
        """Release all resources; no batch follows."""


class DynamicScheduler(Scheduler):
    """Batches requests of equal shape by size, delay, priority and queue policy."""

    def __init__(  # noqa: PLR0913 - the fields of the configuration's message, keyword-only
        self,
        *,
        max_batch_size: int,
        preferred_batch_sizes: Collection[int] = (),
        delay_ns: int = 0,
        priority_levels: int = 0,
        default_priority_level: int = 0,
        default_policy: QueueLimits | None = None,
        level_policies: Mapping[int, QueueLimits] | None = None,
        strategy: BatchStrategy | None = None,
        delay_count: int = 0,
        skips_shapes: bool = False,
        overload: OverloadPolicy | None = None,
    ) -> None:
        """Create a batcher from the fields of `dynamic_batching`.

        `max_batch_size` counts rows. Without `priority_levels` a request's priority has no effect. `delay_count`
        holds everything until that many requests are queued, once (Triton: TRITONSERVER_DELAY_SCHEDULER, a test
        hook). With `skips_shapes` a batch continues beyond requests of other shapes, unless there is a `strategy`.
        `overload` applies to levels without a policy of their own, unless there is a `default_policy`.
        """
        self._max_rows = max(1, max_batch_size)
        self._preferred = frozenset(preferred_batch_sizes) or frozenset((self._max_rows,))
        self._smallest_preferred = min(self._preferred)
        self._largest_preferred = max(self._preferred)
        self._delay_ns = delay_ns
        self._strategy = strategy
        self._skips_shapes = skips_shapes and strategy is None
        self._hold_count = delay_count
        self._level_count = priority_levels
        self._default_priority = default_priority_level or 1
        self._default_policy = default_policy or QueueLimits()
        self._level_policies = level_policies or {}
        self._guard = OverloadGuard(overload if default_policy is None else None, max_batch_size=max_batch_size)
        self._look_ns = self._guard.look_ns
        """Time of the next check for overload; 0 while overloaded."""
        self._levels: dict[int, PriorityLevel] = {}
        """Priority to level; created by the first request of a level, since the number of levels is unbounded."""
        self._queues: list[RequestQueue] = []
        """All queues in the order in which requests leave."""
        self._takes_single = False
        """Whether a single queued request leaves at once: there is one queue, and nothing it could wait for."""
        policies = (self._default_policy, *self._level_policies.values())
        self._has_policies = any(policy != QueueLimits() for policy in policies)
        self._is_watchful = self._has_policies
        """Whether `enqueue` takes the slow path: there are policies, or the queue is overloaded."""
        self.has_timeouts = any(policy.timeout_ns for policy in policies)
        self._default_level = self._add_level(self._default_priority)
        self._deadlines = Deadlines()
        self._rejected: list[Dropped] = []
        self._release_ns = 0
        """With a delay: a lower bound of the end of the delay of the queued requests; 0 for unknown."""
        self._rows = 0
        """With a delay: the queued rows."""
        self._newest_shape_key: object = None
        self._is_awaited = False
        """Whether an instance was woken for the queued requests, or none is free, and no instance has called `take`
        since."""

    # --- arrival --------------------------------------------------------------------------------------------------

    def enqueue(self, request: InferRequest, now_ns: int) -> bool:
        """Add a request. Raises InferError(UNAVAILABLE) when the queue of its level is full."""
        # hot: bench/micro_scheduler.py
        level = self._level_of(request) if self._level_count else self._default_level
        queue = self._queue_for(level, request, now_ns) if self._is_watchful else level.waiting
        request.queue = queue
        queue.requests.append(request)
        queue.live_count += 1
        self.pending_count += 1
        if self._delay_ns:
            return self._is_worth_waking(request)
        is_first, self._is_awaited = not self._is_awaited, True
        return is_first

    def _level_of(self, request: InferRequest) -> PriorityLevel:
        priority = request.header.priority
        if not 0 < priority <= self._level_count:
            return self._default_level
        return self._levels.get(priority) or self._add_level(priority)

    def _add_level(self, priority: int) -> PriorityLevel:
        own = self._level_policies.get(priority)
        level = PriorityLevel(own or self._default_policy, is_watched=self._guard.is_on and own is None)
        if not self._look_ns:
            level.split()
        self._levels[priority] = level
        self._list_queues()
        return level

    def _ordered_levels(self) -> list[PriorityLevel]:
        """Return the levels, the most urgent first."""
        return [self._levels[key] for key in sorted(self._levels)]

    def _list_queues(self) -> None:
        self._queues = [queue for level in self._ordered_levels() for queue in level.queues]
        may_wait = self._delay_ns or self._strategy is not None or self.has_timeouts or self._skips_shapes
        self._takes_single = len(self._queues) == 1 and not may_wait

    def _queue_for(self, level: PriorityLevel, request: InferRequest, now_ns: int) -> RequestQueue:
        if self._has_policies:
            self._apply_policy(level, request, now_ns)
        return level.queue_for(request)

    def _apply_policy(self, level: PriorityLevel, request: InferRequest, now_ns: int) -> None:
        if self.has_timeouts:
            # Requests past their timeout take no room from new requests.
            self._settle(now_ns)
        level.check_room(request)
        deadline_ns = level.policy.deadline_ns(request, now_ns)
        if deadline_ns:
            self._deadlines.add(request, deadline_ns)

    def _is_worth_waking(self, request: InferRequest) -> bool:
        """Return whether a free instance with a delayed batch would now send it, or wait for a shorter time."""
        self._rows += request.batch_size or 1
        release_ns = request.arrival_ns + self._delay_ns
        is_sooner = not self._release_ns or release_ns < self._release_ns
        if is_sooner:
            self._release_ns = release_ns
        # A delayed batch has one shape: with two it would have been cut and sent.
        is_other_shape = request.shape_key != self._newest_shape_key
        self._newest_shape_key = request.shape_key
        return (
            is_sooner
            or is_other_shape
            or self._rows >= self._smallest_preferred
            or self._hold_count > 0
            or self._strategy is not None
        )

    # --- departure ------------------------------------------------------------------------------------------------

    def take(self, now_ns: int, instance: int = 0) -> Batch | None:
        """Return the next batch by the rules above, or None to wait."""
        # hot: bench/micro_scheduler.py
        self._is_awaited = False
        if self.has_timeouts:
            self._settle(now_ns)
        if (
            not self.pending_count
            or (now_ns >= self._look_ns and not self._check_overload(now_ns))
            or (self._hold_count and self._is_held())
        ):
            self._release_ns = 0
            return None
        if self.pending_count == 1 and self._takes_single and self._look_ns:
            return self._take_single(self._queues[0])
        if self._skips_shapes:
            return self._take_by_shape(now_ns)
        candidate = self._gather() if self._strategy is None else self._gather_custom(self._strategy)
        reason = self._decide(candidate, now_ns)
        return self._release(candidate.requests, reason) if reason else None

    def _take_single(self, queue: RequestQueue) -> Batch:
        """Return the only queued request, by the same rules, where nothing lets a batch wait."""
        request = queue.requests.popleft()
        while request.queue is not queue:
            request = queue.requests.popleft()
        request.queue = None
        queue.live_count -= 1
        self.pending_count = 0
        rows = request.batch_size or 1
        if rows in self._preferred:
            reason = self._preferred_reason(rows)
        else:
            reason = "full" if rows >= self._max_rows else "preferred" if rows >= self._largest_preferred else "idle"
        return Batch([request], request.batch_size, reason)

    def _check_overload(self, now_ns: int) -> bool:
        """Check for overload and apply the result to the queue; return whether requests are still queued."""
        was_overloaded = not self._look_ns
        is_overloaded, dropped = self._guard.guard(now_ns, self.pending_count, self._ordered_levels())
        self._look_ns = 0 if is_overloaded else self._guard.look_ns
        self._is_watchful = self._has_policies or is_overloaded
        if is_overloaded or was_overloaded:
            self._list_queues()
        if dropped:
            self.pending_count -= len(dropped)
            self._forget([each.request for each in dropped])
            self.dropped = (*self.dropped, *dropped)
        return self.pending_count > 0

    def oldest_ns(self) -> int:
        """Return the arrival of the oldest queued request; 0 for an empty queue."""
        return oldest_ns(self._ordered_levels())

    def _take_by_shape(self, now_ns: int) -> Batch | None:
        """Return a batch of the first request's shape, or of another shape that need not wait while the first
        does.
        """
        first, *others = gather_by_shape(self._queues, self._preferred, self._max_rows)
        reason = self._decide(first, now_ns)
        if reason:
            return self._release(first.requests, reason)
        for candidate in others:
            release_ns = candidate.oldest_ns() + self._delay_ns
            if candidate.mark or candidate.cut or candidate.rows >= self._max_rows or release_ns <= now_ns:
                return self._release(candidate.requests, self._decide(candidate, now_ns))
            self._release_ns = min(self._release_ns, release_ns)
        return None

    def _is_held(self) -> bool:
        if self.pending_count >= self._hold_count:
            self._hold_count = 0
        return self._hold_count > 0

    def _gather_custom(self, strategy: BatchStrategy) -> BatchCandidate:
        record = strategy.begin()
        candidate = self._gather(lambda request: strategy.includes(record, request))
        strategy.end(record)
        return candidate

    def _gather(self, includes: Callable[[InferRequest], bool] | None = None) -> BatchCandidate:
        """Apply rules 1 to 5 to the queued requests; `includes` is a further rule for each request."""
        candidate = BatchCandidate()
        chosen = candidate.requests
        largest_preferred = self._largest_preferred
        shape_key: object = None
        rows = 0
        for queue in self._queues:
            for request in reversed(queue.requests) if queue.is_newest_first else queue.requests:
                if request.queue is not queue:
                    continue
                grown = rows + (request.batch_size or 1)
                if not chosen:
                    shape_key = request.shape_key
                    if includes is not None:
                        # The rule also gets the first request, which joins regardless of the result.
                        includes(request)
                else:
                    if grown > largest_preferred and not candidate.mark:
                        candidate.mark, candidate.mark_rows = len(chosen), rows
                    if grown > self._max_rows:
                        candidate.cut = "full"
                        return candidate
                    # Requests of one header share the key object, so identity mostly decides.
                    key = request.shape_key
                    is_other_shape = key is not shape_key and key != shape_key
                    if is_other_shape or (includes is not None and not includes(request)):
                        candidate.cut = "shape" if is_other_shape else "strategy"
                        return candidate
                chosen.append(request)
                rows = grown
                if rows in self._preferred:
                    candidate.mark, candidate.mark_rows = len(chosen), rows
        candidate.rows = rows
        return candidate

    def _decide(self, candidate: BatchCandidate, now_ns: int) -> str:
        """Apply rules 6 to 8: return the reason to send the candidate (cut down to the mark), or "" to wait."""
        release_ns = candidate.oldest_ns() + self._delay_ns if self._delay_ns else 0
        is_overdue = 0 < release_ns <= now_ns
        if candidate.mark and not is_overdue:
            del candidate.requests[candidate.mark :]
            return self._preferred_reason(candidate.mark_rows)
        if candidate.cut or candidate.rows >= self._max_rows:
            return candidate.cut or "full"
        if is_overdue:
            return "delay"
        if candidate.rows >= self._largest_preferred:
            return "preferred"
        if not self._delay_ns:
            return "idle"
        return self._hold(candidate, release_ns, now_ns)

    def _hold(self, candidate: BatchCandidate, release_ns: int, now_ns: int) -> str:
        """Apply rule 8: note the end of the wait and return ""."""
        self._release_ns = release_ns
        self._newest_shape_key = candidate.requests[-1].shape_key
        return ""

    def _preferred_reason(self, rows: int) -> str:
        is_full = rows >= self._max_rows or (
            rows not in self._preferred and self._largest_preferred >= self._max_rows
        )
        return "full" if is_full else "preferred"

    def _release(self, requests: list[InferRequest], reason: str) -> Batch:
        rows = 0
        for request in requests:
            queue: RequestQueue = request.queue
            request.queue = None
            queue.live_count -= 1
            rows += request.batch_size
        for queue in self._queues:
            queue.trim()
            if self._skips_shapes:
                queue.compact()
        self.pending_count -= len(requests)
        if self.has_timeouts or self._delay_ns:
            self._forget(requests)
        if not self._look_ns:
            self._guard.taken_count += len(requests)
            requests.sort(key=lambda request: request.arrival_ns)
        elif self._level_count > 1 and not self._skips_shapes and self._skips_older(requests):
            reason = "priority"
        return Batch(requests, rows, reason)

    def _skips_older(self, requests: Sequence[InferRequest]) -> bool:
        newest_ns = max([request.arrival_ns for request in requests])
        return any(queue.requests[0].arrival_ns < newest_ns for queue in self._queues if queue.requests)

    def _forget(self, requests: Sequence[InferRequest]) -> None:
        """Remove the records about requests that leave."""
        if self.has_timeouts:
            for request in requests:
                self._deadlines.remove(request)
        if self._delay_ns:
            self._rows -= sum([request.batch_size or 1 for request in requests])
            self._release_ns = 0

    # --- time -----------------------------------------------------------------------------------------------------

    def wake_ns(self, instance: int = 0) -> int:
        """Return the time at which a delayed batch is sent or a request times out, the earlier one; 0 for never."""
        expire_ns = self.expire_ns()
        if not self.pending_count or self._hold_count > self.pending_count:
            return expire_ns
        release_ns = self._release_ns or _AT_ONCE
        return min(release_ns, expire_ns) if expire_ns else release_ns

    def expire_ns(self) -> int:
        """Return the nearest timeout; 0 for none."""
        return _AT_ONCE if self._rejected else self._deadlines.nearest_ns()

    def expire(self, now_ns: int) -> Sequence[Dropped]:
        """Remove and return the requests that timed out; requests with the action DELAY stay."""
        if not self.has_timeouts:
            return ()
        self._settle(now_ns)
        rejected, self._rejected = self._rejected, []
        return rejected

    def _settle(self, now_ns: int) -> None:
        """Reject or delay every request whose time is over."""
        for request in self._deadlines.pop_expired(now_ns):
            queue: RequestQueue = request.queue
            queue.remove(request)
            if queue.overdue is not None:
                queue.overdue.append(request)
            else:
                self.pending_count -= 1
                self._guard.left_count += 1
                self._forget((request,))
                self._rejected.append(Dropped(request, _timed_out()))

    # --- removal --------------------------------------------------------------------------------------------------

    def cancel(self, request: InferRequest) -> bool:
        """Remove a request; return True if it was queued."""
        if request.queue is None:
            return False
        request.queue.remove(request)
        self.pending_count -= 1
        self._guard.left_count += 1
        self._forget((request,))
        return True

    def drain(self) -> list[InferRequest]:
        """Remove and return all queued requests, by priority and arrival."""
        left = [request for queue in self._queues for request in queue.drain()]
        self.pending_count = 0
        self._deadlines.clear()
        self._rows = 0
        self._release_ns = 0
        self._is_awaited = False
        return left

    def close(self) -> None:
        """Close the custom rule."""
        if self._strategy is not None:
            self._strategy.close()


def _timed_out() -> InferError:
    # Triton: no request id precedes this message.
    text = "Request timeout expired"
    return InferError(ErrorCode.UNAVAILABLE, text, reason=FailureReason.REJECTED, rejection=Rejection.TIMEOUT)

"""The dynamic batcher: requests that wait together execute together.

A batch is formed when an instance is free to run it and not before, so while instances are busy it grows by itself.
The rules, in Triton's order (`_gather`, then `_decide`):

1. The first request is taken as it is.
2. Where the next would make the batch larger than every preferred size, the batch is marked as sendable.
3. It never grows beyond max_batch_size, ...
4. ... nor over a request of another shape, or one that the batching strategy refuses: such a batch is cut.
5. Where its size is a preferred one, the mark moves there.
6. A mark is honoured as long as the oldest request is younger than the delay, or if there is no delay.
7. Otherwise a cut batch, one of the largest preferred size, or one whose delay is over goes as it is.
8. What remains waits for the delay.

Where requests are padded to few lengths, another shape does not cut a batch: those between are passed over.

What of the waiting requests could make a batch: the dynamic batcher's record of it, and the rule by shape.

Where requests are padded to few lengths, those of one length are looked for among all that wait. The oldest request
still goes first, so that none is passed over for ever.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError
from naiad.core.request import InferRequest
from naiad.scheduler.api import Dropped, Scheduler
from naiad.scheduler.overload import OverloadGuard, OverloadPolicy
from naiad.scheduler.queue import Deadlines, PriorityLevel, QueuePolicy, RequestQueue, oldest_ns

SCAN_LIMIT = 1024
"""Waiting requests that are looked through for others of the same shape."""


class BatchCandidate:
    """The requests that fit one batch, and where it could be sent."""

    __slots__ = ("cut", "mark", "mark_rows", "requests", "rows")

    def __init__(self) -> None:
        self.requests: list[InferRequest] = []
        self.rows = 0
        """Rows of all of them, unless the batch was cut."""
        self.mark = 0
        """How many of the requests make a preferred batch; 0 for none."""
        self.mark_rows = 0
        self.cut = ""
        """Why the batch cannot grow although requests wait: full, shape, strategy, or nothing."""

    def oldest_ns(self) -> int:
        """Return the arrival of its oldest request, of which there is one at least."""
        requests = self.requests
        return requests[0].arrival_ns if len(requests) == 1 else min([request.arrival_ns for request in requests])


def gather_by_shape(
    lanes: Iterable[RequestQueue], preferred: Collection[int], max_rows: int
) -> Sequence[BatchCandidate]:
    """Return what fits one batch for each shape that waits, in the order of their first requests.

    The batcher's rules 1, 2, 3 and 5 hold for each; `preferred` has one size at least.
    """
    groups: dict[object, BatchCandidate] = {}
    largest_preferred = max(preferred)
    seen_count = 0
    for lane in lanes:
        for request in lane.in_order():
            if request.lane is not lane:
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
    """A custom rule on top of the batcher's own; what a custom batching library is to Triton.

    No method raises. A batch that waits is begun and ended anew whenever it is looked at.
    """

    def begin(self) -> Any:
        """Return the record of a new batch."""

    def includes(self, record: Any, request: InferRequest) -> bool:
        """Tell whether `request` may join the batch; False cuts the batch, except for its first request."""

    def end(self, record: Any) -> None:
        """Let go of the record of a batch."""

    def close(self) -> None:
        """Let go of everything; no batch will follow."""


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
        default_policy: QueuePolicy | None = None,
        level_policies: Mapping[int, QueuePolicy] | None = None,
        strategy: BatchStrategy | None = None,
        delay_count: int = 0,
        passes_over_shapes: bool = False,
        overload: OverloadPolicy | None = None,
    ) -> None:
        """Create a batcher as `dynamic_batching` of the configuration describes it.

        `max_batch_size` counts rows. Without `priority_levels` a request's priority has no effect. `delay_count`
        holds everything until that many requests wait, once (Triton: TRITONSERVER_DELAY_SCHEDULER, a test hook).
        With `passes_over_shapes` a batch goes on beyond requests of other shapes, unless there is a `strategy`.
        `overload` holds for the levels that have no policy of their own, unless there is a `default_policy`.
        """
        self._max_rows = max(1, max_batch_size)
        self._preferred = frozenset(preferred_batch_sizes) or frozenset((self._max_rows,))
        self._smallest_preferred = min(self._preferred)
        self._largest_preferred = max(self._preferred)
        self._delay_ns = delay_ns
        self._strategy = strategy
        self._passes_over = passes_over_shapes and strategy is None
        self._hold_count = delay_count
        self._level_count = priority_levels
        self._default_priority = default_priority_level or 1
        self._default_policy = default_policy or QueuePolicy()
        self._level_policies = level_policies or {}
        self._guard = OverloadGuard(overload if default_policy is None else None, max_batch_size=max_batch_size)
        self._look_ns = self._guard.look_ns
        """When to ask the guard; 0 while overloaded."""
        self._levels: dict[int, PriorityLevel] = {}
        """Priority to level; made when a request first asks for it, since the number of levels is unbounded."""
        self._lanes: list[RequestQueue] = []
        """All lanes in the order in which requests leave."""
        self._default_level = self._add_level(self._default_priority)
        policies = (self._default_policy, *self._level_policies.values())
        self._has_policies = any(policy != QueuePolicy() for policy in policies)
        self._is_watchful = self._has_policies
        """Whether `enqueue` must look closer: there are policies, or the queue is overloaded."""
        self.has_timeouts = any(policy.timeout_ns for policy in policies)
        self._deadlines = Deadlines()
        self._rejected: list[Dropped] = []
        self._release_ns = 0
        """With a delay: no later than the end of the delay of what waits; 0 for unknown."""
        self._rows = 0
        """With a delay: the rows that wait."""
        self._newest_shape_key: object = None
        self._is_awaited = False
        """Whether an instance was woken for what waits, or none is free, and none has looked since: whoever looks
        takes the next request too, or has another woken for it. Two instances: 217 us of CPU a request became 205."""

    # --- arrival --------------------------------------------------------------------------------------------------

    def enqueue(self, request: InferRequest, now_ns: int) -> bool:
        """Take in a request. Raises InferError(UNAVAILABLE) when the queue of its level is full."""
        # hot: bench/micro_scheduler.py
        level = self._level_of(request) if self._level_count else self._default_level
        lane = self._lane_for(level, request, now_ns) if self._is_watchful else level.waiting
        request.lane = lane
        lane.requests.append(request)
        lane.live_count += 1
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
        self._list_lanes()
        return level

    def _ordered_levels(self) -> list[PriorityLevel]:
        """Return the levels, the most urgent first."""
        return [self._levels[key] for key in sorted(self._levels)]

    def _list_lanes(self) -> None:
        self._lanes = [lane for level in self._ordered_levels() for lane in level.lanes]

    def _lane_for(self, level: PriorityLevel, request: InferRequest, now_ns: int) -> RequestQueue:
        if self._has_policies:
            self._apply_policy(level, request, now_ns)
        return level.lane_for(request)

    def _apply_policy(self, level: PriorityLevel, request: InferRequest, now_ns: int) -> None:
        if self.has_timeouts:
            # Those whose time is over take no room from those who come.
            self._settle(now_ns)
        level.check_room(request)
        deadline_ns = level.policy.deadline_ns(request, now_ns)
        if deadline_ns:
            self._deadlines.add(request, deadline_ns)

    def _is_worth_waking(self, request: InferRequest) -> bool:
        """Tell whether a free instance that holds a batch back would now send it, or wait for less long."""
        self._rows += request.batch_size or 1
        release_ns = request.arrival_ns + self._delay_ns
        is_sooner = not self._release_ns or release_ns < self._release_ns
        if is_sooner:
            self._release_ns = release_ns
        # What is held back has one shape: with two it would have been cut and sent.
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
        if not self.pending_count or (now_ns >= self._look_ns and not self._look(now_ns)) or self._is_held():
            self._release_ns = 0
            return None
        if self._passes_over:
            return self._take_by_shape(now_ns)
        gathered = self._gather() if self._strategy is None else self._gather_custom(self._strategy)
        reason = self._decide(gathered, now_ns)
        return self._release(gathered.requests, reason) if reason else None

    def _look(self, now_ns: int) -> bool:
        """Ask the guard, and let the queue be as it says; return whether requests still wait."""
        was_overloaded = not self._look_ns
        is_overloaded, dropped = self._guard.guard(now_ns, self.pending_count, self._ordered_levels())
        self._look_ns = 0 if is_overloaded else self._guard.look_ns
        self._is_watchful = self._has_policies or is_overloaded
        if is_overloaded or was_overloaded:
            self._list_lanes()
        if dropped:
            self.pending_count -= len(dropped)
            self._forget([each.request for each in dropped])
            self.dropped = (*self.dropped, *dropped)
        return self.pending_count > 0

    def oldest_ns(self) -> int:
        """Return the arrival of the oldest request that waits; 0 when none does."""
        return oldest_ns(self._ordered_levels())

    def _take_by_shape(self, now_ns: int) -> Batch | None:
        """Return a batch of the first request's shape, or of one that need not wait while the first is held."""
        first, *others = gather_by_shape(self._lanes, self._preferred, self._max_rows)
        reason = self._decide(first, now_ns)
        if reason:
            return self._release(first.requests, reason)
        for gathered in others:
            release_ns = gathered.oldest_ns() + self._delay_ns
            if gathered.mark or gathered.cut or gathered.rows >= self._max_rows or release_ns <= now_ns:
                return self._release(gathered.requests, self._decide(gathered, now_ns))
            self._release_ns = min(self._release_ns, release_ns)
        return None

    def _is_held(self) -> bool:
        if self.pending_count >= self._hold_count:
            self._hold_count = 0
        return self._hold_count > 0

    def _gather_custom(self, strategy: BatchStrategy) -> BatchCandidate:
        record = strategy.begin()
        gathered = self._gather(lambda request: strategy.includes(record, request))
        strategy.end(record)
        return gathered

    def _gather(self, includes: Callable[[InferRequest], bool] | None = None) -> BatchCandidate:
        """Apply rules 1 to 5 to what waits; `includes` is a further rule for each request."""
        gathered = BatchCandidate()
        chosen = gathered.requests
        largest_preferred = self._largest_preferred
        shape_key: object = None
        rows = 0
        for lane in self._lanes:
            for request in reversed(lane.requests) if lane.is_newest_first else lane.requests:
                if request.lane is not lane:
                    continue
                grown = rows + (request.batch_size or 1)
                if not chosen:
                    shape_key = request.shape_key
                    if includes is not None:
                        # It is told of the first, too, which goes whatever it says.
                        includes(request)
                else:
                    if grown > largest_preferred and not gathered.mark:
                        gathered.mark, gathered.mark_rows = len(chosen), rows
                    if grown > self._max_rows:
                        gathered.cut = "full"
                        return gathered
                    # Requests of one header share the key, so identity mostly answers.
                    key = request.shape_key
                    is_other_shape = key is not shape_key and key != shape_key
                    if is_other_shape or (includes is not None and not includes(request)):
                        gathered.cut = "shape" if is_other_shape else "strategy"
                        return gathered
                chosen.append(request)
                rows = grown
                if rows in self._preferred:
                    gathered.mark, gathered.mark_rows = len(chosen), rows
        gathered.rows = rows
        return gathered

    def _decide(self, gathered: BatchCandidate, now_ns: int) -> str:
        """Apply rules 6 to 8: return why the gathered requests go (cut down to the mark), or "" to wait."""
        release_ns = gathered.oldest_ns() + self._delay_ns if self._delay_ns else 0
        is_overdue = 0 < release_ns <= now_ns
        if gathered.mark and not is_overdue:
            del gathered.requests[gathered.mark :]
            return self._preferred_reason(gathered.mark_rows)
        if gathered.cut or gathered.rows >= self._max_rows:
            return gathered.cut or "full"
        if is_overdue:
            return "delay"
        if gathered.rows >= self._largest_preferred:
            return "preferred"
        if not self._delay_ns:
            return "idle"
        return self._hold(gathered, release_ns, now_ns)

    def _hold(self, gathered: BatchCandidate, release_ns: int, now_ns: int) -> str:
        """Apply rule 8: remember until when the gathered requests wait and return ""."""
        self._release_ns = release_ns
        self._newest_shape_key = gathered.requests[-1].shape_key
        return ""

    def _preferred_reason(self, rows: int) -> str:
        is_full = rows >= self._max_rows or (
            rows not in self._preferred and self._largest_preferred >= self._max_rows
        )
        return "full" if is_full else "preferred"

    def _release(self, requests: list[InferRequest], reason: str) -> Batch:
        rows = 0
        for request in requests:
            lane: RequestQueue = request.lane
            request.lane = None
            lane.live_count -= 1
            rows += request.batch_size
        for lane in self._lanes:
            lane.trim()
            if self._passes_over:
                lane.compact()
        self.pending_count -= len(requests)
        self._forget(requests)
        if not self._look_ns:
            self._guard.taken_count += len(requests)
            requests.sort(key=lambda request: request.arrival_ns)
        elif self._level_count > 1 and not self._passes_over and self._passes_over_older(requests):
            reason = "priority"
        return Batch(requests, rows, reason)

    def _passes_over_older(self, requests: Sequence[InferRequest]) -> bool:
        newest_ns = max([request.arrival_ns for request in requests])
        return any(lane.requests[0].arrival_ns < newest_ns for lane in self._lanes if lane.requests)

    def _forget(self, requests: Sequence[InferRequest]) -> None:
        """Drop what is remembered about requests that leave."""
        if self.has_timeouts:
            for request in requests:
                self._deadlines.remove(request)
        if self._delay_ns:
            self._rows -= sum([request.batch_size or 1 for request in requests])
            self._release_ns = 0

    # --- time -----------------------------------------------------------------------------------------------------

    def wake_ns(self, instance: int = 0) -> int:
        """Return when a held-back batch goes or a request times out, whichever comes first; 0 for never."""
        expire_ns = self.expire_ns()
        if not self.pending_count or self._hold_count > self.pending_count:
            return expire_ns
        release_ns = self._release_ns or _AT_ONCE
        return min(release_ns, expire_ns) if expire_ns else release_ns

    def expire_ns(self) -> int:
        """Return the nearest timeout; 0 for none."""
        return _AT_ONCE if self._rejected else self._deadlines.nearest_ns()

    def expire(self, now_ns: int) -> Sequence[Dropped]:
        """Remove and return the requests that timed out; delay those whose policy says so."""
        if not self.has_timeouts:
            return ()
        self._settle(now_ns)
        rejected, self._rejected = self._rejected, []
        return rejected

    def _settle(self, now_ns: int) -> None:
        """Reject or delay every request whose time is over."""
        for request in self._deadlines.pop_expired(now_ns):
            lane: RequestQueue = request.lane
            lane.remove(request)
            if lane.overdue is not None:
                lane.overdue.append(request)
            else:
                self.pending_count -= 1
                self._guard.left_count += 1
                self._forget((request,))
                self._rejected.append(Dropped(request, _timed_out()))

    # --- removal --------------------------------------------------------------------------------------------------

    def cancel(self, request: InferRequest) -> bool:
        """Remove a request; True when it still waited."""
        if request.lane is None:
            return False
        request.lane.remove(request)
        self.pending_count -= 1
        self._guard.left_count += 1
        self._forget((request,))
        return True

    def drain(self) -> list[InferRequest]:
        """Remove and return everything that waits, by priority and arrival."""
        left = [request for lane in self._lanes for request in lane.drain()]
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
    # Triton: this message has no request id before it.
    return InferError(ErrorCode.UNAVAILABLE, "Request timeout expired", reason=FailureReason.REJECTED)

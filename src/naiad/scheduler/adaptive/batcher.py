"""The adaptive batcher: a dynamic batcher that learns for how long a hold pays, and holds no longer.

It is told when requests come and how long batches took, and from that decides for each batch that could grow:

1. What would be the point? A batch that is full, cut or overdue goes, as with any dynamic batcher. So does one of
   which too little is known.
2. Turns: instances that share a device (cores, a GPU) only slow each other down, and those that do not should not
   all start at once and leave the next request to wait. So batches start evenly: one every duration / parallelism,
   where the parallelism is what so many instances were seen to gain, at most their number. Nobody is woken to wait
   for a turn: the instance that ends takes what has come, and `nudge_ns` is for one that is late.
3. Bursts: when the gaps between arrivals say that the next request probably comes within a time that is short
   against a turn, it is waited for, as long as such holds have brought more than they have cost.
4. A latency goal, if there is one: it lets batches grow for as long as the answer will be in time with certainty,
   provided that another request is likely to come; and it ends every hold that would break it.
5. Otherwise the batch goes: an instance is free and waiting would not pay.

All of it is on the way of every request, so that it has to cost little: what a batch tells is learned once a batch.
"""

from collections.abc import Collection, Mapping, Sequence

from naiad.core.batch import Batch
from naiad.core.model import DECISIONS, AdaptiveState
from naiad.core.request import InferRequest
from naiad.scheduler.adaptive.hold_choice import HoldChoice
from naiad.scheduler.dynamic import BatchCandidate, BatchStrategy, DynamicScheduler
from naiad.scheduler.overload import OverloadPolicy
from naiad.scheduler.queue import QueuePolicy

MAX_HOLD_NS = 1_000_000_000
"""Nothing is held for longer than this, whatever was learned."""
_OVERHEAD_NS = 30_000
"""How long before a timeout a hold ends at the latest."""


class AdaptiveScheduler(DynamicScheduler):
    """Batches as the dynamic batcher does, and holds a batch for as long as that was learned to pay."""

    learns = True

    def __init__(  # noqa: PLR0913 - the fields of the configuration's message, keyword-only
        self,
        *,
        max_batch_size: int,
        instance_count: int = 1,
        latency_goal_ns: int = 0,
        preferred_batch_sizes: Collection[int] = (),
        max_hold_ns: int = 0,
        priority_levels: int = 0,
        default_priority_level: int = 0,
        default_policy: QueuePolicy | None = None,
        level_policies: Mapping[int, QueuePolicy] | None = None,
        strategy: BatchStrategy | None = None,
        delay_count: int = 0,
        passes_over_shapes: bool = False,
        overload: OverloadPolicy | None = None,
    ) -> None:
        """Create a batcher that holds no request for longer than `max_hold_ns` after its arrival; 0 for a second.

        `latency_goal_ns` is what a request may take from its arrival to its answer; 0 for as little as possible.
        """
        super().__init__(
            max_batch_size=max_batch_size,
            preferred_batch_sizes=preferred_batch_sizes,
            delay_ns=min(max_hold_ns or MAX_HOLD_NS, MAX_HOLD_NS),
            priority_levels=priority_levels,
            default_priority_level=default_priority_level,
            default_policy=default_policy,
            level_policies=level_policies,
            strategy=strategy,
            delay_count=delay_count,
            passes_over_shapes=passes_over_shapes,
            overload=overload,
        )
        self._goal_ns = latency_goal_ns
        self._tolerance_ns = latency_goal_ns // 50
        """A hold that would end this much sooner is left alone."""
        self._choice = HoldChoice(
            instance_count=instance_count, goal_ns=latency_goal_ns, max_rows=max(1, max_batch_size)
        )
        self._executions = self._choice.executions
        self._held_since_ns = 0
        """Since when a free instance holds what waits; 0 while none does."""
        self._held_requests = 0
        """How many waited then."""
        self._is_woken_up = False
        """Whether nobody is awake for what is held."""
        self._until_ns = 0
        self._oldest_ns = 0
        """Arrival of the oldest request of the batch that is held."""
        self._why = ""
        """What the current hold waits for."""
        self._held_count = 0
        self._hold_ns = 0
        self._decisions = dict.fromkeys(DECISIONS, 0)

    # --- arrival --------------------------------------------------------------------------------------------------

    def _is_worth_waking(self, request: InferRequest) -> bool:
        """Tell whether a free instance that holds a batch back would now send it, or wait for less long."""
        # hot: once a request
        if self._held_since_ns:
            if self.pending_count > 1:
                return self._ends_hold(request)
            # Whatever was held has been cancelled or is over.
            self._end_hold()
        if self._is_awaited:
            return False
        self._newest_shape_key = request.shape_key
        executions = self._executions
        if not self._goal_ns and 0 < executions.count < executions.instance_count and self._awaits_turn(request):
            return False
        self._is_awaited = True
        return True

    def _ends_hold(self, request: InferRequest) -> bool:
        is_other_shape = request.shape_key != self._newest_shape_key
        self._newest_shape_key = request.shape_key
        self._rows += request.batch_size or 1
        if is_other_shape or self._rows >= self._smallest_preferred or self._strategy is not None:
            return True
        if self._why == "turn" and not self._goal_ns:
            return False
        until_ns, _ = self._release_of(self.pending_count, self._rows, self._oldest_ns, request.arrival_ns, 0)
        return until_ns < self._until_ns - self._tolerance_ns

    def _awaits_turn(self, request: InferRequest) -> bool:
        """Hold the first request of a batch, with no instance awake, until one ends or its turn has come."""
        rows, now_ns = request.batch_size or 1, request.arrival_ns
        is_plain = self.pending_count == 1 and rows < self._smallest_preferred and not self.has_timeouts
        if not is_plain or self._hold_count or self._strategy is not None:
            return False
        until_ns = min(self._choice.crowd_until_ns(), now_ns + self._delay_ns)
        if until_ns <= now_ns:
            return False
        self._begin_hold(1, rows, until_ns, "turn", now_ns)
        self._oldest_ns = now_ns
        self.wake_up_ns = until_ns
        self._is_woken_up = True
        return True

    # --- departure ------------------------------------------------------------------------------------------------

    def take(self, now_ns: int, instance: int = 0) -> Batch | None:
        """Return the next batch, or None to wait."""
        # hot: once a batch
        self.wake_up_ns = 0
        executions = self._executions
        if executions.alone_wanted and self._is_kept_alone(now_ns):
            return None
        batch = super().take(now_ns, instance)
        if batch is None:
            if not self.pending_count:
                self._end_hold()
            return None
        self._choice.note_begun(batch.requests)
        was_held = self._held_since_ns > 0
        if was_held or not self._choice.is_certain or batch.release_reason != "idle":
            self._count(batch, now_ns)
        else:
            self._decisions["no_gain"] += 1
            batch.decision = "no_gain"
        executions.begin(batch, now_ns, was_held=was_held)
        return batch

    def _forget(self, requests: Sequence[InferRequest]) -> None:
        # Rows are counted anew for each hold.
        if self.has_timeouts:
            super()._forget(requests)
        self._release_ns = 0

    def _is_kept_alone(self, now_ns: int) -> bool:
        """Hold everything, whatever its size, while another batch is to show how long one takes that is alone."""
        until_ns = self._executions.alone_until_ns()
        if until_ns <= now_ns or not self.pending_count:
            return False
        self._release_ns = min(until_ns, now_ns + self._delay_ns)
        return True

    def _count(self, batch: Batch, now_ns: int) -> None:
        """Count why a batch goes and how long it was held."""
        why = "full"
        is_held = self._held_since_ns > 0
        if batch.release_reason in ("idle", "delay"):
            # Without a hold it is old because every instance was busy.
            batch.release_reason = "delay" if is_held else "idle"
            why = self._why if is_held else "no_gain" if self._choice.is_certain else "unknown"
        if is_held:
            self._count_hold(batch, now_ns)
        self._decisions[why] += 1
        batch.decision = why

    def _count_hold(self, batch: Batch, now_ns: int) -> None:
        held_ns = max(0, now_ns - self._held_since_ns)
        self._held_count += 1
        self._hold_ns += held_ns
        if self._why == "burst":
            before, came = self._held_requests, max(0, len(batch.requests) - self._held_requests)
            self._choice.note_burst(held_ns=held_ns, before=before, came=came, rows=batch.size)
        if now_ns >= self._until_ns and not self._is_woken_up:
            self._choice.note_late(now_ns - self._until_ns)
        self._end_hold()

    def _begin_hold(self, requests: int, rows: int, until_ns: int, why: str, now_ns: int) -> None:
        if not self._held_since_ns:
            self._held_since_ns, self._held_requests = now_ns, requests
        self._rows = rows
        self._until_ns = until_ns
        self._why = why

    def _end_hold(self) -> None:
        self._held_since_ns, self._why = 0, ""
        self.wake_up_ns = 0
        self._is_woken_up = False

    def _hold(self, gathered: BatchCandidate, release_ns: int, now_ns: int) -> str:
        """Hold the batch for as long as it pays: return "" for that, otherwise why it goes."""
        if not self._choice.is_certain:
            return "idle"
        self._oldest_ns = release_ns - self._delay_ns
        requests = gathered.requests
        waited_ns = now_ns - requests[-1].arrival_ns
        until_ns, why = self._release_of(len(requests), gathered.rows, self._oldest_ns, now_ns, waited_ns)
        if until_ns <= now_ns:
            return "idle"
        until_ns, why = (until_ns, why) if until_ns < release_ns else (release_ns, "limit")
        self._begin_hold(len(requests), gathered.rows, until_ns, why, now_ns)
        return super()._hold(gathered, until_ns, now_ns)

    def _release_of(self, requests: int, rows: int, oldest_ns: int, now_ns: int, waited_ns: int) -> tuple[int, str]:
        """Return until when a batch that could grow is held, and what for; a time that has come for not at all.

        `waited_ns` is how long ago the newest request has come.
        """
        is_held = self._held_since_ns > 0
        until_ns, why = self._choice.until(
            requests, rows, oldest_ns=oldest_ns, now_ns=now_ns, waited_ns=waited_ns, is_held=is_held
        )
        if self.has_timeouts and until_ns > now_ns:
            timeout_ns = self._deadlines.nearest_ns() - _OVERHEAD_NS
            if 0 < timeout_ns < until_ns:
                # No request times out in the queue only because its batch was to grow.
                return timeout_ns, "limit"
        return until_ns, why

    # --- learning ---------------------------------------------------------------------------------------------------

    def record_execution(self, batch: Batch, *, failed: bool = False) -> None:
        """Learn how long a batch took; nothing from one that failed."""
        self._executions.end(batch, failed=failed)
        if not self._choice.is_certain:
            self._choice.check_certain()

    def change_instance_count(self, count: int) -> None:
        """Learn anew what instances gain from each other; what a batch takes alone stays known."""
        self._executions.change_instance_count(count)

    def state(self) -> AdaptiveState:
        """Return what was learned and done so far."""
        latency = self._executions.latency
        mean_gap_ns = self._choice.arrivals.mean_gap_ns
        return AdaptiveState(
            fixed_ns=latency.fixed_ns,
            row_ns=latency.row_ns,
            tail_ratio=latency.tail_ratio,
            parallelism=self._executions.parallelism.gain,
            arrival_rate=1e9 / mean_gap_ns if mean_gap_ns else 0.0,
            hold_count=self._held_count,
            hold_ns=self._hold_ns,
            decisions=dict(self._decisions),
        )

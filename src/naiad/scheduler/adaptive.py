"""The adaptive batcher: a dynamic batcher that learns for how long a hold pays, and holds no longer.

It is told when requests come and how long batches took, and from that decides for each batch that could grow:

1. What would be the point? A batch that is full, cut or overdue goes, as with any dynamic batcher. So does one of
   which too little is known.
2. Turns: instances that share a device (cores, a GPU) only slow each other down, and those that do not should not
   all start at once and leave the next request to wait. So batches start evenly: one every duration / parallelism,
   where the parallelism is what so many instances were seen to gain, at most their number.
3. Bursts: when the gaps between arrivals say that the next request probably comes within a time that is short
   against a turn, it is waited for.
4. A latency goal, if there is one: it lets batches grow for as long as the answer will be in time with certainty,
   provided that another request is likely to come; and it ends every hold that would break it.
5. Otherwise the batch goes: an instance is free and waiting would not pay.
"""

from collections.abc import Collection, Mapping

from naiad.core.adaptive_state import DECISIONS, AdaptiveState
from naiad.core.batch import Batch
from naiad.core.request import InferRequest
from naiad.scheduler.arrival_model import ArrivalModel, bin_of
from naiad.scheduler.dynamic import BatchStrategy, DynamicScheduler
from naiad.scheduler.gathering import Gathered
from naiad.scheduler.latency_model import LatencyModel
from naiad.scheduler.parallelism import Parallelism
from naiad.scheduler.queue import QueuePolicy

MAX_HOLD_NS = 1_000_000_000
"""Nothing is held for longer than this, whatever was learned."""
_OVERHEAD_NS = 30_000
"""What it costs to sleep and to be woken, beside the time slept."""
_ALONE = 0.25
"""A batch with on average less than this beside it tells what one takes that is alone."""
_FASTER = 0.8
"""Less than this share of what it should take alone is not chance."""
_ALONE_HOLD_NS = 20_000_000
"""For at least this long other instances wait while a batch is to be alone."""
_ALONE_FIRST = 10
"""Batches that are alone to begin with ..."""
_ALONE_AGAIN = 2
"""... and that many more ..."""
_ALONE_PAUSE = 1024
"""... after so many in company."""
_MEMO_LIMIT = 1024
_FRESH_COUNT = 64
"""Batches after which what was concluded is concluded anew."""
_LIKELY = 0.5
_SAVING = 0.2
"""A batch of one of which less than this is fixed is not worth growing for a goal."""


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
        )
        self._goal_ns = latency_goal_ns
        self._tolerance_ns = latency_goal_ns // 50
        """A hold that would end this much sooner is left alone."""
        self._latency = LatencyModel()
        self._parallelism = Parallelism(max(1, instance_count))
        self._arrivals = ArrivalModel()
        self._memo: dict[tuple[int, int, int], int] = {}
        """Requests, size of a turn and time since the newest to how long the next is waited for."""
        self._executing: dict[Batch, tuple[int, int]] = {}
        """Batches that execute, with when they were taken and what `_busy_ns` was then."""
        self._busy_ns = 0
        """Sum over time of the number of executing batches."""
        self._busy_until_ns = 0
        """Up to when `_busy_ns` counts."""
        self._started_ns = 0
        """When the last batch was taken."""
        self._started_rows = 0
        self._is_probing = False
        self._alone_wanted = _ALONE_FIRST
        """Batches that are still to execute alone."""
        self._company_count = 0
        """Batches since the last that was alone."""
        self._held_since_ns = 0
        """Since when a free instance holds what waits; 0 while none does."""
        self._oldest_ns = 0
        """Arrival of the oldest request of the batch that is held."""
        self._why = ""
        """What the current hold waits for."""
        self._held_count = 0
        self._hold_ns = 0
        self._decisions = dict.fromkeys(DECISIONS, 0)

    # --- arrival --------------------------------------------------------------------------------------------------

    def enqueue(self, request: InferRequest, now_ns: int) -> bool:
        """Take in a request, and learn from when it came. Raises InferError(UNAVAILABLE) when the queue is full."""
        # hot: once a request
        self._arrivals.observe(now_ns)
        return super().enqueue(request, now_ns)

    def _is_worth_waking(self, request: InferRequest) -> bool:
        """Tell whether a free instance that holds a batch back would now send it, or wait for less long."""
        held_until_ns = self._release_ns
        if super()._is_worth_waking(request) or not self._held_since_ns:
            return True
        until_ns, _ = self._release_of(self.pending_count, self._rows, self._oldest_ns, self._arrivals.newest_ns)
        return until_ns < held_until_ns - self._tolerance_ns

    # --- departure ------------------------------------------------------------------------------------------------

    def take(self, now_ns: int, instance: int = 0) -> Batch | None:
        """Return the next batch, or None to wait."""
        # hot: once a batch
        if self._alone_wanted and self._executing and self._is_kept_alone(now_ns):
            return None
        batch = super().take(now_ns, instance)
        if batch is None:
            if not self.pending_count:
                self._held_since_ns, self._why = 0, ""
            return None
        self._count(batch, now_ns)
        self._pass_time(now_ns)
        self._executing[batch] = now_ns, self._busy_ns
        self._started_ns, self._started_rows = now_ns, batch.size
        self._is_probing = False
        return batch

    def _is_kept_alone(self, now_ns: int) -> bool:
        """Hold everything, whatever its size, while another batch is to show how long one takes that is alone."""
        limit_ns = max(_ALONE_HOLD_NS, int(2 * self._latency.duration_ns(self._started_rows)))
        until_ns = self._started_ns + min(limit_ns, self._delay_ns)
        if not self.pending_count or until_ns <= now_ns:
            return False
        self._release_ns = until_ns
        return True

    def _count(self, batch: Batch, now_ns: int) -> None:
        """Count why a batch goes and how long it was held."""
        held_since_ns, why = self._held_since_ns, self._why
        self._held_since_ns, self._why = 0, ""
        if held_since_ns:
            self._held_count += 1
            self._hold_ns += max(0, now_ns - held_since_ns)
        if batch.release_reason in ("idle", "delay"):
            # Without a hold it is old because every instance was busy.
            batch.release_reason = "delay" if held_since_ns else "idle"
            why = why if held_since_ns else "no_gain" if self._is_certain else "unknown"
        else:
            why = "full"
        self._decisions[why] += 1
        batch.decision = why

    @property
    def _is_certain(self) -> bool:
        return self._latency.is_certain and self._arrivals.is_certain

    def _hold(self, gathered: Gathered, release_ns: int, now_ns: int) -> str:
        """Hold the batch for as long as it pays: return "" for that, otherwise why it goes."""
        if self._executing and not self._held_since_ns:
            self._is_probing = self._parallelism.should_probe()
        self._oldest_ns = release_ns - self._delay_ns
        until_ns, why = self._release_of(len(gathered.requests), gathered.rows, self._oldest_ns, now_ns)
        if until_ns <= now_ns:
            return "idle"
        self._held_since_ns = self._held_since_ns or now_ns
        self._why = why if until_ns < release_ns else "limit"
        return super()._hold(gathered, min(until_ns, release_ns), now_ns)

    # --- for how long a hold pays -----------------------------------------------------------------------------------

    def _release_of(self, requests: int, rows: int, oldest_ns: int, now_ns: int) -> tuple[int, str]:
        """Return until when a batch that could grow is held, and what for; a time that has come for not at all."""
        until_ns, why = self._wanted(requests, rows, oldest_ns, now_ns)
        if self.has_timeouts and until_ns > now_ns:
            timeout_ns = self._deadlines.nearest_ns() - _OVERHEAD_NS
            if 0 < timeout_ns < until_ns:
                # No request times out in the queue only because its batch was to grow.
                return timeout_ns, "limit"
        return until_ns, why

    def _wanted(self, requests: int, rows: int, oldest_ns: int, now_ns: int) -> tuple[int, str]:
        until_ns, why = self._turn_or_burst(requests, rows, now_ns)
        if not (self._goal_ns and self._is_certain):
            return until_ns, why
        latest_ns = self._latest_ns(rows, oldest_ns, now_ns)
        if until_ns > now_ns:
            return (latest_ns, "goal") if latest_ns < until_ns else (until_ns, why)
        return (latest_ns, "goal") if self._pays_for_goal(latest_ns, now_ns) else (0, "")

    def _turn_or_burst(self, requests: int, rows: int, now_ns: int) -> tuple[int, str]:
        if not self._is_certain:
            return 0, ""
        executing = len(self._executing)
        if executing and not self._is_probing:
            # As many execute as gain from it: whichever ends looks again, so the time is for one that is late.
            is_crowded = executing >= self._parallelism.worthwhile
            turns = 2 * executing if is_crowded else 1
            until_ns = self._started_ns + int(turns * self._turn_ns(self._started_rows))
            if until_ns > now_ns:
                return until_ns, "turn"
        hold_ns = self._burst_ns(requests, self._turn_ns(rows), now_ns)
        return (now_ns + hold_ns, "burst") if hold_ns else (0, "")

    def _turn_ns(self, rows: int) -> float:
        """Return how far apart batches of so many rows start when the instances work evenly."""
        return self._latency.duration_ns(rows) / self._parallelism.gain

    def _burst_ns(self, requests: int, turn_ns: float, now_ns: int) -> int:
        """Return for how long the next request is waited for; remembered for a while, for it takes a while."""
        waited_ns = max(0, now_ns - self._arrivals.newest_ns)
        key = requests, int(turn_ns).bit_length(), bin_of(waited_ns)
        hold_ns = self._memo.get(key)
        if hold_ns is None:
            if len(self._memo) >= _MEMO_LIMIT:
                self._memo.clear()
            hold_ns = self._arrivals.best_hold_ns(waited_ns, requests, turn_ns, _OVERHEAD_NS)
            self._memo[key] = hold_ns
        return hold_ns

    def _latest_ns(self, rows: int, oldest_ns: int, now_ns: int) -> int:
        """Return when a batch must go whose oldest request is to be answered within the goal.

        The batch counts with the rows that will have come by then.
        """
        latency = self._latency
        tail = max(1.0, latency.tail_ratio) * self._parallelism.slowed(len(self._executing))
        answer_ns = oldest_ns + self._goal_ns
        slack_ns = max(0.0, answer_ns - now_ns - tail * latency.duration_ns(rows))
        grown = min(self._max_rows, rows + 1 + int(slack_ns / max(1.0, self._arrivals.mean_gap_ns)))
        return int(answer_ns - tail * latency.duration_ns(grown))

    def _pays_for_goal(self, latest_ns: int, now_ns: int) -> bool:
        """Tell whether another request is likely by then, and saves an execution something worth the while."""
        if latest_ns <= now_ns or self._latency.fixed_ns < _SAVING * self._latency.duration_ns(1):
            return False
        waited_ns = now_ns - self._arrivals.newest_ns
        return self._arrivals.probability_within(waited_ns, latest_ns - now_ns) >= _LIKELY

    # --- learning ---------------------------------------------------------------------------------------------------

    def record_execution(self, batch: Batch, *, failed: bool = False) -> None:
        """Learn how long a batch took. One that failed may have taken any time, so nothing is learned from it."""
        taken = self._executing.pop(batch, None)
        if taken is None:
            return
        taken_ns, busy_ns = taken
        end_ns = batch.exec_end_ns
        self._pass_time(end_ns, len(self._executing) + 1)
        if failed:
            self._alone_wanted = max(0, self._alone_wanted - 1)
            return
        beside = (self._busy_ns - busy_ns) / max(1, end_ns - taken_ns) - 1.0
        self._learn(batch.size or 1, end_ns - batch.exec_start_ns, max(0.0, beside))
        if not self._latency.observation_count % _FRESH_COUNT:
            self._memo.clear()

    def change_instance_count(self, count: int) -> None:
        """Learn anew what instances gain from each other; what a batch takes alone stays known."""
        self._parallelism = Parallelism(max(1, count))
        self._alone_wanted = _ALONE_AGAIN

    def _learn(self, rows: int, duration_ns: int, beside: float) -> None:
        """Tell what a batch takes alone from how much others slow it down; those that were alone say most of it."""
        latency, parallelism = self._latency, self._parallelism
        is_alone = beside < _ALONE
        if self._alone_wanted:
            self._alone_wanted -= 1
        if is_alone:
            self._company_count = 0
        else:
            self._company_count += 1
            if not self._company_count % _ALONE_PAUSE:
                self._alone_wanted = _ALONE_AGAIN
        if is_alone or not latency.is_certain:
            latency.observe(rows, int(duration_ns / parallelism.slowed(beside)))
            return
        ratio = duration_ns / latency.duration_ns(rows)
        if ratio < _FASTER:
            # In company it cannot be faster: what was learned of those alone is out of date.
            latency.observe(rows, duration_ns)
        parallelism.observe(ratio, beside)

    def _pass_time(self, now_ns: int, executing: int = -1) -> None:
        """Count the batches that have executed since the last call."""
        if now_ns > self._busy_until_ns:
            executing = len(self._executing) if executing < 0 else executing
            self._busy_ns += (now_ns - self._busy_until_ns) * executing
            self._busy_until_ns = now_ns

    def state(self) -> AdaptiveState:
        """Return what was learned and done so far."""
        latency = self._latency
        mean_gap_ns = self._arrivals.mean_gap_ns
        return AdaptiveState(
            fixed_ns=latency.fixed_ns,
            row_ns=latency.row_ns,
            tail_ratio=latency.tail_ratio,
            parallelism=self._parallelism.gain,
            arrival_rate=1e9 / mean_gap_ns if mean_gap_ns else 0.0,
            hold_count=self._held_count,
            hold_ns=self._hold_ns,
            decisions=dict(self._decisions),
        )

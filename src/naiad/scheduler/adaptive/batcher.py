"""The adaptive batcher: a dynamic batcher without a fixed delay, which holds a batch only while that pays.

It learns what a batch costs, fixed + row * rows, and holds a batch that could grow

1. while as many batches execute as gain from it (`concurrency`): on a shared device one more only slows all of them;
2. with a latency goal, as long as the goal can be met, another request is likely, and rows share a fixed cost;
3. where one batch executes at a time, for the rest of a burst, as long as such holds bring more than they cost.

Everything else goes at once. One batch in `_TRIAL_INTERVAL` ignores 1 and tries 3, to notice a change.
"""

from typing import Any

from naiad.config.profile import ModelProfile
from naiad.core.batch import Batch
from naiad.core.model import DECISIONS, AdaptiveState
from naiad.core.request import InferRequest
from naiad.scheduler.adaptive.concurrency import MAX_HOLD_NS, Concurrency
from naiad.scheduler.adaptive.cost import MEMORY_COUNT, BatchCost
from naiad.scheduler.dynamic import BatchCandidate, DynamicScheduler

_WAKE_UP_NS = 60_000
"""A hold ends this much before a goal or a timeout: an instance needs it to wake up."""
_TRIAL_INTERVAL = 256
_BURST_SHARE = 1 / 8
"""The next request of a burst is awaited for this share of a batch's time."""


class AdaptiveScheduler(DynamicScheduler):
    """Batches as the dynamic batcher does, and holds a batch for as long as that pays."""

    learns = True

    def __init__(
        self,
        *,
        instance_count: int = 1,
        latency_goal_ns: int = 0,
        max_hold_ns: int = 0,
        profile: ModelProfile | None = None,
        **options: Any,
    ) -> None:
        """Create a batcher that holds no request longer than `max_hold_ns`, 0 for a second, after its arrival.

        `latency_goal_ns` is the time from arrival to response, 0 for none. `profile` is the cost of batches that is
        known from an analysis; it is the first estimate. `options` are the dynamic batcher's.
        """
        super().__init__(delay_ns=min(max_hold_ns or MAX_HOLD_NS, MAX_HOLD_NS), **options)
        self._goal_ns = latency_goal_ns
        self._cost = BatchCost()
        self._profile = profile
        if profile is not None:
            self._cost.start(1e3 * profile.fixed_us, 1e3 * profile.row_us, profile.largest_rows)
        self._concurrency = Concurrency(self._cost, max(1, instance_count))
        self._newest_ns, self._mean_gap_ns = 0, 0.0
        self._taken_count, self._is_trial = 0, False
        self._waits_for = ""
        """The decision of the current hold; empty without one."""
        self._held_since_ns = self._held_requests = 0
        """When the current hold began, and how many requests waited then."""
        self._burst_balance_ns = 0.0
        """What holds for bursts brought, less what they cost."""
        self._holds = self._holds_ns = 0
        self._decisions = dict.fromkeys(DECISIONS, 0)

    def _is_worth_waking(self, request: InferRequest) -> bool:
        # hot: once a request
        if self.pending_count > 1:
            return super()._is_worth_waking(request)
        if self._waits_for:
            self._end_hold()
        return super()._is_worth_waking(request) and not self._is_left_to_executing(request)

    def _is_left_to_executing(self, request: InferRequest) -> bool:
        """Leave the first request to the instance that ends next; another is only woken when that is late."""
        if not self._concurrency.is_crowded or self._is_trial or self._goal_ns:
            return False
        if self._rows >= self._smallest_preferred or self._hold_count or self._strategy is not None:
            return False
        now_ns = request.arrival_ns
        if not self._begin_hold(self._concurrency.late_ns(), "turn", 1, now_ns + self._delay_ns, now_ns):
            return False
        self.wake_up_ns = self._release_ns
        return True

    def take(self, now_ns: int, instance: int = 0) -> Batch | None:
        """Return the next batch, or None to wait."""
        self.wake_up_ns = 0
        if self._concurrency.is_learning and self.pending_count:
            limit_ns, late_ns = self.oldest_ns() + self._delay_ns, self._concurrency.late_ns()
            if self._begin_hold(late_ns, "turn", self.pending_count, limit_ns, now_ns):
                return None
        batch = super().take(now_ns, instance)
        if batch is not None:
            self._count(batch, now_ns)
            self._concurrency.begin(batch, now_ns)
        elif not self.pending_count:
            self._end_hold()
        return batch

    def _hold(self, gathered: BatchCandidate, release_ns: int, now_ns: int) -> str:
        """Hold the batch while that pays: return "" for that, otherwise why it goes."""
        until_ns, decision = self._pays_until(gathered, now_ns)
        if not self._begin_hold(until_ns, decision, len(gathered.requests), release_ns, now_ns):
            return "idle"
        return super()._hold(gathered, self._release_ns, now_ns)

    def _pays_until(self, gathered: BatchCandidate, now_ns: int) -> tuple[int, str]:
        """Return until when a hold pays, a past time for not at all, and what for: the rules of the module."""
        until_ns, decision, cost = 0, "", self._cost
        if self._concurrency.is_crowded and not self._is_trial:
            until_ns, decision = self._concurrency.late_ns(), "turn"
        elif self._concurrency.limit == 1 and cost.is_known and (self._burst_balance_ns >= 0 or self._is_trial):
            since_ns = max(gathered.requests[-1].arrival_ns, self._held_since_ns if self._waits_for else now_ns)
            until_ns, decision = since_ns + int(cost.duration_ns(gathered.rows) * _BURST_SHARE), "burst"
        if self._goal_ns and cost.is_known:
            latest_ns = self._latest_ns(gathered, now_ns)
            shares_cost = 2 * cost.fixed_ns >= cost.row_ns
            if latest_ns < until_ns or (shares_cost and latest_ns - now_ns > self._mean_gap_ns > 0):
                return latest_ns, "goal"
        return until_ns, decision

    def _latest_ns(self, gathered: BatchCandidate, now_ns: int) -> int:
        """Return when a batch must go to meet the goal, with the rows that it probably has by then."""
        cost, tail = self._cost, self._cost.tail_ratio
        response_ns = gathered.oldest_ns() + self._goal_ns - _WAKE_UP_NS
        slack_ns = max(0.0, response_ns - now_ns - tail * cost.duration_ns(gathered.rows))
        rows = min(self._max_rows, gathered.rows + 1 + int(slack_ns / max(1.0, self._mean_gap_ns)))
        return int(response_ns - tail * cost.duration_ns(rows))

    def _begin_hold(self, until_ns: int, decision: str, requests: int, limit_ns: int, now_ns: int) -> bool:
        """Hold until then, at most to the limit and until a request would time out; False when that time has come."""
        timeout_ns = self._deadlines.nearest_ns() if self.has_timeouts else 0
        if timeout_ns:
            limit_ns = min(limit_ns, timeout_ns - _WAKE_UP_NS)
        if limit_ns < until_ns:
            until_ns, decision = limit_ns, "limit"
        if until_ns <= now_ns:
            return False
        if not self._waits_for:
            self._held_since_ns, self._held_requests = now_ns, requests
        self._waits_for, self._release_ns = decision, until_ns
        return True

    def _end_hold(self) -> None:
        self._waits_for, self.wake_up_ns = "", 0

    def _count(self, batch: Batch, now_ns: int) -> None:
        """Note when the requests of a batch came, why it goes and how long it was held."""
        self._taken_count += 1
        self._is_trial = self._taken_count % _TRIAL_INTERVAL == 0
        gap_ns = min(max(0, batch.requests[-1].arrival_ns - self._newest_ns) / len(batch.requests), MAX_HOLD_NS)
        self._mean_gap_ns += (gap_ns - self._mean_gap_ns) / min(MEMORY_COUNT, self._taken_count)
        self._newest_ns = batch.requests[-1].arrival_ns
        batch.decision = "full"
        if batch.release_reason in ("idle", "delay"):
            batch.decision = self._waits_for or "no_gain"
            batch.release_reason = "delay" if self._waits_for else "idle"
        self._decisions[batch.decision] += 1
        if self._waits_for:
            held_ns = now_ns - self._held_since_ns
            self._holds, self._holds_ns = self._holds + 1, self._holds_ns + held_ns
            if self._waits_for == "burst":
                self._learn_burst(len(batch.requests), self._cost.duration_ns(batch.size), held_ns)
            self._end_hold()

    def _learn_burst(self, requests: int, duration_ns: float, held_ns: int) -> None:
        """Compare what a hold for a burst spared the requests that joined with its cost for all other requests.

        It must bring twice its cost: independent requests bring nearly as much as it costs.
        """
        joined = requests - self._held_requests
        gain_ns = joined * max(0.0, duration_ns - held_ns)
        delayed = self._held_requests + duration_ns / max(1.0, self._mean_gap_ns)
        balance_ns = self._burst_balance_ns * (1.0 - 1.0 / MEMORY_COUNT) + gain_ns - 2 * held_ns * delayed
        self._burst_balance_ns = max(balance_ns, -duration_ns)

    def record_execution(self, batch: Batch, *, failed: bool = False) -> None:
        """Learn how long a batch took; nothing from one that failed."""
        self._concurrency.end(batch, failed=failed)

    def change_instance_count(self, count: int) -> None:
        """Learn again what instances gain from each other; the cost of a batch stays known."""
        self._concurrency.change_instance_count(max(1, count))

    def _drift_ratio(self) -> float | None:
        if self._profile is None:
            return None
        rows = self._cost.mean_rows
        return self._cost.duration_ns(rows) / self._profile.duration_ns(rows)

    def state(self) -> AdaptiveState:
        """Return what was learned and done so far."""
        return AdaptiveState(
            fixed_ns=self._cost.fixed_ns,
            row_ns=self._cost.row_ns,
            tail_ratio=self._cost.tail_ratio,
            parallelism=self._concurrency.gain,
            arrival_rate=1e9 / self._mean_gap_ns if self._mean_gap_ns else 0.0,
            hold_count=self._holds,
            hold_ns=self._holds_ns,
            decisions=dict(self._decisions),
            drift_ratio=self._drift_ratio(),
        )

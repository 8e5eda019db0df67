"""The adaptive batcher: a dynamic batcher without a fixed delay, which holds a batch only while that pays.

It learns what a batch costs, fixed + row * rows, and holds a batch that could grow

1. while as many batches execute as gain from it (`ExecutingBatches`): on a shared device one more slows all of them;
2. with a latency goal, as long as the goal can be met, another request is likely, and rows share a fixed cost;
3. where one batch executes at a time, for the rest of a burst, as long as such holds bring more than they cost.

Everything else goes at once. One batch in `_TRIAL_INTERVAL` ignores 1 and tries 3, to notice a change.
"""

import math
from typing import Any

from naiad.config.model_profile import ModelProfile
from naiad.core.batch import Batch
from naiad.core.model import DECISIONS, AdaptiveState
from naiad.core.request import InferRequest
from naiad.scheduler.dynamic import BatchCandidate, DynamicScheduler

_MEMORY_COUNT = 64
"""Batches after which an observation counts a third."""
_LEARNING_COUNT = 10
"""Observations before an estimate is used ..."""
_SKIPPED_COUNT = 2
"""... of which the first do not count: a model allocates and compiles then."""
_MAX_RATIO = 4.0
"""A batch that takes more than this many times the expected time counts as one that takes so long."""
_PRIOR_WEIGHT = 0.05
"""Weight, in squared rows, of the guess that half of the time grows with the rows: for batches of equal size."""
MAX_HOLD_NS = 1_000_000_000
"""The longest hold."""
_FULL_SPEED = 0.8
"""Batches that keep this share of their speed beside others are not limited in number."""
_WAKE_UP_NS = 60_000
"""A hold ends this much before a goal or a timeout: an instance needs it to wake up."""
_TRIAL_INTERVAL = 256
_BURST_SHARE = 1 / 8
"""The next request of a burst is awaited for this share of a batch's time."""


class BatchCost:
    """duration = fixed + row * rows, by least squares with forgetting, and how far durations exceed it."""

    def __init__(self) -> None:
        self._count, self.is_known = 0, False
        """Observations, and whether they are enough to decide by."""
        self.fixed_ns = self.row_ns = self.mean_rows = 0.0
        """Of a batch, of each row, and the mean size of recent batches; 0 before anything is known."""
        self.tail_ratio = 1.0
        """99 of 100 batches take at most this multiple of the expected time."""
        self._weight = self._rows = self._rows_squared = self._duration = self._duration_rows = 0.0

    def start(self, fixed_ns: float, row_ns: float, largest_rows: int) -> None:
        """Begin with a known cost, as if observed; what batches take from now on replaces it gradually."""
        for rows in (1, largest_rows) * _LEARNING_COUNT:
            self.observe(rows, fixed_ns + row_ns * rows)

    def duration_ns(self, rows: float) -> float:
        """Return the expected time of a batch of `rows` that executes alone; 0 before anything is known."""
        return self.fixed_ns + self.row_ns * rows

    def observe_tail(self, rows: int, duration_ns: float) -> None:
        """Move the 99th percentile of duration / expected duration; other instances may have slowed the batch."""
        is_above = duration_ns > self.tail_ratio * self.duration_ns(rows)
        self.tail_ratio += (0.99 if is_above else -0.01) / _MEMORY_COUNT
        self.tail_ratio = min(_MAX_RATIO, max(1.0, self.tail_ratio))

    def observe(self, rows: int, duration_ns: float) -> None:
        """Learn from a batch that executed alone, or from what it would have taken alone."""
        # hot: once a batch
        if duration_ns <= 0:
            return
        self._count += 1
        self.is_known = self._count >= _LEARNING_COUNT
        if self._count <= _SKIPPED_COUNT:
            return
        if self._weight:
            duration_ns = min(duration_ns, _MAX_RATIO * self.duration_ns(rows))
        kept = 1.0 - 1.0 / _MEMORY_COUNT
        self._weight = weight = self._weight * kept + 1.0
        self._rows = self._rows * kept + rows
        self._rows_squared = self._rows_squared * kept + rows * rows
        self._duration = self._duration * kept + duration_ns
        self._duration_rows = self._duration_rows * kept + duration_ns * rows
        self.mean_rows = mean_rows = self._rows / weight
        mean_ns = self._duration / weight
        variance = max(0.0, self._rows_squared / weight - mean_rows * mean_rows)
        covariance = self._duration_rows / weight - mean_rows * mean_ns
        largest_ns = mean_ns / mean_rows
        slope_ns = (covariance + _PRIOR_WEIGHT * largest_ns / 2) / (variance + _PRIOR_WEIGHT)
        self.row_ns = min(max(0.0, slope_ns), largest_ns)
        self.fixed_ns = max(0.0, mean_ns - self.row_ns * mean_rows)


class ExecutingBatches:
    """The executing batches. Batches that began alone show the cost, batches that began beside others the gain.

    What happened later does not decide which of the two a batch shows: long batches have more company.
    """

    def __init__(self, cost: BatchCost, instance_count: int) -> None:
        self.cost = cost
        self.started_ns = self.started_rows = 0
        """The batch that was taken last."""
        self._alone_due_count = 0 if cost.is_known else _LEARNING_COUNT
        """Batches that are still to execute alone, to show the cost."""
        self._executing: dict[Batch, tuple[int, int, float, int]] = {}
        """When each was taken, `_alone_ns` and `_share_ns` then, and how many executed beside it."""
        self._until_ns, self._alone_ns, self._share_ns = 0, 0, 0.0
        """Time so far, time with one executing batch, and the share of a batch if all shared one device evenly."""
        self.change_instance_count(instance_count)

    def change_instance_count(self, count: int) -> None:
        """Forget what instances gain from each other; the cost of a batch alone stays known."""
        self.instance_count = self.limit = max(1, count)
        self.gain = 1.0
        """How many batches' worth of work is done at a time while several execute."""
        self._beside_count, self._beside_ns, self._beside_share_ns, self._beside_work_ns = 0, 0.0, 0.0, 0.0

    @property
    def is_learning(self) -> bool:
        """Whether nothing may begin because the executing batch shows what a batch costs alone."""
        return self._alone_due_count > 0 and self.instance_count > 1 and len(self._executing) > 0

    @property
    def is_crowded(self) -> bool:
        """Whether another batch would only slow the executing ones."""
        return self.limit < self.instance_count and len(self._executing) >= self.limit

    def late_ns(self) -> int:
        """Return when an executing batch is so late that others need not wait for it."""
        duration_ns = self.cost.duration_ns(self.started_rows) if self.cost.is_known else MAX_HOLD_NS
        return self.started_ns + int(2 * duration_ns * len(self._executing) / self.limit)

    def begin(self, batch: Batch, now_ns: int) -> None:
        """Note that an instance took a batch."""
        # hot: once a batch
        self._advance(now_ns)
        self._executing[batch] = now_ns, self._alone_ns, self._share_ns, len(self._executing)
        self.started_ns, self.started_rows = now_ns, batch.size

    def end(self, batch: Batch, *, failed: bool) -> None:
        """Learn from a batch that was executed; nothing from one that failed, was not taken or ended before."""
        # hot: once a batch
        if batch not in self._executing:
            return
        self._advance(batch.exec_end_ns)
        taken_ns, alone_ns, share_ns, beside = self._executing.pop(batch)
        self._alone_due_count = max(0, self._alone_due_count - 1)
        rows, duration_ns, alone_ns = batch.size or 1, batch.exec_end_ns - taken_ns, self._alone_ns - alone_ns
        if failed or duration_ns <= 0:
            return
        beside_ns, share_ns = duration_ns - alone_ns, self._share_ns - share_ns - alone_ns
        if not beside:
            # Until more is known, as if all instances shared one device.
            limit = 1 if self._beside_count < _LEARNING_COUNT else self.limit
            self.cost.observe(rows, alone_ns + min(beside_ns, limit * share_ns))
        elif self.cost.is_known and (beside >= self.limit or self.limit == self.instance_count):
            self._observe_beside(beside_ns, share_ns, self.cost.duration_ns(rows) - alone_ns)
        if self.cost.is_known:
            self.cost.observe_tail(rows, duration_ns)

    def _advance(self, now_ns: int) -> None:
        passed_ns, count = now_ns - self._until_ns, len(self._executing)
        if passed_ns > 0:
            self._until_ns = now_ns
            self._share_ns += passed_ns / max(1, count)
            if count == 1:
                self._alone_ns += passed_ns

    def _observe_beside(self, beside_ns: int, share_ns: float, work_ns: float) -> None:
        """Learn from a batch that began beside others: the time it was not alone, its share of it, and its work."""
        kept = 1.0 - 1.0 / _MEMORY_COUNT
        self._beside_ns = self._beside_ns * kept + beside_ns
        self._beside_share_ns = self._beside_share_ns * kept + share_ns
        self._beside_work_ns = self._beside_work_ns * kept + work_ns
        self._beside_count += 1
        # Without work: batches were alone for longer than whole ones take, because the machine is slower than before.
        if self._beside_count < _LEARNING_COUNT or self._beside_share_ns <= 0 or self._beside_work_ns <= 0:
            return
        self.gain = min(self._beside_work_ns / self._beside_share_ns, float(self.instance_count))
        is_slowed = self._beside_work_ns < _FULL_SPEED * self._beside_ns
        self.limit = max(1, math.ceil(self.gain - (1.0 - _FULL_SPEED))) if is_slowed else self.instance_count


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
        """`max_hold_ns` is the limit of a hold after the arrival of a request, 0 for a second.

        `latency_goal_ns` is the time from arrival to response, 0 for none. `profile` is the cost of batches that is
        known from an analysis; it is the first estimate. `options` are the dynamic batcher's.
        """
        super().__init__(delay_ns=min(max_hold_ns or MAX_HOLD_NS, MAX_HOLD_NS), **options)
        self._goal_ns = latency_goal_ns
        self._cost = BatchCost()
        self._profile = profile
        if profile is not None:
            self._cost.start(1e3 * profile.fixed_us, 1e3 * profile.row_us, profile.largest_rows)
        self._concurrency = ExecutingBatches(self._cost, instance_count)
        self._newest_ns, self._mean_gap_ns = 0, 0.0
        self._taken_count, self._is_trial = 0, False
        self._waits_for, self._held_since_ns, self._held_requests = "", 0, 0
        """The decision of the current hold, empty without one; when it began, and how many requests waited then."""
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
        is_ready = self._rows >= self._smallest_preferred or self._hold_count or self._strategy is not None
        if not self._concurrency.is_crowded or self._is_trial or self._goal_ns or is_ready:
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
        if not self._begin_hold(*self._pays_until(gathered, now_ns), len(gathered.requests), release_ns, now_ns):
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
        self._mean_gap_ns += (gap_ns - self._mean_gap_ns) / min(_MEMORY_COUNT, self._taken_count)
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
        """Compare what a hold for a burst spared the requests that joined with twice its cost for all other ones."""
        # Twice: independent requests bring nearly as much as the hold costs.
        joined = requests - self._held_requests
        gain_ns = joined * max(0.0, duration_ns - held_ns)
        delayed = self._held_requests + duration_ns / max(1.0, self._mean_gap_ns)
        balance_ns = self._burst_balance_ns * (1.0 - 1.0 / _MEMORY_COUNT) + gain_ns - 2 * held_ns * delayed
        self._burst_balance_ns = max(balance_ns, -duration_ns)

    def record_execution(self, batch: Batch, *, failed: bool = False) -> None:
        """Learn how long a batch took; nothing from one that failed."""
        self._concurrency.end(batch, failed=failed)

    def change_instance_count(self, count: int) -> None:
        """Learn again what instances gain from each other; the cost of a batch stays known."""
        self._concurrency.change_instance_count(count)

    def state(self) -> AdaptiveState:
        """Return what was learned and done so far."""
        cost, profile, rows = self._cost, self._profile, self._cost.mean_rows
        return AdaptiveState(
            fixed_ns=cost.fixed_ns,
            row_ns=cost.row_ns,
            tail_ratio=cost.tail_ratio,
            parallelism=self._concurrency.gain,
            arrival_rate=1e9 / self._mean_gap_ns if self._mean_gap_ns else 0.0,
            hold_count=self._holds,
            hold_ns=self._holds_ns,
            decisions=dict(self._decisions),
            drift_ratio=None if profile is None else cost.duration_ns(rows) / profile.duration_ns(rows),
        )

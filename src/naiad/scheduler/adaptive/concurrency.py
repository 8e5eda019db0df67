"""How many batches are worth executing at once: instances that share a device only slow each other down."""

import math

from naiad.core.batch import Batch
from naiad.scheduler.adaptive.cost import LEARNING_COUNT, MEMORY_COUNT, BatchCost

MAX_HOLD_NS = 1_000_000_000
"""The longest hold."""
_FULL_SPEED = 0.8
"""Batches that keep this share of their speed beside others are not limited in number."""


class Concurrency:
    """The executing batches. Batches that began alone show the cost, batches that began beside others the gain.

    What happened later does not decide which of the two a batch shows: long batches have more company.
    """

    def __init__(self, cost: BatchCost, instance_count: int) -> None:
        self.cost = cost
        self.started_ns = self.started_rows = 0
        """The batch that was taken last."""
        self._alone_due_count = 0 if cost.is_known else LEARNING_COUNT
        """Batches that are still to execute alone, to show the cost."""
        self._executing: dict[Batch, tuple[int, int, float, int]] = {}
        """When each was taken, `_alone_ns` and `_share_ns` then, and how many executed beside it."""
        self._until_ns, self._alone_ns, self._share_ns = 0, 0, 0.0
        """Time so far, time with one executing batch, and the share of a batch if all shared one device evenly."""
        self.change_instance_count(instance_count)

    def change_instance_count(self, count: int) -> None:
        """Forget what instances gain from each other; the cost of a batch alone stays known."""
        self.instance_count = self.limit = count
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
        taken = self._executing.get(batch)
        if taken is None:
            return
        self._advance(batch.exec_end_ns)
        del self._executing[batch]
        taken_ns, alone_ns, share_ns, beside = taken
        self._alone_due_count = max(0, self._alone_due_count - 1)
        rows, duration_ns, alone_ns = batch.size or 1, batch.exec_end_ns - taken_ns, self._alone_ns - alone_ns
        if failed or duration_ns <= 0:
            return
        beside_ns, share_ns = duration_ns - alone_ns, self._share_ns - share_ns - alone_ns
        if not beside:
            # Until more is known, as if all instances shared one device.
            limit = 1 if self._beside_count < LEARNING_COUNT else self.limit
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
        kept = 1.0 - 1.0 / MEMORY_COUNT
        self._beside_ns = self._beside_ns * kept + beside_ns
        self._beside_share_ns = self._beside_share_ns * kept + share_ns
        self._beside_work_ns = self._beside_work_ns * kept + work_ns
        self._beside_count += 1
        if self._beside_count < LEARNING_COUNT or self._beside_share_ns <= 0:
            return
        self.gain = min(max(0.0, self._beside_work_ns / self._beside_share_ns), float(self.instance_count))
        is_slowed = self._beside_work_ns < _FULL_SPEED * self._beside_ns
        self.limit = max(1, math.ceil(self.gain - (1.0 - _FULL_SPEED))) if is_slowed else self.instance_count

"""What executes, and what was learned from it: how long batches take, and what instances gain from each other."""

from naiad.core.batch import Batch
from naiad.scheduler.latency_model import LatencyModel
from naiad.scheduler.parallelism import Parallelism

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
_SAMPLED_AFTER = 256
_SAMPLED = 4
"""With one instance one batch in so many is learned from after the first: they tell nothing new."""


class Executions:
    """The batches that execute, by when each was taken, and the models that are fitted to those that have."""

    def __init__(self, instance_count: int) -> None:
        self.latency = LatencyModel()
        self.parallelism = Parallelism(max(1, instance_count))
        self.instance_count = max(1, instance_count)
        self.started_ns = 0
        """When the last batch was taken."""
        self.started_rows = 0
        self.ended_count = 0
        """Batches that have been executed."""
        self._executing: dict[Batch, tuple[int, int]] = {}
        """Batches that execute, with when they were taken and what `_busy_ns` was then."""
        self._busy_ns = 0
        """Sum over time of the number of executing batches."""
        self._busy_until_ns = 0
        """Up to when `_busy_ns` counts."""
        self._alone_wanted = _ALONE_FIRST
        """Batches that are still to execute alone."""
        self._company_count = 0
        """Batches since the last that was alone."""

    @property
    def count(self) -> int:
        """How many batches execute."""
        return len(self._executing)

    def change_instance_count(self, count: int) -> None:
        """Learn anew what instances gain from each other; what a batch takes alone stays known."""
        self.instance_count = max(1, count)
        self.parallelism = Parallelism(self.instance_count)
        self._alone_wanted = _ALONE_AGAIN

    def alone_until_ns(self) -> int:
        """Return until when nothing may begin, because a batch is to show how long one takes alone; 0 if it may."""
        if not (self._alone_wanted and self._executing):
            return 0
        return self.started_ns + max(_ALONE_HOLD_NS, int(2 * self.latency.duration_ns(self.started_rows)))

    def turn_ns(self, rows: int) -> float:
        """Return how far apart batches of so many rows start when the instances work evenly."""
        return self.latency.duration_ns(rows) / self.parallelism.gain

    def turn_end_ns(self) -> int:
        """Return when the next batch has its turn while others execute."""
        executing = len(self._executing)
        # As many execute as gain from it: whichever ends looks again, so the time is for one that is late.
        turns = 2 * executing if executing >= self.parallelism.worthwhile else 1
        return self.started_ns + int(turns * self.turn_ns(self.started_rows))

    def begin(self, batch: Batch, now_ns: int) -> None:
        """Note that a batch was taken."""
        # hot: once a batch
        if self.instance_count > 1:
            self._pass_time(now_ns, len(self._executing))
        self._executing[batch] = now_ns, self._busy_ns
        self.started_ns, self.started_rows = now_ns, batch.size

    def end(self, batch: Batch, *, failed: bool) -> None:
        """Note that a batch has been executed; one that was not taken, or is told of twice, does not count."""
        # hot: once a batch
        taken = self._executing.pop(batch, None)
        if taken is None:
            return
        self.ended_count += 1
        if self.instance_count > 1:
            self._learn_beside_others(batch, taken, failed=failed)
        elif not failed and (self.ended_count < _SAMPLED_AFTER or not self.ended_count % _SAMPLED):
            self._alone_wanted = 0
            self.latency.observe(batch.size or 1, batch.exec_end_ns - batch.exec_start_ns)

    def _learn_beside_others(self, batch: Batch, taken: tuple[int, int], *, failed: bool) -> None:
        taken_ns, busy_ns = taken
        end_ns = batch.exec_end_ns
        self._pass_time(end_ns, len(self._executing) + 1)
        if self._alone_wanted:
            self._alone_wanted -= 1
        if failed:
            # It may have taken any time.
            return
        beside = (self._busy_ns - busy_ns) / max(1, end_ns - taken_ns) - 1.0
        self._learn(batch.size or 1, end_ns - batch.exec_start_ns, max(0.0, beside))

    def _learn(self, rows: int, duration_ns: int, beside: float) -> None:
        """Tell what a batch takes alone from how much others slow it down; those that were alone say most of it."""
        latency, parallelism = self.latency, self.parallelism
        is_alone = beside < _ALONE
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

    def _pass_time(self, now_ns: int, executing: int) -> None:
        """Count the batches that have executed since the last call."""
        if now_ns > self._busy_until_ns:
            self._busy_ns += (now_ns - self._busy_until_ns) * executing
            self._busy_until_ns = now_ns

"""What executes, and what was learned from it: how long batches take, and what instances gain from each other."""

from naiad.core.batch import Batch
from naiad.scheduler.adaptive.latency_model import LatencyModel
from naiad.scheduler.adaptive.parallelism import Parallelism

_ALONE = 0.25
"""A batch with on average less than this beside it was alone."""
_ALONE_HOLD_NS = 20_000_000
"""For at least this long other instances wait while a batch is to be alone."""
_ALONE_FIRST = 10
"""Batches that are alone to begin with ..."""
_ALONE_AGAIN = 2
"""... and that many more ..."""
_ALONE_PAUSE = 1024
"""... after so many in company: it costs those who wait some milliseconds."""
_RATIO_STEP = 1 / 16
_FASTER = 0.95
"""When batches beside others take less than this share of what they should take alone, it is not chance."""
_PREDICTABLE = 0.1
"""With less spread one knows when the others will end. Otherwise to start evenly is to leave instances idle."""
_SAMPLED_AFTER = 512
_SAMPLED = 4
"""One batch in so many is learned from after the first: each costs more to learn from than it tells."""


class Executions:
    """The batches that execute, by when each was taken, and the models that are fitted to those that have."""

    def __init__(self, instance_count: int) -> None:
        self.latency = LatencyModel()
        self.parallelism = Parallelism(max(1, instance_count))
        self.instance_count = max(1, instance_count)
        self.started_ns = 0
        """When the last batch was taken."""
        self.started_rows = 0
        self._turn_ns = 0
        """The turn of that batch; 0 while nobody has asked."""
        self.ended_count = 0
        """Batches that have been executed."""
        self._ended_ns = 0
        """When the last batch had been executed."""
        self._executing: dict[Batch, tuple[int, int, bool, bool]] = {}
        """Batches that execute, with when they were taken, what `_busy_ns` was then, whether others executed, and
        whether they are to find something out."""
        self._busy_ns = 0
        """Sum over time of the number of executing batches."""
        self._busy_until_ns = 0
        """Up to when `_busy_ns` counts."""
        self.alone_wanted = _ALONE_FIRST
        """Batches that are still to execute alone."""
        self.is_followed = False
        """Whether the next batch that begins is to find out what instances gain from each other."""
        self._company_ratio = 1.0
        """How many times what they should take alone batches took beside others, lately."""
        self._alone_due_count = _ALONE_PAUSE
        """The number of ended batches at which some are to execute alone again, if none has meanwhile."""

    @property
    def count(self) -> int:
        """How many batches execute."""
        return len(self._executing)

    def change_instance_count(self, count: int) -> None:
        """Learn anew what instances gain from each other; what a batch takes alone stays known."""
        self.instance_count = max(1, count)
        self.parallelism = Parallelism(self.instance_count)
        self.alone_wanted = _ALONE_AGAIN

    def alone_until_ns(self) -> int:
        """Return until when nothing may begin, because a batch is to show how long one takes alone; 0 if it may."""
        if not (self.alone_wanted and self._executing and self.instance_count > 1):
            return 0
        return self.started_ns + max(_ALONE_HOLD_NS, int(2 * self.latency.duration_ns(self.started_rows)))

    def turn_ns(self, rows: int) -> float:
        """Return how far apart batches of so many rows start when the instances work evenly."""
        return self.latency.duration_ns(rows) / self.parallelism.gain

    @property
    def is_crowded(self) -> bool:
        """Whether as many execute as gain from it, or more."""
        return len(self._executing) >= self.parallelism.worthwhile

    def turn_end_ns(self) -> int:
        """Return when the next batch has its turn while others execute; 0 for at once."""
        if not (self.is_crowded or self.latency.spread < _PREDICTABLE):
            return 0
        if not self._turn_ns:
            self._turn_ns = int(self.turn_ns(self.started_rows))
        # In a crowd whichever ends looks again, so the time is for one that is late.
        turns = 2 * len(self._executing) if self.is_crowded else 1
        return self.started_ns + turns * self._turn_ns

    def begin(self, batch: Batch, now_ns: int, *, was_held: bool) -> None:
        """Note that a batch was taken, after it was held or as soon as an instance was free."""
        # hot: once a batch
        executing = self._executing
        if self.instance_count > 1 and now_ns > self._busy_until_ns:
            self._busy_ns += (now_ns - self._busy_until_ns) * len(executing)
            self._busy_until_ns = now_ns
        if (
            self.instance_count > 1
            and not executing
            and not was_held
            and batch.requests[0].arrival_ns < self._ended_ns
        ):
            # An instance goes on with what has come meanwhile.
            self.parallelism.observe_between(now_ns - self._ended_ns)
        executing[batch] = now_ns, self._busy_ns, bool(executing), self.is_followed
        self.is_followed = False
        self.started_ns, self.started_rows = now_ns, batch.size
        self._turn_ns = 0

    def end(self, batch: Batch, *, failed: bool) -> None:
        """Note that a batch has been executed; one that was not taken, or is told of twice, does not count."""
        # hot: once a batch
        executing = self._executing
        taken = executing.pop(batch, None)
        if taken is None:
            return
        self.ended_count = ended_count = self.ended_count + 1
        if self.instance_count > 1:
            self._ended_ns = end_ns = batch.exec_end_ns
            if end_ns > self._busy_until_ns:
                self._busy_ns += (end_ns - self._busy_until_ns) * (len(executing) + 1)
                self._busy_until_ns = end_ns
        if self.alone_wanted:
            self.alone_wanted -= 1
        elif ended_count % _SAMPLED and ended_count > _SAMPLED_AFTER and not taken[3]:
            return
        if not failed:
            # One that failed may have taken any time.
            self._learn(batch, taken)

    def _learn(self, batch: Batch, taken: tuple[int, int, bool, bool]) -> None:
        """Tell what a batch takes alone from how much others slow it down.

        Which of the two one tells depends on how it has begun, not on what came of it: long ones have more company.
        """
        latency, parallelism = self.latency, self.parallelism
        rows, duration_ns = batch.size or 1, batch.exec_end_ns - batch.exec_start_ns
        if self.instance_count == 1:
            latency.observe(rows, duration_ns)
            return
        taken_ns, busy_ns, began_beside, _ = taken
        beside = max(0.0, (self._busy_ns - busy_ns) / max(1, batch.exec_end_ns - taken_ns) - 1.0)
        if beside < _ALONE:
            self._alone_due_count = self.ended_count + _ALONE_PAUSE
        elif self.ended_count >= self._alone_due_count:
            self._alone_due_count = self.ended_count + _ALONE_PAUSE
            self.alone_wanted = _ALONE_AGAIN
        if began_beside and latency.is_certain:
            expected_ns = latency.duration_ns(rows)
            latency.observe_ratio(duration_ns / (expected_ns * parallelism.slowed(beside)))
            parallelism.observe(duration_ns, beside, expected_ns)
            self._company_ratio += _RATIO_STEP * (duration_ns / expected_ns - self._company_ratio)
            if self._company_ratio < _FASTER:
                # In company they cannot be faster: those that were alone were of other sizes, or are out of date.
                latency.observe(rows, duration_ns)
        else:
            latency.observe(rows, int(duration_ns / parallelism.slowed(beside)))

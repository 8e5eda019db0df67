"""What a batch costs, fitted to what batches took: a fixed time and a time per row."""

MEMORY_COUNT = 64
"""Batches after which an observation counts a third."""
LEARNING_COUNT = 10
"""Observations before an estimate is used ..."""
_SKIPPED_COUNT = 2
"""... of which the first do not count: a model allocates and compiles then."""
_MAX_RATIO = 4.0
"""A batch that takes more than this many times the expected time counts as one that takes so long."""
_PRIOR_WEIGHT = 0.05
"""Weight, in squared rows, of the guess that half of the time grows with the rows: for batches of equal size."""


class BatchCost:
    """duration = fixed + row * rows, by least squares with forgetting, and how far durations exceed it."""

    def __init__(self) -> None:
        self.count = 0
        self.is_known = False
        """Whether there are enough observations to decide by."""
        self.fixed_ns = self.row_ns = 0.0
        self.tail_ratio = 1.0
        """99 of 100 batches take at most this multiple of the expected time."""
        self._weight = self._rows = self._rows_squared = self._duration = self._duration_rows = 0.0

    def start(self, fixed_ns: float, row_ns: float, largest_rows: int) -> None:
        """Begin with a cost that is known from before, as if it had been observed for the smallest and largest batch.

        What batches take from now on replaces it gradually.
        """
        for rows in (1, largest_rows) * LEARNING_COUNT:
            self.observe(rows, fixed_ns + row_ns * rows)

    def duration_ns(self, rows: float) -> float:
        """Return the expected time of a batch of `rows` that executes alone; 0 before anything is known."""
        return self.fixed_ns + self.row_ns * rows

    @property
    def mean_rows(self) -> float:
        """The mean size of recent batches; 0 before anything is known."""
        return self._rows / self._weight if self._weight else 0.0

    def observe_tail(self, rows: int, duration_ns: float) -> None:
        """Move the 99th percentile of duration / expected duration; other instances may have slowed the batch."""
        is_above = duration_ns > self.tail_ratio * self.duration_ns(rows)
        self.tail_ratio += (0.99 if is_above else -0.01) / MEMORY_COUNT
        self.tail_ratio = min(_MAX_RATIO, max(1.0, self.tail_ratio))

    def observe(self, rows: int, duration_ns: float) -> None:
        """Learn from a batch that executed alone, or from what it would have taken alone."""
        # hot: once a batch
        if duration_ns <= 0:
            return
        self.count += 1
        self.is_known = self.count >= LEARNING_COUNT
        if self.count <= _SKIPPED_COUNT:
            return
        if self._weight:
            duration_ns = min(duration_ns, _MAX_RATIO * self.duration_ns(rows))
        kept = 1.0 - 1.0 / MEMORY_COUNT
        self._weight = weight = self._weight * kept + 1.0
        self._rows = self._rows * kept + rows
        self._rows_squared = self._rows_squared * kept + rows * rows
        self._duration = self._duration * kept + duration_ns
        self._duration_rows = self._duration_rows * kept + duration_ns * rows
        mean_rows, mean_ns = self._rows / weight, self._duration / weight
        variance = max(0.0, self._rows_squared / weight - mean_rows * mean_rows)
        covariance = self._duration_rows / weight - mean_rows * mean_ns
        largest_ns = mean_ns / mean_rows
        slope_ns = (covariance + _PRIOR_WEIGHT * largest_ns / 2) / (variance + _PRIOR_WEIGHT)
        self.row_ns = min(max(0.0, slope_ns), largest_ns)
        self.fixed_ns = max(0.0, mean_ns - self.row_ns * mean_rows)

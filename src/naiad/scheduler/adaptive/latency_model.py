"""How long a model takes, learned from what it took."""

_MEMORY_COUNT = 256
"""Executions after which an observation counts a third."""
_KEPT = 1.0 - 1.0 / _MEMORY_COUNT
_SKIPPED_COUNT = 2
"""The first executions of a model also allocate and compile."""
_CERTAIN_COUNT = 8
"""Executions before the model is worth asking."""
_CLIP = 4.0
"""An execution longer than this many times what was expected counts as one that long."""
_SLOPE_PRIOR_WEIGHT = 0.05
"""How many squared rows of spread the guess weighs that half of the time grows with the rows."""
_FIRST_SPREAD = 0.0
_SPREAD_STEP = 1 / 16
_QUANTILE = 0.99
_QUANTILE_STEP = 0.02


class LatencyModel:
    """duration = fixed + row * rows, fitted with forgetting, and how far executions stray from it."""

    __slots__ = (
        "_duration",
        "_duration_rows",
        "_rows",
        "_rows_squared",
        "_weight",
        "fixed_ns",
        "observation_count",
        "row_ns",
        "spread",
        "tail_ratio",
    )

    def __init__(self) -> None:
        self.observation_count = 0
        self.fixed_ns = 0.0
        """What an execution costs however few its rows are."""
        self.row_ns = 0.0
        """What each row adds."""
        self.tail_ratio = 1.0
        """99 of 100 executions took at most this many times what was expected."""
        self.spread = _FIRST_SPREAD
        """By what share of what was expected executions stray from it on the mean."""
        self._weight = 0.0
        self._rows = 0.0
        self._rows_squared = 0.0
        self._duration = 0.0
        self._duration_rows = 0.0

    @property
    def is_certain(self) -> bool:
        """Whether enough was seen to decide by it."""
        return self.observation_count >= _SKIPPED_COUNT + _CERTAIN_COUNT

    def duration_ns(self, rows: int) -> float:
        """Return how long a batch of `rows` takes alone; 0 before anything is known."""
        return self.fixed_ns + self.row_ns * rows

    def observe(self, rows: int, duration_ns: int) -> None:
        """Learn from an execution that was alone."""
        if duration_ns <= 0:
            return
        self.observation_count += 1
        if self.observation_count <= _SKIPPED_COUNT:
            return
        duration = float(duration_ns)
        expected_ns = self.duration_ns(rows)
        if expected_ns:
            self._learn_tail(duration / expected_ns)
            self.observe_ratio(duration / expected_ns)
            duration = min(duration, _CLIP * expected_ns)
        self._learn(rows, duration)

    def observe_ratio(self, ratio: float) -> None:
        """Learn that an execution took so many times what was to be expected, with those beside it."""
        self.spread += _SPREAD_STEP * (min(1.0, abs(ratio - 1.0)) - self.spread)

    def _learn_tail(self, ratio: float) -> None:
        """Move the estimate of a quantile so that the given share of ratios comes to lie below it."""
        self.tail_ratio += _QUANTILE_STEP * (_QUANTILE if ratio > self.tail_ratio else _QUANTILE - 1.0)
        self.tail_ratio = min(_CLIP, max(1.0, self.tail_ratio))

    def _learn(self, rows: int, duration_ns: float) -> None:
        """Fit a line by least squares, drawn towards half fixed and half growing while all batches are alike."""
        # hot: once a batch
        self._weight = weight = self._weight * _KEPT + 1.0
        self._rows = rows_sum = self._rows * _KEPT + rows
        self._rows_squared = squared_sum = self._rows_squared * _KEPT + rows * rows
        self._duration = duration_sum = self._duration * _KEPT + duration_ns
        self._duration_rows = product_sum = self._duration_rows * _KEPT + duration_ns * rows
        mean_rows, mean_ns = rows_sum / weight, duration_sum / weight
        spread = max(0.0, squared_sum / weight - mean_rows * mean_rows)
        together = product_sum / weight - mean_rows * mean_ns
        most_ns = mean_ns / mean_rows
        slope_ns = (together + _SLOPE_PRIOR_WEIGHT * 0.5 * most_ns) / (spread + _SLOPE_PRIOR_WEIGHT)
        self.row_ns = slope_ns = min(max(0.0, slope_ns), most_ns)
        self.fixed_ns = max(0.0, mean_ns - slope_ns * mean_rows)

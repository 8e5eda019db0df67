"""Columns over all samples: what share of a column's variance is left, its gain, and its shift.

Each element of an answer may be within its limit, and yet a column may say nothing any more: int8 rounds the columns
of an output with one scale. So each column is also judged by what all samples have in common.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from naiad.core.tensor import Array
from naiad.tools.optimize.candidate import Precision
from naiad.tools.optimize.correctness.scores.scales import FEW_COLUMNS, Scales
from naiad.tools.optimize.correctness.scores.tolerances import FLOAT_ROUNDING, Kind
from naiad.tools.optimize.results.verdict import Tolerance

FEWEST_ROWS = 8
_SMALL_SHARE = 0.01
"""Of the mean variance: what a feature that hardly varies is related to."""
_PROBABILITY_VARIANCE = 0.05**2
LIKELY = 0.01
"""Probabilities of this size say something: an output in int8 has steps of 0.004."""
_LEAST_LIKELY_VARIANCE = 0.004**2
_LIKELY_RESIDUAL = 0.5
"""1 - R2 of a class that is likely in some samples, by its own variance, where that is small: int8 may change it by
much, but it may not be that of another class."""
_SURE = 3.0
"""Standard errors that are allowed on top of the limits of gain and shift."""
_FEW_LEVELS = 8
"""Different numbers in a column of int8, which has 256: fewer, where the source has four times as many and where the
rounding shows, say that most of its bits are lost."""
_LEVEL_ROWS = 32
_SAME_LEVEL = 1e-4
_LOST_BY_LEVELS = 0.01
"""1 - R2, from which on the rounding shows: where a few huge values make the scale, levels are few, too."""
_NOISE = 1e-6
"""Share of its size by which a constant column varies."""


@dataclass(frozen=True, slots=True)
class ColumnFinding:
    """A property of a column, or of all of them, beside its limit."""

    check: str
    """`column`, `levels`, `gain` or `bias`."""
    column: int
    """-1 for all columns together."""
    value: float
    limit: float

    @property
    def excess(self) -> float:
        """Return the value by its limit; more than 1 fails."""
        return self.value / self.limit if self.limit else 0.0


class _Levels:
    """The different numbers of a column, as far as they are few."""

    def __init__(self) -> None:
        self._seen: list[float] = []

    def add(self, values: Array) -> None:
        """Add numbers; those that differ by rounding of FP32 alone are the same."""
        for value in values.tolist():
            if len(self._seen) < 4 * _FEW_LEVELS and not any(
                abs(value - each) <= _SAME_LEVEL * max(abs(value), abs(each)) for each in self._seen
            ):
                self._seen.append(value)

    def count(self, most: int) -> int:
        """Return how many there are, `most` for more."""
        return min(len(self._seen), most)


class ColumnSums:
    """Sums over the rows of all samples, by column."""

    def __init__(self, scales: Scales, kind: Kind, step: float = 0.0) -> None:
        """`step` is the relative distance of neighbouring numbers, of a short datatype."""
        self._scales = scales
        self._kind = kind
        self._step = step
        self.rows = 0
        self._wanted, self._squares, self._differences, self._errors, self._products, self._likely = (
            np.zeros(scales.columns) for _ in range(6)
        )
        is_table = scales.is_of_all_samples and kind is not Kind.PROBABILITIES
        self._levels = [(_Levels(), _Levels()) for _ in range(scales.columns if is_table else 0)]
        """By column, of the source and of the candidate."""

    def add(self, expected: Array, found: Array) -> None:
        """Add an answer; elements that are not finite in both do not count."""
        wanted = self._scales.rows(expected).astype(np.float64) - self._scales.means
        with np.errstate(invalid="ignore", over="ignore"):
            difference = self._scales.rows(found).astype(np.float64) - self._scales.rows(expected)
        is_finite = np.isfinite(wanted) & np.isfinite(difference)
        wanted, difference = np.where(is_finite, wanted, 0), np.where(is_finite, difference, 0)
        self.rows += len(wanted)
        if self._levels:
            found_rows = wanted + difference
            for column, (source, candidate) in enumerate(self._levels):
                source.add(wanted[:, column])
                candidate.add(found_rows[:, column])
        self._likely += (self._scales.rows(expected) >= LIKELY).sum(0)
        with np.errstate(over="ignore"):
            self._wanted += wanted.sum(0)
            self._squares += np.square(wanted).sum(0)
            self._differences += difference.sum(0)
            self._errors += np.square(difference).sum(0)
            self._products += (wanted * difference).sum(0)

    def unlikely(self) -> int:
        """Return the number of columns, of probabilities, that are below `LIKELY` in all rows."""
        return int((self._likely == 0).sum())

    def findings(self, tolerance: Tolerance, precision: Precision) -> Iterator[ColumnFinding]:
        """Yield the worst column of each check; nothing where there are too few rows to say."""
        if self.rows < FEWEST_ROWS:
            return
        variance = self._variance()
        varies = self._varies(variance)
        if tolerance.residual:
            share = max(FLOAT_ROUNDING.get(precision, 0.0), self._step)
            rounding = np.square(share * self._sizes()) if tolerance.residual > 1e-9 else 0
            left = np.maximum(self._errors / self.rows - rounding, 0)
            residuals = np.where(varies, left / np.maximum(self._reference_variance(variance), 1e-300), 0)
            column = int(residuals.argmax())
            found = ColumnFinding("column", column, float(residuals[column]), tolerance.residual)
            yield max(found, self._of_likely_classes(variance), key=lambda each: each.excess)
            if precision in (Precision.INT8, Precision.INT8_DYNAMIC) and self.rows >= _LEVEL_ROWS:
                yield from self._few_levels(residuals)
        varies &= variance >= self._least_variance(variance)
        if varies.any() and tolerance.gain:
            yield from self._gains(variance[varies], np.flatnonzero(varies), tolerance.gain)
        if varies.any() and tolerance.bias:
            yield from self._shifts(variance[varies], np.flatnonzero(varies), tolerance.bias)

    def _few_levels(self, residuals: Array) -> Iterator[ColumnFinding]:
        """Yield columns whose answers are a few numbers, where the source has many."""
        for column, (source, candidate) in enumerate(self._levels):
            levels = candidate.count(_FEW_LEVELS)
            is_lost = residuals[column] > _LOST_BY_LEVELS and source.count(4 * _FEW_LEVELS) >= 4 * levels
            if 1 < levels < _FEW_LEVELS and is_lost:
                yield ColumnFinding("levels", column, float(_FEW_LEVELS), float(levels))

    def _of_likely_classes(self, variance: Array) -> ColumnFinding:
        """Judge the classes of an output with many classes by their own variance, which is small there."""
        is_said = (self._likely >= FEWEST_ROWS) & (variance >= _LEAST_LIKELY_VARIANCE)
        is_said &= self._kind is Kind.PROBABILITIES
        residuals = np.where(is_said, self._errors / self.rows / np.maximum(variance, _LEAST_LIKELY_VARIANCE), 0)
        column = int(residuals.argmax())
        return ColumnFinding("column", column, float(residuals[column]), _LIKELY_RESIDUAL)

    def _gains(self, variance: Array, columns: Array, limit: float) -> Iterator[ColumnFinding]:
        rows = self.rows
        mean = self._wanted[columns] / rows
        shift = self._differences[columns] / rows
        gains = (self._products[columns] / rows - mean * shift) / variance
        spread = np.maximum(self._errors[columns] / rows - np.square(shift) - np.square(gains) * variance, 0)
        errors = np.sqrt(spread / variance / rows)
        yield from _worst("gain", gains, errors, columns, limit)

    def _shifts(self, variance: Array, columns: Array, limit: float) -> Iterator[ColumnFinding]:
        shift = self._differences[columns] / self.rows
        spread = np.maximum(self._errors[columns] / self.rows - np.square(shift), 0)
        shifts, errors = shift / np.sqrt(variance), np.sqrt(spread / variance / self.rows)
        typical = np.sqrt(max(float((np.square(shifts) - np.square(errors)).mean()), 0.0))
        sure = _SURE * float(errors.mean()) / np.sqrt(len(columns))
        all_columns = -1 if len(columns) > 1 else int(columns[0])
        yield ColumnFinding("bias", all_columns, float(typical), limit + sure)
        # A zero point that is off shifts all columns one way; shifts by rounding have both signs.
        common = abs(float(shift.mean())) / np.sqrt(float(variance.mean()))
        least = limit / 2 * (1 + 1 / np.sqrt(len(columns)))
        sure = _SURE * float(np.sqrt(spread.sum() / self.rows)) / len(columns) / np.sqrt(float(variance.mean()))
        yield ColumnFinding("bias", all_columns, float(common), float(least + sure))
        yield from _worst("bias", shifts, errors, columns, 2 * limit, is_pooled=False)

    def _variance(self) -> Array:
        rows = max(self.rows, 1)
        return np.maximum(self._squares / rows - np.square(self._wanted / rows), 0)

    def _sizes(self) -> Array:
        """Return the root mean square of each column."""
        mean = self._scales.means + self._wanted / max(self.rows, 1)
        return np.asarray(np.sqrt(self._variance() + np.square(mean)))

    def _varies(self, variance: Array) -> Array:
        return np.asarray(variance > np.square(_NOISE * self._sizes()))

    def _least_variance(self, variance: Array) -> Array:
        if self._kind is Kind.PROBABILITIES:
            return np.full_like(variance, _PROBABILITY_VARIANCE)
        share = np.where(
            self._scales.zeros > 0.5, _SMALL_SHARE, 0.0 if self._scales.columns <= FEW_COLUMNS else _SMALL_SHARE
        )
        return np.asarray(share * variance.mean())

    def _reference_variance(self, variance: Array) -> Array:
        return np.maximum(variance, self._least_variance(variance))


def _worst(
    check: str, values: Array, errors: Array, columns: Array, limit: float, *, is_pooled: bool = True
) -> Iterator[ColumnFinding]:
    if is_pooled and len(columns) > 1:
        sure = _SURE * float(np.sqrt(np.square(errors).mean() / len(columns)))
        yield ColumnFinding(check, -1, abs(float(values.mean())), limit + sure)
        limit *= 2
    limits = limit + _SURE * errors
    worst = int((np.abs(values) / limits).argmax())
    yield ColumnFinding(check, int(columns[worst]), abs(float(values[worst])), float(limits[worst]))

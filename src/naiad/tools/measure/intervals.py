"""Distributions of times, with 95 % confidence intervals of rates, means and percentiles of dependent requests.

A request that waits in a queue makes the next one wait: latencies are autocorrelated, and the textbook formula
s / sqrt(n) gives intervals that are far too narrow. The method of batch means (Conway 1963; Law, Simulation Modeling
and Analysis, 9.5.3) cuts the run into B blocks of equal time. The means of blocks that are longer than the memory of
the queue are nearly independent, so with their standard deviation s_B the half width is

    t(0.975, B - 1) * s_B / sqrt(B)

Long blocks are independent, but few; short blocks are many, but dependent. The half width is the greatest of those
for 8, 16 and 32 blocks. The choice errs on the wide side, which also pays for a measurement that ends as soon as its
interval is narrow (`stability`).

A mean over requests is a ratio, of the sum of latencies to the number of requests, and both vary by block. The
deviations of a ratio R are (sum_b - R * count_b) / mean count (Cochran, Sampling Techniques, 6.4).

A percentile is a ratio too: the share of requests at or below x. The interval of that share, read on the sorted
values, is that of the percentile (Woodruff 1952). It needs no density, so it holds for several modes.
"""

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np

from naiad.tools.measure.result import Interval, Latency

Int64s: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

BLOCKS = 32
_BLOCK_COUNTS = (8, 16, 32)
_FEWEST = 16
"""Fewer requests than this are treated as independent."""
NONE = Interval(0.0, 0.0, 0.0)


@cache
def t_quantile(degrees: int, probability: float = 0.975) -> float:
    """Quantile of Student's t; the expansion of Abramowitz and Stegun 26.7.5, within 1 % from 3 degrees on."""
    if degrees <= 2:
        p = 2 * probability - 1
        return math.tan(math.pi * p / 2) if degrees == 1 else p * math.sqrt(2 / (1 - p * p))
    z, v = NormalDist().inv_cdf(probability), degrees
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def latency_name(percentile: int | None) -> str:
    """`mean latency` or `p99 latency`."""
    return "mean latency" if percentile is None else f"p{percentile} latency"


def half_width(deviations: Floats) -> float:
    """Of the 95 % interval of a mean, from the deviations of 32 blocks."""
    return max(_half_width(deviations.reshape(count, -1).mean(axis=1)) for count in _BLOCK_COUNTS)


def _half_width(values: Floats) -> float:
    return t_quantile(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))


class Sample:
    """Times of ends, ascending, with a value for each, over the time from `begin_ns` to `end_ns`."""

    def __init__(self, ends_ns: Int64s, values: Floats, begin_ns: int, end_ns: int) -> None:
        self.values = values
        self.span_ns = end_ns - begin_ns
        self._ends_ns, self._begin_ns, self._end_ns = ends_ns, begin_ns, end_ns
        self._edges = np.linspace(begin_ns, end_ns, BLOCKS + 1)
        self._places = np.searchsorted(ends_ns, self._edges, side="right")
        self._places[0], self._places[-1] = 0, len(ends_ns)

    def thinned(self, count: int) -> "Sample":
        """About `count` of the values, evenly spaced."""
        step = max(len(self.values) // count, 1)
        return Sample(self._ends_ns[::step], self.values[::step], self._begin_ns, self._end_ns) if step > 1 else self

    def extended(self, values: Floats) -> "Sample":
        """With more values, which end with the span."""
        ends = np.concatenate((self._ends_ns, np.full(len(values), self._end_ns, np.int64)))
        return Sample(ends, np.concatenate((self.values, values)), self._begin_ns, self._end_ns)

    def longest_gap(self) -> tuple[int, int]:
        """Longest time without an end, and when it began, from the begin; ns."""
        moments = np.concatenate(([self._begin_ns], self._ends_ns, [self._end_ns]))
        gaps = np.diff(moments)
        place = int(gaps.argmax())
        return int(gaps[place]), int(moments[place]) - self._begin_ns

    def block_sums(self, values: "np.ndarray[Any, Any]") -> Floats:
        """Sum of values over each block, float64 [32]."""
        return np.array([values[first:last].sum() for first, last in pairwise(self._places)], np.float64)

    def block_counts(self) -> Floats:
        """Requests of each block, float64 [32]."""
        return np.diff(self._places).astype(np.float64)

    def rate(self) -> Interval:
        """Values a second."""
        count, seconds = len(self.values), self.span_ns / 1e9
        if seconds <= 0:
            return NONE
        if count < _FEWEST:
            low, high = _poisson(count)
            return Interval(count / seconds, low / seconds, high / seconds)
        return _around(count / seconds, half_width(self._smooth_counts()) * BLOCKS / seconds)

    def _smooth_counts(self) -> Floats:
        """Counts read between the ends, so that whole requests in short blocks are not taken for variation."""
        before = np.where(self._places > 0, self._ends_ns[self._places - 1], self._begin_ns)
        after = self._ends_ns[np.minimum(self._places, len(self._ends_ns) - 1)]
        gaps = np.maximum(after - before, 1)
        return np.diff(self._places + np.clip((self._edges - before) / gaps, 0, 1) * (after > before))

    def mean(self) -> Interval:
        """Of the values. A single value has an interval of 100 %."""
        count = len(self.values)
        if not count:
            return NONE
        mean = float(self.values.mean())
        if count == 1:
            return _around(mean, mean)
        if count < _FEWEST:
            return _around(mean, _half_width(self.values))
        return _around(mean, half_width(self._deviations(self.values, mean)))

    def percentiles(self, percents: Sequence[int]) -> dict[int, Interval]:
        """By nearest rank; the bounds are values of the sample, so an open upper bound is its maximum."""
        if not len(self.values):
            return dict.fromkeys(percents, NONE)
        ordered = np.sort(self.values)
        return {percent: self._percentile(ordered, percent / 100) for percent in percents}

    def _percentile(self, ordered: Floats, share: float) -> Interval:
        count = len(ordered)
        value = float(ordered[rank(count, share)])
        half = 1.96 * math.sqrt(share * (1 - share) / count)
        if count >= _FEWEST:
            is_below = self.values <= value
            half = max(half, half_width(self._deviations(is_below, float(is_below.mean()))))
        return Interval(value, float(ordered[rank(count, share - half)]), float(ordered[rank(count, share + half)]))

    def _deviations(self, values: "np.ndarray[Any, Any]", ratio: float) -> Floats:
        counts = self.block_counts()
        deviations: Floats = (self.block_sums(values) - ratio * counts) / counts.mean()
        return deviations


def rank(count: int, share: float) -> int:
    """Index of a percentile by nearest rank, within the sample."""
    return min(max(math.ceil(share * count) - 1, 0), count - 1)


def _around(value: float, half: float) -> Interval:
    return Interval(value, max(value - half, 0.0), value + half)


def _poisson(count: int) -> tuple[float, float]:
    """95 % interval of a Poisson count (Byar; Breslow and Day 1987, vol. 2, p. 69)."""
    above = count + 1
    high = above * (1 - 1 / (9 * above) + 1.96 / (3 * math.sqrt(above))) ** 3
    low = count * (1 - 1 / (9 * count) - 1.96 / (3 * math.sqrt(count))) ** 3 if count else 0.0
    return max(low, 0.0), high


# --- distributions of times ---------------------------------------------------------------------------------------

_PERCENTILES = (50, 90, 95, 99)
_BINS_PER_DECADE = 20


def percents(percentile: int | None) -> list[int]:
    """The percentiles of a report, with that asked for."""
    return sorted({*_PERCENTILES, percentile or 50})


def latency(sample: Sample, percentile: int | None = None) -> Latency:
    """Figures of the values of a sample, in us."""
    values = sample.values
    has_values = len(values) > 0
    return Latency(
        mean=sample.mean(),
        std_us=float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        min_us=float(values.min()) if has_values else 0.0,
        max_us=float(values.max()) if has_values else 0.0,
        percentiles=sample.percentiles(percents(percentile)),
    )


def latency_without_times(values_ns: Int64s, percentile: int | None = None) -> Latency:
    """Of times of which only the order is known."""
    order = np.arange(len(values_ns), dtype=np.int64)
    return latency(Sample(order, values_ns / 1e3, -1, len(values_ns)), percentile)


def histogram(values_us: Floats) -> Sequence[tuple[float, int]]:
    """Upper bound in us and count of bins that are 12 % wide, from the first to the last that is not empty."""
    if not len(values_us):
        return ()
    bins = np.ceil(np.log10(np.maximum(values_us, 1e-3)) * _BINS_PER_DECADE).astype(np.int64)
    first = int(bins.min())
    counts = np.bincount(bins - first)
    return [(10 ** ((first + place) / _BINS_PER_DECADE), int(count)) for place, count in enumerate(counts)]

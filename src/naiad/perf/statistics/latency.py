"""The distribution of a time: mean, percentiles with intervals, histogram."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from naiad.perf.result import Latency
from naiad.perf.statistics.intervals import Floats, Sample

if TYPE_CHECKING:
    from naiad.perf.records import Int64s

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


def latency_without_times(values_ns: "Int64s", percentile: int | None = None) -> Latency:
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

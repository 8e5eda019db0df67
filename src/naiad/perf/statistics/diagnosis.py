"""Why a measurement is not stable, in plain words: a trend, a stall, two modes, or plain variation."""

import math

import numpy as np

from naiad.perf.statistics.intervals import BLOCKS, Floats, Sample, t_quantile

_TREND_BLOCKS = 8
_MAX_VALUES = 100_000
_TREND_CONFIDENCE = 0.995
_MODES_SEPARATION = 0.85
"""Share of the variance of log latency between two classes (Otsu); 0.64 for a normal, 0.75 for a uniform."""
_MODE_SHARE = 0.02
_MODE_RATIO = 2.0


def drift(sample: Sample, share: float) -> str:
    """Throughput or latency that rises or falls by more than `share` over the run; "" for none.

    The slope of a straight line through the means of 8 blocks, significant at 1 % (Student's t, 6 degrees).
    """
    counts = sample.block_counts().reshape(_TREND_BLOCKS, -1).sum(axis=1)
    sums = sample.block_sums(sample.values).reshape(_TREND_BLOCKS, -1).sum(axis=1)
    for name, values in (("latency", sums / np.maximum(counts, 1)), ("throughput", counts)):
        change = _trend(values)
        if abs(change) > share:
            return f"{name} {'rises' if change > 0 else 'falls'} by {abs(change) * 100:.0f} % over the run"
    return ""


def _trend(values: Floats) -> float:
    """Change over the run as a share of the mean; 0 when it is not significant."""
    mean = float(values.mean())
    if mean <= 0:
        return 0.0
    x = np.linspace(-0.5, 0.5, len(values))
    slope = float(x @ values / (x @ x))
    residuals = values - mean - slope * x
    error = math.sqrt(float(residuals @ residuals) / (len(values) - 2) / float(x @ x))
    return slope / mean if abs(slope) > t_quantile(len(values) - 2, _TREND_CONFIDENCE) * error else 0.0


def instability(sample: Sample, share: float, *, is_closed: bool) -> str:
    """The most likely cause of wide intervals."""
    stall = _stall(sample)
    if stall:
        return stall
    trend = drift(sample, share)
    if trend:
        queue = "" if is_closed else "; the server may be slower than the load"
        return f"{trend}: not in a steady state{queue}"
    return _modes(sample.values) or "throughput or latency varies from block to block more than the limit"


def _stall(sample: Sample) -> str:
    """No response for a block or longer, although blocks have 5 responses and more."""
    counts = sample.block_counts()
    if len(sample.values) < 5 * BLOCKS:
        return ""
    gap_ns, at_ns = sample.longest_gap()
    if gap_ns < max(20 * sample.span_ns / len(sample.values), sample.span_ns / BLOCKS / 2) or not counts.sum():
        return ""
    return f"the server stalled: no response for {gap_ns / 1e9:.2f} s, {at_ns / 1e9:.1f} s after the begin"


def _modes(values: Floats) -> str:
    """Two groups of latencies, split where the variance between them is greatest (Otsu 1979)."""
    logs = np.sort(np.log(np.maximum(values[:: len(values) // _MAX_VALUES + 1], 1e-3)))
    count, total = len(logs), float(logs.var())
    if count < _TREND_BLOCKS or total <= 0:
        return ""
    below = np.arange(1, count)
    sums = np.cumsum(logs)[:-1]
    low, high = sums / below, (float(logs.sum()) - sums) / (count - below)
    between = below * (count - below) / count**2 * (high - low) ** 2
    best = int(between.argmax())
    share = (best + 1) / count
    is_split = between[best] / total >= _MODES_SEPARATION and high[best] - low[best] >= math.log(_MODE_RATIO)
    if not is_split or not _MODE_SHARE <= share <= 1 - _MODE_SHARE:
        return ""
    fast, slow = math.exp(low[best]) / 1e3, math.exp(high[best]) / 1e3
    return (
        f"latency has two modes: {share * 100:.0f} % of requests near {fast:.3g} ms, "
        f"{(1 - share) * 100:.0f} % near {slow:.3g} ms"
    )

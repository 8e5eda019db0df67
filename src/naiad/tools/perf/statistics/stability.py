"""When a measurement ends, whether it is stable, and if not, why: a trend, a stall, two modes, or plain variation.

CONFIDENCE looks at the run on a fixed grid of moments: at 1 s and at each 1.25 times the time before. A look uses the
requests up to its moment, so the outcome does not depend on how often `verdict` is called. A rule that may end at
each look ends too often at a look where the requests happened to agree. Three things keep the intervals true: few
looks (at most 19 in 50 s), no look before 1 s and 30 requests, and intervals of the widest of three block lengths
(`intervals`). Simulated requests confirm it (`test_coverage`): 95 % intervals at the end of a measurement hold the
true value in 93 to 99 % of the runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from naiad.tools.measure.intervals import BLOCKS, Floats, Int64s, Sample, latency_name, rank, t_quantile
from naiad.tools.measure.result import Interval
from naiad.tools.perf.perf_plan import Concurrency, Load, Measuring, PeriodicConcurrency, Ramp, Schedule, Stop
from naiad.tools.perf.records import Columns

_FIRST_LOOK_NS = 1_000_000_000
_LOOK_FACTOR = 1.25
_HOPELESS_NS = 50_000_000_000
_HOPELESS_FACTOR = 1.5
_MIN_REQUESTS = 30
_MIN_ABOVE_PERCENTILE = 10
_MAX_VALUES = 200_000
"""More requests than this are thinned for the judged latency."""
_STABLE_WINDOWS = 3
_WINDOW_STRETCH = 1.2
_BEHIND_SHARE = 0.05
_LEAST_BEHIND_NS, _MOST_BEHIND_NS = 100_000_000, 1_000_000_000
"""A schedule is behind when a request leaves later than this share of its length, within these bounds."""


@dataclass(frozen=True, slots=True)
class StabilityVerdict:
    """Whether the measurement is over, whether its figures are stable, and why, in a sentence."""

    is_done: bool
    is_stable: bool
    reason: str


def verdict(
    measuring: Measuring, columns: Columns, boundaries_ns: Sequence[int], begin_ns: int, now_ns: int, load: Load
) -> StabilityVerdict:
    """The state of a measurement that began at `begin_ns`.

    `columns` has at least the requests that ended since; `boundaries_ns` has `begin_ns`
    and the ends of finished windows. Loads that are played once end when they have been played.
    """
    if isinstance(load, Schedule | Ramp | PeriodicConcurrency):
        return _played(columns, begin_ns, now_ns, load)
    if measuring.stop is Stop.REQUEST_COUNT:
        return _counted(measuring, columns, begin_ns, now_ns)
    if measuring.stop is Stop.CONFIDENCE:
        return _confidence(measuring, columns, begin_ns, now_ns, load)
    return _windows(measuring, columns, boundaries_ns)


def is_window_complete(measuring: Measuring, columns: Columns, begin_ns: int, now_ns: int) -> bool:
    """A window may end: after perf_analyzer's 1.2 times the length asked for, or 1 s and a count of requests."""
    if measuring.stop is Stop.TIME_WINDOWS:
        return now_ns - begin_ns >= measuring.window_ms * 1_000_000 * _WINDOW_STRETCH
    is_long_enough = now_ns - begin_ns >= 1_000_000_000
    return is_long_enough and _ended(columns, begin_ns, now_ns) >= measuring.window_requests


def _ended(columns: Columns, begin_ns: int, end_ns: int) -> int:
    first, last = np.searchsorted(columns.end_ns, (begin_ns, end_ns), side="right")
    return int(last - first)


def _counted(measuring: Measuring, columns: Columns, begin_ns: int, now_ns: int) -> StabilityVerdict:
    """A number of requests says nothing of how wide intervals are, but stalls and trends are seen in it, too."""
    count = _ended(columns, begin_ns, now_ns)
    text = f"{count} of {measuring.request_count} requests ended"
    if count < measuring.request_count:
        return StabilityVerdict(False, False, text)
    ends, values = successes(columns, begin_ns, now_ns)
    if len(values) < _MIN_REQUESTS:
        return StabilityVerdict(True, False, f"{text}, and a verdict needs {_MIN_REQUESTS}")
    sample = Sample(ends, values, begin_ns, int(ends[-1]))
    cause = _stall(sample) or drift(sample, measuring.stability_percent / 100)
    return StabilityVerdict(True, not cause, f"{text}; {cause}" if cause else text)


def _played(
    columns: Columns, begin_ns: int, now_ns: int, load: Schedule | Ramp | PeriodicConcurrency
) -> StabilityVerdict:
    if not isinstance(load, Ramp):
        count = _ended(columns, begin_ns, now_ns)
        total = len(load.offsets_ns) if isinstance(load, Schedule) else load.end
        behind = _behind(columns, load) if isinstance(load, Schedule) else ""
        return StabilityVerdict(count >= total, not behind, f"{count} of {total} requests were played{behind}")
    length_s = sum(phase.duration_s for phase in load.phases)
    return StabilityVerdict(now_ns - begin_ns >= length_s * 1e9, True, f"the ramp was played for {length_s:g} s")


def _behind(columns: Columns, load: Schedule) -> str:
    """Return by how much requests of a schedule left late, for any reason; "" for next to nothing.

    What was measured is then another load than the one asked for.
    """
    is_sent = columns.sent_ns > 0
    behind_ns = int((columns.sent_ns - columns.intended_ns)[is_sent].max(initial=0))
    allowed_ns = min(max(load.offsets_ns[-1] * _BEHIND_SHARE, _LEAST_BEHIND_NS), _MOST_BEHIND_NS)
    if behind_ns <= allowed_ns:
        return ""
    return f"; the replay is {behind_ns / 1e9:.3g} s behind its schedule, so this is not the load that was recorded"


def _confidence(measuring: Measuring, columns: Columns, begin_ns: int, now_ns: int, load: Load) -> StabilityVerdict:
    limit_ns = (measuring.duration_ms or measuring.max_trials * measuring.window_ms) * 1_000_000
    look_ns = _last_look(min(now_ns - begin_ns, limit_ns), limit_ns)
    if not look_ns:
        return StabilityVerdict(False, False, "too early")
    ends, values = successes(columns, begin_ns, begin_ns + look_ns)
    is_last = look_ns >= limit_ns
    if not len(values):
        is_done = is_last or (_ended(columns, begin_ns, now_ns) > 0 and look_ns >= measuring.window_ms * 1_000_000)
        longest = ", the longest time of this load" if is_last else ""
        return StabilityVerdict(is_done, False, _no_success(columns, begin_ns, begin_ns + look_ns) + longest)
    sample = Sample(ends, values, begin_ns, begin_ns + look_ns)
    rate, judged = sample.rate(), judged_latency(measuring.percentile, sample)
    name = latency_name(measuring.percentile)
    spread = f"throughput ±{_percent(rate)}, {name} ±{_percent(judged)} with 95 % confidence"
    missing = _missing(measuring.percentile, len(values))
    widest = measuring.stability_percent / 100 / 2
    is_narrow = rate.half_width_share <= widest and judged.half_width_share <= widest
    if is_narrow and not missing and not drift(sample, widest * 2):
        modes = _modes(sample.values)
        return StabilityVerdict(True, True, f"stable: {spread}" + (f"; {modes}" if modes else ""))
    is_hopeless = not missing and _is_out_of_reach(
        max(rate.half_width_share, judged.half_width_share) / widest, look_ns, limit_ns
    )
    if not is_last and not is_hopeless:
        return StabilityVerdict(False, False, missing or spread)
    why = instability(sample, widest * 2, is_closed=isinstance(load, Concurrency))
    early = "; more time would not make it stable" if not is_last else ""
    return StabilityVerdict(
        True, False, f"not stable after {look_ns / 1e9:.3g} s{early}: {missing or f'{why} ({spread})'}"
    )


def _is_out_of_reach(width: float, look_ns: int, limit_ns: int) -> bool:
    """Whether intervals of `width` times the limit will be too wide at the end, too.

    They narrow with the root of the time. A factor of 1.5 is left to a run whose last part is quieter.
    """
    return look_ns >= _HOPELESS_NS and width > _HOPELESS_FACTOR * math.sqrt(limit_ns / look_ns)


def _last_look(elapsed_ns: int, limit_ns: int) -> int:
    """The latest moment of the grid that has passed; 0 for none."""
    if elapsed_ns >= limit_ns:
        return limit_ns
    look, last = float(min(_FIRST_LOOK_NS, limit_ns)), 0
    while look <= elapsed_ns:
        last = int(look)
        look *= _LOOK_FACTOR
    return last


def successes(columns: Columns, begin_ns: int, end_ns: int) -> "tuple[Int64s, Floats]":
    """Ends in ns and latencies in us, from the intended send, of the successes of a span; the begin is outside."""
    first, last = np.searchsorted(columns.end_ns, (begin_ns, end_ns), side="right")
    ends, intended = columns.end_ns[first:last], columns.intended_ns[first:last]
    is_success = columns.failure[first:last] == 0
    if not is_success.all():
        ends, intended = ends[is_success], intended[is_success]
    return ends, (ends - intended) / 1e3


def judged_latency(percentile: int | None, sample: Sample) -> Interval:
    """The mean, or the percentile asked for."""
    if percentile is None:
        return sample.mean()
    return sample.thinned(_MAX_VALUES).percentiles((percentile,))[percentile]


def judged_value(percentile: int | None, values: Floats) -> float:
    """The mean or percentile of some values; 0 for none."""
    if not len(values):
        return 0.0
    if percentile is None:
        return float(values.mean())
    place = rank(len(values), percentile / 100)
    return float(np.partition(values, place)[place])


def _missing(percentile: int | None, count: int) -> str:
    needed = _MIN_REQUESTS
    if percentile is not None:
        needed = max(needed, -(-_MIN_ABOVE_PERCENTILE * 100 // max(100 - percentile, 1)))
    return "" if count >= needed else f"{count} requests, {latency_name(percentile)} needs {needed}"


def _no_success(columns: Columns, begin_ns: int, end_ns: int) -> str:
    """Say why a span has no success; requests that ended outside it say nothing about it."""
    first, last = np.searchsorted(columns.end_ns, (begin_ns, end_ns), side="right")
    counts = np.bincount(columns.failure[first:last])
    if not len(counts):
        return f"no request ended in the first {(end_ns - begin_ns) / 1e9:.3g} s"
    most = columns.failures[int(counts.argmax()) - 1]
    return f"every request failed, most of them with {most.kind}: {most.message}"


def _percent(interval: Interval) -> str:
    return f"{interval.half_width_share * 100:.1f} %"


def _windows(measuring: Measuring, columns: Columns, boundaries_ns: Sequence[int]) -> StabilityVerdict:
    """perf_analyzer: the greatest of the last three windows is at most 1 + s times the smallest."""
    finished = len(boundaries_ns) - 1
    is_last = finished >= measuring.max_trials
    if finished < _STABLE_WINDOWS:
        return StabilityVerdict(is_last, False, f"{finished} windows, {_STABLE_WINDOWS} are needed")
    rates, latencies = [], []
    for begin, end in zip(boundaries_ns[-4:-1], boundaries_ns[-3:], strict=True):
        _, values = successes(columns, begin, end)
        rates.append(len(values) / max((end - begin) / 1e9, 1e-9))
        latencies.append(judged_value(measuring.percentile, values))
    spreads = {"throughput": _ratio(rates), latency_name(measuring.percentile): _ratio(latencies)}
    is_stable = max(spreads.values()) <= 1 + measuring.stability_percent / 100
    is_over_limit = 0 < measuring.latency_limit_us < min(latencies)
    text = ", ".join(f"{name} by {(ratio - 1) * 100:.1f} %" for name, ratio in spreads.items())
    reason = f"the last three windows differ: {text}" if min(rates) else "a window has no success"
    return StabilityVerdict(is_stable or is_over_limit or is_last, is_stable, reason)


def _ratio(values: Sequence[float]) -> float:
    return max(values) / min(values) if min(values) > 0 else float("inf")


# --- why it is not stable -----------------------------------------------------------------------------------------

_TREND_BLOCKS = 8
_MAX_MODE_VALUES = 100_000
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
            return f"{name} {_change_text(change)} over the run"
    return ""


def _change_text(change: float) -> str:
    """A rise as a share of the mean; a fall as a share of where the line begins, at most all of it."""
    if change > 0:
        return f"rises by {change * 100:.0f} %"
    return f"falls by {min(-change / (1 - change / 2), 1.0) * 100:.0f} %"


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
    modes = _modes(sample.values)
    if trend:
        queue = "" if is_closed else "; the server may be slower than the load"
        return f"{trend}: not in a steady state{queue}" + (f"; {modes}" if modes else "")
    return modes or "throughput or latency varies from block to block more than the limit"


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
    logs = np.sort(np.log(np.maximum(values[:: len(values) // _MAX_MODE_VALUES + 1], 1e-3)))
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

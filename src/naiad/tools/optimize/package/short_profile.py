"""A measurement of some seconds, done alike when a package is written and when it is verified.

The model runs in a process of its own behind the scheduler, without a network.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from naiad.tools.measure.intervals import Sample
from naiad.tools.measure.result import Interval
from naiad.tools.optimize.correctness.runners.model_runner import Arrays, Runner

SECONDS = 2.0
_CONCURRENCY = 8
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class ShortProfile:
    """Figures of a model in a process of its own."""

    latency: Interval
    """Median time of one request, in us."""
    throughput: Interval
    """Requests/s with 8 at the same time."""


def measure(runner: Runner, requests: Sequence[Arrays], seconds: float = SECONDS) -> ShortProfile:
    """Measure for `seconds`, half of it for each figure. Raises RunnerError."""
    rounds = [[requests[(start + step) % len(requests)] for step in range(_CONCURRENCY)] for start in range(32)]
    alone = _timed(lambda index: runner.infer(requests[index % len(requests)]), seconds / 2)
    together = _timed(lambda index: runner.infer_concurrently(rounds[index % len(rounds)]), seconds / 2)
    rate = together.rate()
    throughput = Interval(rate.value * _CONCURRENCY, rate.low * _CONCURRENCY, rate.high * _CONCURRENCY)
    return ShortProfile(alone.percentiles([50])[50], throughput)


def _timed(call: Callable[[int], object], seconds: float) -> Sample:
    for index in range(_WARM_UP):
        call(index)
    ends: list[int] = []
    begin_ns = before_ns = time.perf_counter_ns()
    durations_us: list[float] = []
    while not ends or ends[-1] < begin_ns + seconds * 1e9:
        call(len(ends))
        now_ns = time.perf_counter_ns()
        ends.append(now_ns)
        durations_us.append((now_ns - before_ns) / 1e3)
        before_ns = now_ns
    return Sample(np.array(ends, np.int64), np.array(durations_us), begin_ns, ends[-1])

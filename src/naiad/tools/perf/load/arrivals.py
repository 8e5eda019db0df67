"""The moments at which requests of an open loop are due."""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, count, cycle, islice
from typing import TypeAlias

from naiad.core.errors import invalid_argument
from naiad.tools.perf.perf_plan import (
    Concurrency,
    Intervals,
    Load,
    PeriodicConcurrency,
    Phase,
    Ramp,
    RequestRate,
    Schedule,
)

OpenLoad: TypeAlias = RequestRate | Intervals | Schedule | Ramp

_S = 1_000_000_000
MIN_RATE_PER_S, MAX_RATE_PER_S = 1e-6, 10_000_000.0
_MAX_GAP_NS = 100 * 24 * 3600 * _S
MAX_CONCURRENCY = 100_000


def arrivals_ns(load: OpenLoad, seed: int = 0) -> Iterator[int]:
    """Return the offsets of requests from the start of the load, in ns, ascending.

    Rates and intervals go on without end; a schedule and a ramp are played once. Constant rates start at 0, so that
    request number i is due at exactly i / rate. Poisson arrivals depend on `seed` only.
    """
    if isinstance(load, RequestRate):
        if load.is_poisson:
            return (int(gaps * _S / load.per_s) for gaps in _poisson(seed))
        return (int(number * _S / load.per_s) for number in count())
    if isinstance(load, Intervals):
        return accumulate(cycle(load.gaps_ns), initial=0)
    if isinstance(load, Schedule):
        return iter(load.offsets_ns)
    return _ramp(load.phases, _poisson(seed) if load.is_poisson else count())


def deal(offsets_ns: Iterable[int], part: int, parts: int) -> Iterator[tuple[int, int]]:
    """Return number and offset of each request of one of several processes: every `parts`-th, from `part` on."""
    return islice(enumerate(offsets_ns), part, None, parts)


def is_played_once(load: Load) -> bool:
    """Return whether a load ends by itself."""
    return isinstance(load, Schedule | Ramp | PeriodicConcurrency)


def check_load(load: Load) -> None:
    """Raise InferError(INVALID_ARG) for a load that makes no sense; the message names the value and the fix."""
    if isinstance(load, Concurrency):
        if not 1 <= load.value <= MAX_CONCURRENCY:
            raise invalid_argument(f"concurrency is {load.value}; expected 1 to {MAX_CONCURRENCY}")
    elif isinstance(load, PeriodicConcurrency):
        _check_groups(load)
    elif isinstance(load, RequestRate):
        if not MIN_RATE_PER_S <= load.per_s <= MAX_RATE_PER_S:
            raise invalid_argument(
                f"request rate is {load.per_s:g}/s; expected {MIN_RATE_PER_S:g} to {MAX_RATE_PER_S:g}"
            )
    elif isinstance(load, Intervals):
        if not load.gaps_ns or min(load.gaps_ns) < 0 or not any(load.gaps_ns):
            raise invalid_argument("request intervals are empty, negative or all 0; expected a gap over 0")
        if max(load.gaps_ns) > _MAX_GAP_NS:
            raise invalid_argument(f"a request interval is {max(load.gaps_ns)} ns; expected at most 100 days")
    elif isinstance(load, Schedule):
        _check_schedule(load.offsets_ns)
    else:
        _check_phases(load.phases)


def _check_groups(load: PeriodicConcurrency) -> None:
    if not 1 <= load.start <= load.end <= MAX_CONCURRENCY or load.step < 1 or load.responses < 1:
        raise invalid_argument(
            f"periodic concurrency goes from {load.start} to {load.end} by {load.step} after {load.responses} "
            f"responses; expected a start of at least 1, an end from the start to {MAX_CONCURRENCY}, and a step and "
            "a number of responses of at least 1"
        )
    if (load.end - load.start) % load.step:
        raise invalid_argument(
            f"periodic concurrency goes from {load.start} to {load.end} by {load.step}; "
            "expected a difference that is a multiple of the step"
        )


def _check_schedule(offsets_ns: Sequence[int]) -> None:
    if not offsets_ns or offsets_ns[0] < 0:
        raise invalid_argument("the schedule is empty or begins before 0; expected offsets of 0 and more")
    for index in range(1, len(offsets_ns)):
        if offsets_ns[index] < offsets_ns[index - 1]:
            raise invalid_argument(
                f"entry {index} of the schedule is {offsets_ns[index]} ns, before the entry ahead of it "
                f"({offsets_ns[index - 1]} ns); sort the schedule"
            )


def _check_phases(phases: Sequence[Phase]) -> None:
    for index, phase in enumerate(phases):
        rates = (phase.start_per_s, phase.end_per_s)
        if not 0 < phase.duration_s < math.inf or min(rates) < 0 or max(rates) > MAX_RATE_PER_S:
            raise invalid_argument(
                f"phase {index} of the ramp lasts {phase.duration_s:g} s from {rates[0]:g}/s to {rates[1]:g}/s; "
                f"expected a duration over 0 and rates of 0 to {MAX_RATE_PER_S:g}"
            )
    if not sum(_requests(phase) for phase in phases) > 0:
        raise invalid_argument("the ramp sends nothing; expected a phase with a rate over 0")


def _poisson(seed: int) -> Iterator[float]:
    """Return arrivals of a Poisson process of rate 1."""
    draw = random.Random(seed).expovariate
    total = 0.0
    while True:
        total += draw(1.0)
        yield total


def _ramp(phases: Sequence[Phase], counts: Iterator[float]) -> Iterator[int]:
    """Return the moments at which the integral of the rate reaches `counts`."""
    remaining = iter(phases)
    phase = next(remaining)
    begin_count, begin_s = 0.0, 0.0
    for each in counts:
        while each - begin_count >= _requests(phase):
            begin_count += _requests(phase)
            begin_s += phase.duration_s
            following = next(remaining, None)
            if following is None:
                return
            phase = following
        yield int((begin_s + _seconds(phase, each - begin_count)) * _S)


def _requests(phase: Phase) -> float:
    return phase.duration_s * (phase.start_per_s + phase.end_per_s) / 2


def _seconds(phase: Phase, requests: float) -> float:
    """Return after how long a phase has sent a number of requests.

    The number sent by t is `start * t + slope * t**2 / 2`; this form of the root does not cancel for small slopes.
    """
    if requests <= 0:
        return 0.0
    slope = (phase.end_per_s - phase.start_per_s) / phase.duration_s
    root = math.sqrt(max(phase.start_per_s**2 + 2 * slope * requests, 0.0))
    return min(2 * requests / (phase.start_per_s + root), phase.duration_s)

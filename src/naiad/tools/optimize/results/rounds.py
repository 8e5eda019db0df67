"""Figures of rounds that finalists take in turns: medians, and the ratios of two finalists in the same rounds.

A ratio of the same round does not depend on what the machine did in other rounds. Its interval is that of the median,
from the order of the values (Conover 1999, 3.2): one round that another program has disturbed does not count.
"""

import math
import statistics
from collections.abc import Callable, Sequence

from naiad.tools.measure.result import Interval
from naiad.tools.optimize.results.candidate_measurement import Round

ROUNDS = 9
"""The fewest rounds of a comparison, of models that are not too slow."""
_OUTSIDE = 0.025
"""Probability on each side of an interval."""
_NARROW = 0.03
"""Half of the width of a ratio's interval, as a share, that is narrow enough."""
MOST_OTHER_CORES = 0.3
"""Cores that other programs may use before times of requests say too much about them."""


def over_rounds(values: Sequence[float]) -> Interval:
    """Return the median of rounds with its confidence interval.

    Of 9 rounds the second and the eighth value are the bounds, 96 %; of 5 rounds the least and the greatest, 94 %.
    """
    ordered = sorted(values)
    outside = _outside(len(ordered))
    return Interval(statistics.median(ordered), ordered[outside], ordered[-1 - outside])


def ratios(one: Sequence[float], two: Sequence[float]) -> Interval:
    """Return the median of `one` by `two` over the rounds that both have."""
    return over_rounds([first / second if second else math.inf for first, second in zip(one, two, strict=False)])


def other_cores(rounds: Sequence[Round]) -> float:
    """Return the cores that other programs have used, the median over the rounds."""
    return statistics.median(each.other_cores for each in rounds) if rounds else 0.0


def is_settled(finalists: Sequence[Sequence[Round]], base: int) -> bool:
    """Return whether more rounds would not show which finalist is better than that at the place `base`, the source.

    That is so if each ratio excludes 1 or is narrow: of times on an idle machine, of CPU time on a busy one.
    """
    others = [rounds for place, rounds in enumerate(finalists) if place != base and rounds]
    if not others or not finalists[base]:
        return True
    is_busy = max(map(other_cores, finalists)) > MOST_OTHER_CORES
    figures: Sequence[Callable[[Round], float]] = (
        [_cpu] if is_busy else [lambda each: each.latency_us, lambda each: each.throughput]
    )
    return all(
        _is_clear(ratios([figure(each) for each in rounds], [figure(each) for each in finalists[base]]))
        for rounds in others
        for figure in figures
    )


def _cpu(each: Round) -> float:
    return each.cpu_us


def _is_clear(ratio: Interval) -> bool:
    return ratio.low > 1 or ratio.high < 1 or ratio.half_width_share < _NARROW


def _outside(count: int) -> int:
    """Return how many values on each side are outside of the interval of the median."""
    below, outside = 0.0, 0
    while True:
        below += math.comb(count, outside) / 2**count
        if below > _OUTSIDE:
            return max(0, outside - 1)
        outside += 1

"""Mutates the corpus of a target for some time; needs nothing but Python.

Inputs that lead to an outcome that was not seen before join the corpus of the run.
"""

import sys
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from random import Random

from fuzz.target import Target
from fuzz.watch import MIB_GROWTH, MemoryGrowthError, alarmed, checked, resident_mib

_MAX_POOL = 2000
_CHECKS_PER_LOOK = 64


@dataclass
class Report:
    """What a campaign has done."""

    checks: int
    outcomes: int
    seconds: float
    grown_mib: int


class Failure(Exception):  # noqa: N818 - it carries an input, its cause is the error
    """An input that must be looked at."""

    def __init__(self, data: bytes) -> None:
        super().__init__(f"input of {len(data)} bytes: {data[:200]!r}")
        self.data = data


def run(
    target: Target,
    seconds: float,
    seed: int = 0,
    *,
    most_checks: int = sys.maxsize,
    keep: Callable[[bytes], object] = bool,
) -> Report:
    """Check the corpus of `target`, then changed inputs, for so long or so many of them.

    `keep` is called with each input before it is checked. Raises Failure at the first finding, MemoryGrowthError at
    the end. Equal seeds give equal inputs.
    """
    random = Random(seed)
    pool = list(target.corpus())
    # Hashes: an outcome may be large, and what is kept of it must not look like a leak of the target.
    seen: set[int] = set()
    began = time.monotonic()
    settled_mib = 0
    checks = 0
    with alarmed():
        for data in list(pool):
            keep(data)
            seen.add(hash(_check(target, data)))
            checks += 1
        while checks < most_checks and (elapsed := time.monotonic() - began) < seconds:
            if not settled_mib and elapsed > seconds / 5:
                settled_mib = resident_mib()
            for _ in range(_CHECKS_PER_LOOK):
                data = target.mutate(random.choice(pool), random)
                keep(data)
                _learn(data, _check(target, data), random, pool, seen)
            checks += _CHECKS_PER_LOOK
    grown_mib = resident_mib() - settled_mib if settled_mib else 0
    if grown_mib > MIB_GROWTH:
        raise MemoryGrowthError(f"memory grew by {grown_mib} MiB over {checks} inputs")
    return Report(checks, len(seen), time.monotonic() - began, grown_mib)


def _learn(data: bytes, outcome: Hashable, random: Random, pool: list[bytes], seen: set[int]) -> None:
    key = hash(outcome)
    if key in seen:
        return
    if len(seen) < 50 * _MAX_POOL:
        seen.add(key)
    if len(pool) < _MAX_POOL:
        pool.append(data)
    else:
        pool[random.randrange(_MAX_POOL)] = data


def _check(target: Target, data: bytes) -> Hashable:
    try:
        return checked(target, data)
    except Exception as error:
        raise Failure(data) from error

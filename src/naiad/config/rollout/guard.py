"""The guard of a rollout: from counts and a time to a decision. Pure: it has no clock.

Counts only grow; a `GuardWindow` keeps the recent ones, so that an error in the first minute does not decide after an
hour, and a failure after an hour of success is noticed within the last few hundred requests.
"""

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from naiad.config.rollout.rollout_declaration import FULL_PERCENT, Guard
from naiad.config.rollout.state import RolloutState, is_last_step, weights_left

_SUB_BITS = 5
_SUB_MASK = (1 << _SUB_BITS) - 1
_EXACT_BITS = _SUB_BITS + 1
_MORE_ERRORS = 0.01
"""Without `max_error_rate`: by how much more the canary may fail than stable. A p99 says nothing about more."""
_MOST_ERRORS = 0.1
"""The same while it is not known how often stable fails."""
_DEVIATIONS = 3
"""Chance that is allowed on top."""

Latencies = Mapping[int, int]
"""Bucket to its number of requests."""

EQUAL, DIFFERENT, FAILED, SKIPPED = "equal", "different", "failed", "skipped"
SHADOW_RESULTS = (EQUAL, DIFFERENT, FAILED, SKIPPED)


def bucket_of(duration_ns: int) -> int:
    """Return the bucket of a latency: 32 to a power of two, so that one is 3 % wide."""
    bits = duration_ns.bit_length()
    if bits <= _EXACT_BITS:
        return duration_ns if duration_ns > 0 else 0
    return (bits << _SUB_BITS) | ((duration_ns >> (bits - _EXACT_BITS)) & _SUB_MASK)


def upper_ns(bucket: int) -> int:
    """Return the largest latency of a bucket."""
    if bucket < 1 << _EXACT_BITS:
        return bucket
    bits, part = bucket >> _SUB_BITS, bucket & _SUB_MASK
    return ((_SUB_MASK + 2 + part) << (bits - _EXACT_BITS)) - 1


def quantile_ns(latencies: Latencies, share: float) -> int | None:
    """Return the latency that a share of the requests does not exceed, at most 3 % too high; None without any."""
    left = sum(latencies.values()) * share
    found: int | None = None
    for bucket in sorted(latencies):
        found = upper_ns(bucket)
        left -= latencies[bucket]
        if left <= 0:
            break
    return found


@dataclass(frozen=True, slots=True)
class SideCounts:
    """The requests of one side, with responses."""

    requests: int = 0
    errors: int = 0
    latencies: Latencies = field(default_factory=dict)
    """Of the successful ones, by bucket."""

    @property
    def error_rate(self) -> float:
        """Errors / requests; 0 without requests."""
        return self.errors / self.requests if self.requests else 0.0

    @property
    def successes(self) -> int:
        """Requests with a latency."""
        return self.requests - self.errors

    def __add__(self, other: "SideCounts") -> "SideCounts":
        return SideCounts(
            self.requests + other.requests, self.errors + other.errors, _sum(self.latencies, other.latencies, 1)
        )

    def __sub__(self, other: "SideCounts") -> "SideCounts":
        return SideCounts(
            self.requests - other.requests, self.errors - other.errors, _sum(self.latencies, other.latencies, -1)
        )


def _sum(one: Latencies, other: Latencies, sign: int) -> dict[int, int]:
    total = dict(one)
    for bucket, count in other.items():
        total[bucket] = total.get(bucket, 0) + sign * count
    return {bucket: count for bucket, count in total.items() if count}


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """The counts of one state of a rollout."""

    era: tuple[str, int]
    """`RolloutState.era`."""
    stable: SideCounts = field(default_factory=SideCounts)
    canary: SideCounts = field(default_factory=SideCounts)
    shadow: Mapping[str, int] = field(default_factory=dict)
    """Result to the number of shadow copies, see `SHADOW_RESULTS`."""

    def __add__(self, other: "RolloutCounts") -> "RolloutCounts":
        """Return the sum; for different states the counts of the later one."""
        if self.era != other.era:
            return self if self.era[1] >= other.era[1] else other
        shadow = {name: self.shadow.get(name, 0) + other.shadow.get(name, 0) for name in SHADOW_RESULTS}
        return RolloutCounts(self.era, self.stable + other.stable, self.canary + other.canary, shadow)

    def __sub__(self, other: "RolloutCounts") -> "RolloutCounts":
        shadow = {name: self.shadow.get(name, 0) - other.shadow.get(name, 0) for name in SHADOW_RESULTS}
        return RolloutCounts(self.era, self.stable - other.stable, self.canary - other.canary, shadow)

    def is_behind(self, other: "RolloutCounts") -> bool:
        """Return whether any count is smaller than that of `other`."""
        sides = ((self.stable, other.stable), (self.canary, other.canary))
        return self.compared < other.compared or any(one.requests < two.requests for one, two in sides)

    @property
    def compared(self) -> int:
        """Shadow copies with a result that counts."""
        return sum(self.shadow.get(name, 0) for name in (EQUAL, DIFFERENT, FAILED))

    @property
    def different_share(self) -> float:
        """Shadow copies with a different or a failed response / compared ones; 0 without any."""
        unlike = self.shadow.get(DIFFERENT, 0) + self.shadow.get(FAILED, 0)
        return unlike / self.compared if self.compared else 0.0


class GuardWindow:
    """The recent part of growing counts: the last `min_requests` of each side, and at most twice as many.

    Stable gets few requests next to a canary of 90 %, and none next to one of 100 %: its last requests may be older,
    also of the step before.
    """

    def __init__(self, min_requests: int, begins: RolloutCounts, stable_before: SideCounts | None = None) -> None:
        """`stable_before` are the recent requests of stable when the counts began."""
        self._min_requests = min_requests
        self._old = begins
        self._new = begins
        self._stable_old = self._stable_new = begins.stable
        self._stable_before = stable_before or SideCounts()
        self.stable = self._stable_before
        """The recent requests of stable."""

    def observe(self, counts: RolloutCounts) -> RolloutCounts:
        """Return the recent part of `counts`."""
        if counts.is_behind(self._new):
            # A process or a version has been replaced, and its counts with it.
            self._old = self._new = counts
            self._stable_old = self._stable_new = counts.stable
        latest = counts - self._new
        if max(latest.canary.requests, latest.compared) >= self._min_requests:
            self._old, self._new = self._new, counts
        self.stable = self._recent_stable(counts.stable)
        return replace(counts - self._old, stable=self.stable)

    def _recent_stable(self, stable: SideCounts) -> SideCounts:
        if (stable - self._stable_new).requests >= self._min_requests:
            self._stable_old, self._stable_new = self._stable_new, stable
        recent = stable - self._stable_old
        return recent if recent.requests >= self._min_requests else self._stable_before + recent


class GuardVerdict(enum.Enum):
    """What to do with a rollout."""

    KEEP = enum.auto()
    STEP = enum.auto()
    """Give the canary the weight of the next step."""
    PROMOTE = enum.auto()
    ROLL_BACK = enum.auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with its cause."""

    verdict: GuardVerdict
    limit: str = ""
    """The violated limit, for metrics."""
    text: str = ""
    """The figures."""


_KEEP = Decision(GuardVerdict.KEEP)


def is_guarded(state: RolloutState) -> bool:
    """Return whether decisions about a state can have an effect."""
    rollout = state.rollout
    if rollout is None or rollout.canary is None:
        return False
    return state.step is not None or (rollout.guard is not None and bool(rollout.weight or rollout.shadow))


def decide(state: RolloutState, counts: RolloutCounts, since_ns: int, now_ns: int) -> Decision:
    """Return what to do. `counts` are recent ones of this state, `since_ns` is when the state began.

    A violation decides at once. A step ends after its time, once the guard has seen enough requests.
    """
    rollout = state.rollout
    if rollout is None or rollout.canary is None:
        return _KEEP
    guard = rollout.guard
    if guard is not None:
        for violation in _violations(guard, counts):
            return violation
    if rollout.steps is None or state.step is None or now_ns - since_ns < rollout.steps.every_s * 1e9:
        return _KEEP
    if guard is not None and not _has_enough(guard, counts, has_stable=rollout.weight < FULL_PERCENT):
        return _KEEP
    text = f"after {(now_ns - since_ns) / 1e9:.0f} s and {counts.canary.requests} recent requests of the canary"
    if weights_left(state):
        return Decision(GuardVerdict.STEP, text=text)
    return Decision(GuardVerdict.PROMOTE, text=text) if is_last_step(state) else _KEEP


def _has_enough(guard: Guard, counts: RolloutCounts, *, has_stable: bool) -> bool:
    """Return whether each limit has been judged. A stable version without requests has nothing to compare with."""
    canary, minimum = counts.canary, guard.min_requests
    if has_stable and guard.needs_shadow and counts.compared < minimum:
        return False
    if has_stable and guard.max_p99_ratio is not None and counts.stable.successes < minimum:
        return False
    has_latency = guard.max_p99_ms is not None or guard.max_p99_ratio is not None
    return (canary.successes if has_latency else canary.requests) >= minimum


def _violations(guard: Guard, counts: RolloutCounts) -> Iterator[Decision]:
    canary, minimum = counts.canary, guard.min_requests
    limit = guard.max_error_rate
    # Also before there are enough requests, if successes of all missing ones would not help.
    if limit is not None and canary.errors and canary.errors > limit * max(minimum, canary.requests):
        yield _failing(canary, f"max_error_rate {limit}")
    if limit is None and canary.requests >= minimum:
        yield from _more_failures(guard, counts)
    if canary.requests >= minimum:
        yield from _latency_violations(guard, counts)
    share = guard.max_different_share
    if share is not None and counts.compared >= minimum and counts.different_share > share:
        text = (
            f"{counts.different_share:.2%} of {counts.compared} shadow copies had a different or failed response "
            f"(max_different_share {share})"
        )
        yield Decision(GuardVerdict.ROLL_BACK, "different_share", text)


def _failing(canary: SideCounts, limit: str) -> Decision:
    text = f"{canary.errors} of {canary.requests} requests failed ({canary.error_rate:.2%}, {limit})"
    return Decision(GuardVerdict.ROLL_BACK, "error_rate", text)


def _more_failures(guard: Guard, counts: RolloutCounts) -> Iterator[Decision]:
    """Without a limit of errors: failures are in no latency, so a canary that fails would look fast."""
    canary, stable = counts.canary, counts.stable
    if stable.requests < guard.min_requests:
        if canary.error_rate > _MOST_ERRORS:
            yield _failing(canary, f"over {_MOST_ERRORS:.0%}, and there is no max_error_rate")
        return
    share = stable.error_rate + _MORE_ERRORS
    share += _DEVIATIONS * math.sqrt(share * (1 - min(share, 1)) / canary.requests)
    if canary.error_rate > share:
        yield _failing(canary, f"stable {stable.error_rate:.2%}, and there is no max_error_rate")


def _latency_violations(guard: Guard, counts: RolloutCounts) -> Iterator[Decision]:
    canary_ns = quantile_ns(counts.canary.latencies, 0.99)
    if canary_ns is None:
        return
    limit_ms = guard.max_p99_ms
    if limit_ms is not None and canary_ns / 1e6 > limit_ms:
        text = f"p99 of {counts.canary.requests} requests was {canary_ns / 1e6:.2f} ms (max_p99_ms {limit_ms:g})"
        yield Decision(GuardVerdict.ROLL_BACK, "p99", text)
    ratio = guard.max_p99_ratio
    stable_ns = quantile_ns(counts.stable.latencies, 0.99)
    if ratio is None or stable_ns is None or counts.stable.successes < guard.min_requests:
        return
    if canary_ns > ratio * stable_ns:
        text = (
            f"p99 of {counts.canary.requests} requests was {canary_ns / 1e6:.2f} ms, {canary_ns / stable_ns:.2f} "
            f"times that of stable, {stable_ns / 1e6:.2f} ms (max_p99_ratio {ratio:g})"
        )
        yield Decision(GuardVerdict.ROLL_BACK, "p99_ratio", text)

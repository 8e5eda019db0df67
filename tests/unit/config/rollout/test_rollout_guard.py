"""The guard of a rollout: which counts lead to which decision."""

from dataclasses import replace

import pytest

from naiad.config.rollout.guard import (
    GuardVerdict,
    GuardWindow,
    RolloutCounts,
    SideCounts,
    bucket_of,
    decide,
    is_guarded,
    quantile_ns,
    upper_ns,
)
from naiad.config.rollout.rollout_declaration import Guard, Rollout, Steps
from naiad.config.rollout.state import RolloutState, started, stepped

MS = 1_000_000
S = 1_000_000_000


def side(requests: int, errors: int = 0, latency_ms: float = 1.0) -> SideCounts:
    return SideCounts(requests, errors, {bucket_of(int(latency_ms * MS)): requests - errors})


def counts(canary: SideCounts, stable: SideCounts | None = None, **shadow: int) -> RolloutCounts:
    return RolloutCounts(("", 0), stable or side(1000), canary, shadow)


def guarded(**limits: float) -> RolloutState:
    return started(Rollout(1, 2, weight=10.0, shadow=10.0, guard=Guard(100, **limits)))


def verdict(state: RolloutState, found: RolloutCounts, age_s: float = 1.0) -> GuardVerdict:
    return decide(state, found, 0, int(age_s * S)).verdict


class TestViolations:
    def test_error_rate_above_its_limit(self) -> None:
        state = guarded(max_error_rate=0.02)
        assert verdict(state, counts(side(1000, 20))) is GuardVerdict.KEEP
        found = decide(state, counts(side(1000, 21)), 0, S)
        assert (found.verdict, found.limit) == (GuardVerdict.ROLL_BACK, "error_rate")
        assert "21 of 1000 requests failed (2.10%, max_error_rate 0.02)" in found.text

    def test_certain_violation_needs_no_minimum(self) -> None:
        state = guarded(max_error_rate=0.02)
        assert verdict(state, counts(side(3, 2))) is GuardVerdict.KEEP
        assert verdict(state, counts(side(3, 3))) is GuardVerdict.ROLL_BACK

    def test_limit_of_zero_allows_no_error(self) -> None:
        state = guarded(max_error_rate=0.0)
        assert verdict(state, counts(side(500))) is GuardVerdict.KEEP
        assert verdict(state, counts(side(1, 1))) is GuardVerdict.ROLL_BACK

    def test_p99_above_its_limit(self) -> None:
        state = guarded(max_p99_ms=50.0)
        assert verdict(state, counts(side(100, latency_ms=45))) is GuardVerdict.KEEP
        assert verdict(state, counts(side(99, latency_ms=60))) is GuardVerdict.KEEP  # too few
        found = decide(state, counts(side(100, latency_ms=60)), 0, S)
        assert (found.verdict, found.limit) == (GuardVerdict.ROLL_BACK, "p99")
        assert "max_p99_ms 50" in found.text

    def test_p99_against_stable(self) -> None:
        state = guarded(max_p99_ratio=2.0)
        assert verdict(state, counts(side(100, latency_ms=19), side(100, latency_ms=10))) is GuardVerdict.KEEP
        assert verdict(state, counts(side(100, latency_ms=25), side(99, latency_ms=10))) is GuardVerdict.KEEP
        found = decide(state, counts(side(100, latency_ms=25), side(100, latency_ms=10)), 0, S)
        assert (found.verdict, found.limit) == (GuardVerdict.ROLL_BACK, "p99_ratio")

    def test_share_of_different_copies(self) -> None:
        state = guarded(max_different_share=0.1)
        assert verdict(state, counts(side(0), equal=90, different=5, failed=5)) is GuardVerdict.KEEP
        assert verdict(state, counts(side(0), equal=10, different=20, skipped=900)) is GuardVerdict.KEEP  # too few
        found = decide(state, counts(side(0), equal=89, different=6, failed=5), 0, S)
        assert (found.verdict, found.limit) == (GuardVerdict.ROLL_BACK, "different_share")


class TestFailuresWithoutALimit:
    """A guard without max_error_rate: failed requests have no latency, and must not pass as fast ones."""

    @pytest.mark.parametrize(
        "limits", [{"max_p99_ms": 50.0}, {"max_p99_ratio": 2.0}, {"max_different_share": 0.1}], ids=str
    )
    def test_canary_that_fails_more_than_stable(self, limits: dict[str, float]) -> None:
        state = guarded(**limits)
        for errors in (100, 20, 5):
            found = decide(state, counts(side(100, errors), side(100)), 0, S)
            assert (found.verdict, found.limit) == (GuardVerdict.ROLL_BACK, "error_rate")
        assert "5 of 100 requests failed (5.00%, stable 0.00%, and there is no max_error_rate)" in found.text

    def test_canary_that_fails_as_stable_does(self) -> None:
        state = guarded(max_p99_ms=50.0)
        assert verdict(state, counts(side(100, 3), side(1000))) is GuardVerdict.KEEP  # chance
        assert verdict(state, counts(side(1000, 220), side(1000, 200))) is GuardVerdict.KEEP
        assert verdict(state, counts(side(1000, 260), side(1000, 200))) is GuardVerdict.ROLL_BACK
        assert verdict(state, counts(side(100, 100), side(100, 100))) is GuardVerdict.KEEP

    def test_many_requests_fail_before_stable_is_known(self) -> None:
        state = guarded(max_p99_ms=50.0)
        assert verdict(state, counts(side(100, 10), side(99))) is GuardVerdict.KEEP
        assert verdict(state, counts(side(100, 11), side(99))) is GuardVerdict.ROLL_BACK
        assert verdict(state, counts(side(99, 99), side(99))) is GuardVerdict.KEEP  # too few

    def test_limit_of_the_user_decides_alone(self) -> None:
        state = guarded(max_p99_ms=50.0, max_error_rate=0.5)
        assert verdict(state, counts(side(1000, 400))) is GuardVerdict.KEEP


class TestSteps:
    STATE = started(Rollout(1, 2, steps=Steps((5.0, 100.0), 60.0)))

    def test_step_lasts_its_time(self) -> None:
        assert verdict(self.STATE, counts(side(0)), 59) is GuardVerdict.KEEP
        assert verdict(self.STATE, counts(side(0)), 60) is GuardVerdict.STEP

    def test_last_step_promotes(self) -> None:
        assert verdict(stepped(self.STATE, ""), counts(side(0)), 60) is GuardVerdict.PROMOTE

    def test_step_below_everything_does_not_promote(self) -> None:
        state = started(Rollout(1, 2, steps=Steps((5.0, 50.0), 60.0)))
        assert verdict(stepped(state, ""), counts(side(0)), 600) is GuardVerdict.KEEP

    def test_step_waits_for_enough_requests(self) -> None:
        rollout = Rollout(1, 2, steps=Steps((5.0, 100.0), 60.0), guard=Guard(100, max_error_rate=0.1))
        assert verdict(started(rollout), counts(side(99)), 600) is GuardVerdict.KEEP
        assert verdict(started(rollout), counts(side(100)), 600) is GuardVerdict.STEP

    def test_step_waits_for_comparisons(self) -> None:
        guard = Guard(100, max_different_share=0.1)
        state = started(Rollout(1, 2, shadow=5.0, steps=Steps((5.0, 100.0), 60.0), guard=guard))
        assert verdict(state, counts(side(100), equal=99), 600) is GuardVerdict.KEEP
        assert verdict(state, counts(side(100), equal=100), 600) is GuardVerdict.STEP

    @pytest.mark.parametrize("limit", ["max_p99_ms", "max_p99_ratio"])
    def test_step_waits_for_latencies(self, limit: str) -> None:
        guard = Guard(100, max_error_rate=0.6, **{limit: 50.0})
        state = started(Rollout(1, 2, steps=Steps((5.0, 100.0), 60.0), guard=guard))
        assert verdict(state, counts(side(150, 51)), 600) is GuardVerdict.KEEP
        assert verdict(state, counts(side(150, 50)), 600) is GuardVerdict.STEP

    def test_step_waits_for_latencies_of_stable(self) -> None:
        guard = Guard(100, max_p99_ratio=2.0)
        state = started(Rollout(1, 2, steps=Steps((90.0, 100.0), 60.0), guard=guard))
        assert verdict(state, counts(side(200), side(99)), 600) is GuardVerdict.KEEP
        assert verdict(state, counts(side(200), side(100)), 600) is GuardVerdict.STEP

    def test_last_step_waits_for_nothing_of_stable(self) -> None:
        guard = Guard(100, max_different_share=0.1, max_p99_ratio=2.0)
        state = started(Rollout(1, 2, shadow=5.0, steps=Steps((5.0, 100.0), 60.0), guard=guard))
        assert verdict(stepped(state, ""), counts(side(100), side(0)), 600) is GuardVerdict.PROMOTE

    def test_violation_precedes_the_step(self) -> None:
        rollout = Rollout(1, 2, steps=Steps((5.0, 100.0), 60.0), guard=Guard(100, max_error_rate=0.1))
        assert verdict(started(rollout), counts(side(100, 50)), 600) is GuardVerdict.ROLL_BACK


def test_rollouts_that_decisions_cannot_change() -> None:
    assert is_guarded(guarded(max_p99_ms=1.0))
    assert is_guarded(TestSteps.STATE)
    assert not is_guarded(started(Rollout(1)))
    assert not is_guarded(started(Rollout(1, 2, weight=10.0)))
    assert not is_guarded(started(Rollout(1, 2, guard=Guard(max_p99_ms=1.0))))
    assert not is_guarded(RolloutState(None))


class TestWindow:
    def test_old_requests_do_not_count(self) -> None:
        window = GuardWindow(100, counts(side(0)))
        window.observe(counts(side(10_000, 5000)))
        window.observe(counts(side(10_100, 5000)))
        recent = window.observe(counts(side(10_250, 5050)))
        assert (recent.canary.requests, recent.canary.errors) == (150, 50)

    def test_short_windows_grow_to_the_minimum(self) -> None:
        window = GuardWindow(100, counts(side(0)))
        sizes = [window.observe(counts(side(total))).canary.requests for total in range(10, 1000, 10)]
        assert min(sizes[9:]) >= 100
        assert max(sizes) <= 200

    def test_stable_beside_a_large_canary_keeps_the_minimum(self) -> None:
        window = GuardWindow(100, counts(side(0), side(0)))
        found = [
            window.observe(counts(side(9 * total), side(total))).stable.requests for total in range(10, 1000, 10)
        ]
        assert min(found[9:]) >= 100
        assert max(found) <= 200

    def test_stable_without_requests_is_judged_by_those_before(self) -> None:
        window = GuardWindow(100, counts(side(0), side(0)))
        window.observe(counts(side(20), side(150, latency_ms=10)))
        later = GuardWindow(100, counts(side(0), side(0)), window.stable)
        recent = later.observe(counts(side(100, latency_ms=25), side(0)))
        assert verdict(guarded(max_p99_ratio=2.0), recent) is GuardVerdict.ROLL_BACK

    def test_replaced_counts_begin_again(self) -> None:
        window = GuardWindow(100, counts(side(0)))
        window.observe(counts(side(500, 3)))
        assert window.observe(counts(side(50, 1))).canary.requests == 0
        assert window.observe(counts(side(60, 2))).canary.errors == 1


def test_sum_of_different_states_is_the_later() -> None:
    old = counts(side(10))
    new = replace(counts(side(3)), era=("", 1))
    assert old + new == new
    assert new + old == new
    assert (old + old).canary.requests == 20


@pytest.mark.parametrize("duration_ns", [0, 1, 63, 64, 65, 1000, 123_456_789, 10**12])
def test_bucket_is_at_most_three_percent_wide(duration_ns: int) -> None:
    found = upper_ns(bucket_of(duration_ns))
    assert duration_ns <= found <= duration_ns * 1.032


def test_quantile_of_nothing_is_none() -> None:
    assert quantile_ns({}, 0.99) is None
    assert quantile_ns({bucket_of(MS): 99, bucket_of(100 * MS): 1}, 0.99) == upper_ns(bucket_of(MS))
    assert quantile_ns({bucket_of(MS): 98, bucket_of(100 * MS): 2}, 0.99) == upper_ns(bucket_of(100 * MS))

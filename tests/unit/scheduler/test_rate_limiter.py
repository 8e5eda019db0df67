"""The rate limiter: rules of Triton's documentation, and reports of its users."""

from collections import Counter

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.options.execution_limits import ResourceAmount
from naiad.scheduler.rate_limiter import (
    EXECUTING,
    GRANTED,
    IDLE,
    WAITING,
    Claim,
    RateLimiter,
    Resource,
    ResourceUsage,
)

GLOBAL = Resource("R", None)
OTHER = Resource("S", None)


def claims_of(limiter: RateLimiter, *needs: dict[Resource, int], priorities: tuple[int, ...] = ()) -> list[Claim]:
    """Register a claim for each of `needs`."""
    padded = [*priorities, *[1] * len(needs)]
    claims = [Claim(need, priority) for need, priority in zip(needs, padded, strict=False)]
    limiter.register(claims)
    return claims


def held(limiter: RateLimiter) -> dict[Resource, int]:
    return {usage.resource: usage.held for usage in limiter.usage()}


class TestTurns:
    def test_instance_waits_until_all_resources_are_free(self):
        """Triton: an execution begins when every resource of its instance is available (I-09)."""
        # R1
        limiter = RateLimiter()
        first, second = claims_of(limiter, {GLOBAL: 2, OTHER: 1}, {GLOBAL: 1})
        assert limiter.ask(first) == [first]
        limiter.start(first)
        assert limiter.ask(second) == []
        assert (first.state, second.state) == (EXECUTING, WAITING)
        assert limiter.release(first) == [second]
        assert (first.state, second.state) == (IDLE, GRANTED)

    def test_waiting_claim_holds_no_resource(self):
        # R1
        limiter = RateLimiter()
        first, both = claims_of(limiter, {GLOBAL: 1}, {GLOBAL: 1, OTHER: 1})
        assert limiter.ask(first) == [first]
        assert limiter.ask(both) == []
        assert [(usage.held, usage.waiting) for usage in limiter.usage()] == [(1, 1), (0, 1)]
        assert limiter.release(first) == [both]
        assert [(usage.held, usage.waiting) for usage in limiter.usage()] == [(1, 0), (1, 0)]

    def test_default_amount_is_largest_claim(self):
        """Triton: the default of --rate-limit-resource is the maximum over all instances."""
        # R3
        limiter = RateLimiter()
        claims = claims_of(limiter, {GLOBAL: 3}, {GLOBAL: 1}, {GLOBAL: 1})
        assert limiter.usage() == [ResourceUsage(GLOBAL, 3, 0, 0)]
        assert limiter.ask(claims[1]) == [claims[1]]
        assert limiter.ask(claims[2]) == [claims[2]]

    @pytest.mark.parametrize(("priority", "share"), [(1, 1 / 2), (2, 1 / 3), (4, 1 / 5)])
    def test_share_of_executions_is_inverse_to_priority(self, priority: int, share: float):
        """Triton: the lowest `exec_count * priority` goes first (I-10); here among instances of different models."""
        # R2
        limiter = RateLimiter()
        first, second = claims_of(limiter, {GLOBAL: 1}, {GLOBAL: 1}, priorities=(1, priority))
        picks: Counter[Claim] = Counter()
        granted = [*limiter.ask(first), *limiter.ask(second)]
        for _ in range(10_000):
            (claim,) = granted
            picks[claim] += 1
            limiter.start(claim)
            granted = limiter.ask(claim)
        assert picks[second] / 10_000 == pytest.approx(share, rel=0.05)

    @pytest.mark.parametrize("asked_first", [0, 1])
    def test_ties_fall_as_in_triton(self, asked_first: int):
        """Triton: loading has counted twice, so that priority 2 has 35 executions when priority 1 has 72."""
        # R2
        limiter = RateLimiter()
        claims = claims_of(limiter, {GLOBAL: 4}, {GLOBAL: 2}, priorities=(1, 2))
        limiter.ask(claims[asked_first])
        limiter.start(claims[asked_first])
        limiter.ask(claims[1 - asked_first])
        running, done = claims[asked_first], Counter[Claim]()
        while done[claims[0]] < 72:
            done[running] += 1
            (running,) = limiter.ask(running)
            limiter.start(running)
        assert done[claims[1]] == 35

    def test_limits_are_shown_as_tritons_log_does(self):
        limiter = RateLimiter()
        claims_of(limiter, {Resource("R1", None): 3, Resource("R3", 1): 1}, {Resource("R2", 0): 2})
        assert limiter.limits_text() == (
            "\nMax Resource Map===>\n\tDevice: GLOBAL\n\t\tResource: R1\t Count: 3\n"
            "\tDevice: 0\n\t\tResource: R2\t Count: 2\n\tDevice: 1\n\t\tResource: R3\t Count: 1\n"
        )

    def test_priority_zero_is_one(self):
        # R2
        assert Claim({}, 0).priority == 1

    def test_instance_that_rested_does_not_get_all_turns(self):
        # R5
        limiter = RateLimiter()
        busy, rested = claims_of(limiter, {GLOBAL: 1}, {GLOBAL: 1})
        for _ in range(1000):
            assert limiter.ask(busy) == [busy]
            limiter.start(busy)
        assert limiter.ask(rested) == []
        turns = []
        granted = limiter.ask(busy)
        for _ in range(10):
            (claim,) = granted
            turns.append(claim is busy)
            limiter.start(claim)
            granted = limiter.ask(claim)
        assert turns.count(True) == 5

    def test_large_need_is_not_starved_by_small_ones(self):
        # R5
        limiter = RateLimiter()
        large, small, tiny = claims_of(limiter, {GLOBAL: 4}, {GLOBAL: 2}, {GLOBAL: 2})
        limiter.ask(small)
        limiter.start(small)
        assert limiter.ask(large) == []
        # Two are free, but the one that waits longer needs them.
        assert limiter.ask(tiny) == []
        assert limiter.ask(small) == [large]

    def test_claim_of_other_resources_passes(self):
        # R6
        limiter = RateLimiter()
        holder, waiter, other = claims_of(limiter, {GLOBAL: 1}, {GLOBAL: 1}, {OTHER: 1})
        limiter.ask(holder)
        assert limiter.ask(waiter) == []
        assert limiter.ask(other) == [other]

    def test_cancelled_claim_makes_room(self):
        limiter = RateLimiter()
        small, large, other = claims_of(limiter, {GLOBAL: 1}, {GLOBAL: 2}, {GLOBAL: 1})
        limiter.ask(small)
        limiter.ask(large)
        assert limiter.ask(other) == []
        assert limiter.release(large) == [other]

    def test_devices_are_apart(self):
        """Triton: a resource that is not global exists once on each device."""
        # R3
        limiter = RateLimiter()
        first, second = claims_of(limiter, {Resource("R", 0): 1}, {Resource("R", 1): 1})
        assert limiter.ask(first) == [first]
        assert limiter.ask(second) == [second]

    def test_unregistered_claims_release_and_lower_limit(self):
        limiter = RateLimiter()
        large, small = claims_of(limiter, {GLOBAL: 3}, {GLOBAL: 1})
        limiter.ask(large)
        assert limiter.ask(small) == []
        assert limiter.unregister([large]) == [small]
        assert limiter.usage() == [ResourceUsage(GLOBAL, 1, 1, 0)]

    def test_claim_that_has_left_is_never_granted(self):
        limiter = RateLimiter()
        (claim,) = claims_of(limiter, {GLOBAL: 1})
        limiter.unregister([claim])
        assert limiter.ask(claim) == []
        assert claim.state == IDLE

    def test_usage_counts_those_that_wait(self):
        limiter = RateLimiter([ResourceAmount("R", 4)])
        first, second = claims_of(limiter, {GLOBAL: 3}, {GLOBAL: 2})
        limiter.ask(first)
        limiter.ask(second)
        assert limiter.usage() == [ResourceUsage(GLOBAL, 4, 3, 1)]


class TestAmounts:
    def test_more_of_it_lets_more_execute(self):
        limiter = RateLimiter([ResourceAmount("R", 2)])
        first, second = claims_of(limiter, {GLOBAL: 1}, {GLOBAL: 1})
        assert limiter.ask(first) == [first]
        assert limiter.ask(second) == [second]

    @pytest.mark.parametrize(
        ("amounts", "need"),
        [
            ([ResourceAmount("R", 3)], GLOBAL),
            ([ResourceAmount("R", 3)], Resource("R", 0)),
            # Triton: an amount for another device does not count, but for a global resource any does.
            ([ResourceAmount("R", 3), ResourceAmount("R", 9, 1)], Resource("R", 0)),
            ([ResourceAmount("R", 2, 7), ResourceAmount("R", 3, 8)], GLOBAL),
        ],
    )
    def test_need_that_can_never_be_met_is_refused(self, amounts: list[ResourceAmount], need: Resource):
        """I-11: too small an amount fails the load, with Triton's words."""
        # R4
        limiter = RateLimiter(amounts)
        with pytest.raises(InferError) as caught:
            limiter.register([Claim({need: 4})])
        assert caught.value.code is ErrorCode.INVALID_ARG
        assert (
            'Resource count for "R" is limited to 3 which will prevent scheduling of one or more model instances, '
            "the minimum required count is 4"
        ) in caught.value.message
        assert "--rate-limit-resource=R:4" in caught.value.message
        assert limiter.usage() == []

    def test_resource_that_is_not_there_is_refused(self):
        """Triton: once amounts are given, a resource that none names does not exist."""
        limiter = RateLimiter([ResourceAmount("S", 3)])
        with pytest.raises(InferError, match='"R" is limited to 0'):
            limiter.register([Claim({GLOBAL: 1})])

    def test_mixed_global_and_device_resource_is_rejected(self):
        """Triton: 'present as both global and device-specific resource'."""
        limiter = RateLimiter()
        (first,) = claims_of(limiter, {GLOBAL: 1})
        with pytest.raises(InferError, match="both global and device-specific"):
            limiter.register([Claim({Resource("R", 0): 1})])
        limiter.unregister([first])
        limiter.register([Claim({Resource("R", 0): 1})])

    def test_nothing_of_a_refused_version_remains(self):
        limiter = RateLimiter([ResourceAmount("R", 1)])
        with pytest.raises(InferError):
            limiter.register([Claim({GLOBAL: 1}), Claim({GLOBAL: 2})])
        assert held(limiter) == {}

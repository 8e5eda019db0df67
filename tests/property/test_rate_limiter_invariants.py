"""For all claims and releases: the limits hold, and no claim waits forever."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from naiad.options.execution_limits import ResourceAmount
from naiad.scheduler.rate_limiter import EXECUTING, GRANTED, IDLE, WAITING, Claim, RateLimiter, Resource
from support.long_run import examples

_RESOURCES = [Resource("A", None), Resource("B", 0), Resource("B", 1)]
_NEEDS = st.dictionaries(st.sampled_from(_RESOURCES), st.integers(1, 3), min_size=1, max_size=3)


class LimiterMachine(RuleBasedStateMachine):
    """Instances that come, ask, execute, give back and go in any order."""

    @initialize(is_limited=st.booleans())
    def start(self, is_limited):
        self.limiter = RateLimiter([ResourceAmount("A", 4), ResourceAmount("B", 3)] if is_limited else ())
        self.claims = []
        self.held_claims = set()
        """Claims that were said to be granted and have not given back."""

    def hear(self, granted):
        for claim in granted:
            assert claim not in self.held_claims, "granted twice"
            self.held_claims.add(claim)

    @rule(needs=st.lists(_NEEDS, min_size=1, max_size=3), priority=st.integers(0, 3))
    def load(self, needs, priority):
        claims = [Claim(need, priority) for need in needs]
        self.claims += claims
        self.hear(self.limiter.register(claims))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def unload(self, data):
        claim = data.draw(st.sampled_from(self.claims))
        self.claims.remove(claim)
        self.held_claims.discard(claim)
        self.hear(self.limiter.unregister([claim]))

    @precondition(lambda self: any(claim.state != GRANTED for claim in self.claims))
    @rule(data=st.data())
    def ask(self, data):
        claim = data.draw(st.sampled_from([claim for claim in self.claims if claim.state != GRANTED]))
        if claim.state == EXECUTING:
            self.held_claims.discard(claim)
        self.hear(self.limiter.ask(claim))

    @precondition(lambda self: any(claim.state == GRANTED for claim in self.claims))
    @rule(data=st.data())
    def execute(self, data):
        claim = data.draw(st.sampled_from([claim for claim in self.claims if claim.state == GRANTED]))
        assert claim in self.held_claims
        self.limiter.start(claim)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release(self, data):
        claim = data.draw(st.sampled_from(self.claims))
        self.held_claims.discard(claim)
        self.hear(self.limiter.release(claim))
        assert claim.state == IDLE

    def holders(self):
        return [claim for claim in self.claims if claim.state in (GRANTED, EXECUTING)]

    @invariant()
    def what_is_held_is_what_was_granted(self):
        if not hasattr(self, "limiter"):
            return
        assert set(self.holders()) == self.held_claims
        for usage in self.limiter.usage():
            assert usage.held == sum(claim.needs.get(usage.resource, 0) for claim in self.holders())
            assert usage.waiting == sum(
                usage.resource in claim.needs for claim in self.claims if claim.state == WAITING
            )

    @invariant()
    def requests_wait_for_a_reason(self):
        """The earliest of those that wait cannot be granted, so no resource lies idle that would let it execute."""
        waiting = [claim for claim in getattr(self, "claims", ()) if claim.state == WAITING]
        if not waiting:
            return
        free = {usage.resource: usage.limit - usage.held for usage in self.limiter.usage()}
        earliest = min(claim.turn for claim in waiting)
        for claim in waiting:
            if claim.turn == earliest:
                others = {r for c in waiting if c is not claim and c.turn == earliest for r in c.needs}
                fits = all(free[resource] >= count for resource, count in claim.needs.items())
                assert not fits or not others.isdisjoint(claim.needs)

    @invariant()
    def each_instance_gets_a_turn(self):
        """When all that is held is given back, those that wait are granted one after the other."""
        if any(claim.state == WAITING for claim in getattr(self, "claims", ())):
            assert self.holders(), "a claim waits although no resource is held"


LimiterMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30)
TestRateLimiter = LimiterMachine.TestCase

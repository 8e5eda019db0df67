"""Under overload and after it every request leaves once, and none is rejected without a reason."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from naiad.core.request import InferRequest, RequestHeader
from naiad.scheduler.direct import DirectScheduler
from naiad.scheduler.dynamic import DynamicScheduler
from naiad.scheduler.overload import INTERVAL_NS, OverloadPolicy
from support.long_run import examples
from support.scheduling import MS

_MAX_WAIT_NS = 2_000_000_000


class _Request(InferRequest):
    """A request that says what it is."""

    __slots__ = ("kind",)

    @property
    def has_begun(self):
        return self.kind == "begun"

    @property
    def keeps_order(self):
        return self.kind == "kept"


class OverloadMachine(RuleBasedStateMachine):
    @initialize(max_rows=st.integers(0, 4), levels=st.integers(0, 2), max_bytes=st.sampled_from([0, 0, 3000]))
    def start(self, max_rows, levels, max_bytes):
        policy = OverloadPolicy(max_wait_ns=_MAX_WAIT_NS, max_bytes=max_bytes)
        self.is_direct = max_rows == 0
        self.levels = 0 if self.is_direct else levels
        self.max_rows = max(1, max_rows)
        self.max_bytes = max_bytes
        self.scheduler = (
            DirectScheduler(policy)
            if self.is_direct
            else DynamicScheduler(
                max_batch_size=max_rows,
                priority_levels=levels,
                default_priority_level=1 if levels else 0,
                overload=policy,
            )
        )
        self.now_ns = 1
        self.waiting = []
        self.gone = set()

    def level_of(self, request):
        priority = request.header.priority
        return priority if 0 < priority <= self.levels else 1

    def leave(self, request):
        assert id(request) not in self.gone, "a request left twice"
        self.gone.add(id(request))
        self.waiting.remove(request)
        self.kept_alive = [*getattr(self, "kept_alive", []), request]  # so that no other gets its id

    @rule(count=st.integers(1, 20), priority=st.integers(0, 3), kind=st.sampled_from(["new", "new", "begun", "kept"]))
    def enqueue(self, count, priority, kind):
        for _ in range(count):
            self.now_ns += 1
            header = RequestHeader(model_name="m", priority=priority)
            request = _Request(header, (bytes(100),), lambda request, response: None, arrival_ns=self.now_ns)
            request.shape_key, request.kind = "A", kind
            self.scheduler.enqueue(request, self.now_ns)
            self.waiting.append(request)

    @rule(windows=st.integers(2, 12), count=st.integers(3, 12))
    def grow(self, windows, count):
        """More come than are taken, for a while."""
        for _ in range(windows):
            for _ in range(4):
                self.enqueue(count, 0, "new")
                self.take()
                self.now_ns += INTERVAL_NS // 4

    @rule(step_ns=st.sampled_from([MS, 100 * MS, 400 * MS, 3000 * MS]))
    def pass_time(self, step_ns):
        self.now_ns += step_ns

    @rule(count=st.integers(1, 60))
    def take_some(self, count):
        for _ in range(count):
            self.now_ns += 10 * MS
            self.take()

    @rule()
    def take(self):
        order = list(self.waiting)
        batch = self.scheduler.take(self.now_ns)
        is_overloaded = self.scheduler._guard.is_overloaded
        for request, error in self.scheduler.pop_dropped():
            assert "Exceeds maximum queue size" in error.message
            assert is_overloaded, "refused without an overload"
            assert self.max_bytes or self.now_ns - request.arrival_ns > _MAX_WAIT_NS
            self.leave(request)
            order.remove(request)
        if batch is None:
            assert not self.waiting
            return
        requests = list(batch.requests)
        assert 1 <= len(requests) <= self.max_rows
        assert batch.size == len(requests)
        for level in {self.level_of(request) for request in requests}:
            chosen = [r for r in requests if self.level_of(r) == level]
            in_level = [r for r in order if self.level_of(r) == level]
            self.check_order(chosen, in_level, is_overloaded=is_overloaded)
            for urgent in order:
                assert self.level_of(urgent) >= level or urgent in requests, "a more urgent one was passed over"
        for request in requests:
            self.leave(request)

    def check_order(self, chosen, in_level, *, is_overloaded):
        if not is_overloaded:
            assert chosen == in_level[: len(chosen)]
            return
        for kind in ("new", "begun"):
            of_kind = [r for r in in_level if r.kind == kind]
            picked = [r for r in chosen if r.kind == kind]
            assert picked == of_kind[len(of_kind) - len(picked) :], "the newest goes first"
        kept = [r for r in in_level if r.kind == "kept"]
        picked = [r for r in chosen if r.kind == "kept"]
        assert picked == kept[: len(picked)], "requests of streams keep their order"
        if any(r.kind != "begun" for r in chosen):
            assert all(r in chosen for r in in_level if r.kind == "begun"), "what has begun goes first"

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data):
        request = data.draw(st.sampled_from(self.waiting))
        assert self.scheduler.cancel(request)
        self.leave(request)
        assert not self.scheduler.cancel(request)

    @rule()
    def drain(self):
        left = self.scheduler.drain()
        assert {id(request) for request in left} == {id(request) for request in self.waiting}
        for request in left:
            self.leave(request)

    @invariant()
    def counts(self):
        if hasattr(self, "scheduler"):
            assert self.scheduler.pending_count == len(self.waiting)
            oldest = min((request.arrival_ns for request in self.waiting), default=0)
            assert self.scheduler.oldest_ns() == oldest


OverloadMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestOverload = OverloadMachine.TestCase

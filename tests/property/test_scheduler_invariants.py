"""The default scheduler and the dynamic batcher keep their invariants for all sequences of events."""

import copy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from naiad.core.errors import InferError
from naiad.scheduler.direct import DirectScheduler
from naiad.scheduler.dynamic import DynamicScheduler
from naiad.scheduler.queue import QueueLimits
from support.long_run import examples
from support.scheduling import MS, waiting_request

_POLICIES = st.builds(
    QueueLimits,
    max_queue_size=st.sampled_from([0, 0, 3]),
    timeout_ns=st.sampled_from([0, 3 * MS, 7 * MS]),
    allows_override=st.booleans(),
    delays=st.booleans(),
)


class BatcherMachine(RuleBasedStateMachine):
    """One instance and a clock. While free it takes when it is woken and when its sleep is over; else it is busy."""

    @initialize(
        max_rows=st.integers(0, 6),
        preferred=st.sets(st.integers(1, 6), max_size=2),
        delay_ns=st.sampled_from([0, 2 * MS, 5 * MS]),
        levels=st.integers(0, 3),
        policy=_POLICIES,
        first_policy=_POLICIES,
    )
    def start(self, max_rows, preferred, delay_ns, levels, policy, first_policy):
        self.max_rows = max(1, max_rows)
        preferred = {size for size in preferred if size <= self.max_rows}
        self.scheduler = DynamicScheduler(
            max_batch_size=max_rows,
            preferred_batch_sizes=preferred,
            delay_ns=delay_ns,
            priority_levels=levels,
            default_priority_level=1 if levels else 0,
            default_policy=policy,
            level_policies={1: first_policy} if levels else {},
        )
        self.delay_ns = delay_ns
        self.levels = levels
        self.policies = {1: first_policy} if levels else {}
        self.default_policy = policy
        self.now_ns = 1
        self.waiting = []  # in order of arrival
        self.gone = []
        self.is_busy = False
        self.sleeping_until = None  # while the instance is free: a time, or None for no limit

    def level_of(self, request):
        priority = request.header.priority
        return priority if 0 < priority <= self.levels else 1

    def policy_of(self, request):
        return self.policies.get(self.level_of(request), self.default_policy)

    def deadline_of(self, request):
        policy = self.policy_of(request)
        if not policy.timeout_ns:
            return None
        own = request.header.timeout_us * 1000
        timeout = min(own, policy.timeout_ns) if policy.allows_override and own else policy.timeout_ns
        return request.arrival_ns + timeout

    def leave(self, request):
        assert request not in self.gone, "a request left twice"
        assert request in self.waiting, "a request left that did not wait"
        self.gone.append(request)
        self.waiting.remove(request)

    @rule(
        rows=st.integers(0, 7),
        shape=st.sampled_from("AAAB"),
        priority=st.integers(0, 4),
        timeout_us=st.sampled_from([0, 1000, 5000, 9000]),
    )
    def enqueue(self, rows, shape, priority, timeout_us):
        request = waiting_request(at_ns=self.now_ns, rows=rows, shape=shape, priority=priority, timeout_us=timeout_us)
        self.expire()
        limit = self.policy_of(request).max_queue_size
        in_level = sum(self.level_of(other) == self.level_of(request) for other in self.waiting)
        try:
            wakes = self.scheduler.enqueue(request, self.now_ns)
        except InferError:
            assert 0 < limit <= in_level
            return
        assert not limit or in_level < limit
        self.waiting.append(request)
        if self.is_busy:
            return
        if wakes:
            self.take()
        else:
            assert self.sleeping_until is not None, "requests wait and no instance will wake"
            assert copy.deepcopy(self.scheduler).take(self.now_ns) is None, "a batch is ready, no wake-up"

    @rule()
    def get_busy(self):
        self.is_busy = True

    @rule(step_ns=st.sampled_from([1, MS, 2 * MS, 5 * MS]))
    def pass_time(self, step_ns):
        """Time passes, and the instance wakes when `wake_ns` says, as a real one does."""
        end_ns = self.now_ns + step_ns
        while not self.is_busy and self.sleeping_until is not None and self.sleeping_until <= end_ns:
            self.now_ns = max(self.now_ns, self.sleeping_until)
            self.take()
        self.now_ns = end_ns

    @rule()
    def take(self):
        self.is_busy = False
        self.expire()
        batch = self.scheduler.take(self.now_ns)
        while batch is not None:
            self.check(batch)
            for request in batch.requests:
                self.leave(request)
            batch = self.scheduler.take(self.now_ns)
        wake_ns = self.scheduler.wake_ns()
        assert wake_ns == 0 or wake_ns > self.now_ns, "an instance that has just looked would spin"
        self.sleeping_until = wake_ns or None

    def check(self, batch):
        requests = list(batch.requests)
        assert requests
        assert batch.size == sum(request.batch_size for request in requests)
        assert len(requests) == 1 or sum(max(1, r.batch_size) for r in requests) <= self.max_rows
        assert len({request.shape_key for request in requests}) == 1
        for level in {self.level_of(request) for request in requests}:
            in_time = [r for r in self.waiting if self.level_of(r) == level and not self.is_late(r)]
            chosen = [r for r in requests if self.level_of(r) == level and not self.is_late(r)]
            assert chosen == in_time[: len(chosen)], "first in, first out within a level"
        levels = [self.level_of(request) for request in requests]
        assert levels == sorted(levels)

    def is_late(self, request):
        deadline = self.deadline_of(request)
        return deadline is not None and deadline <= self.now_ns

    def expire(self):
        for request, error in self.scheduler.expire(self.now_ns):
            assert error.message == "Request timeout expired"
            assert self.is_late(request)
            assert not self.policy_of(request).delays
            self.leave(request)
        assert not any(self.is_late(r) and not self.policy_of(r).delays for r in self.waiting)

    @rule(data=st.data())
    def cancel(self, data):
        if self.waiting:
            request = data.draw(st.sampled_from(self.waiting))
            self.expire()
            if request in self.waiting:
                assert self.scheduler.cancel(request)
                self.leave(request)
            assert not self.scheduler.cancel(request)

    @rule()
    def drain(self):
        self.expire()
        for request in self.scheduler.drain():
            self.leave(request)
        assert self.waiting == []
        assert self.scheduler.wake_ns() == 0

    @invariant()
    def nothing_is_forgotten(self):
        if hasattr(self, "scheduler"):
            assert self.scheduler.pending_count == len(self.waiting)

    @invariant()
    def no_request_waits_beyond_the_delay(self):
        """While an instance is free a request waits no longer than the delay."""
        if hasattr(self, "scheduler") and self.waiting and not self.is_busy:
            oldest_ns = min(request.arrival_ns for request in self.waiting)
            assert self.now_ns < oldest_ns + self.delay_ns


TestBatcher = BatcherMachine.TestCase
TestBatcher.settings = settings(max_examples=examples(120), stateful_step_count=40)


class DirectMachine(RuleBasedStateMachine):
    """The default scheduler: what waits leaves in order of arrival, alone, and once."""

    def __init__(self):
        super().__init__()
        self.scheduler = DirectScheduler()
        self.waiting = []
        self.gone = []
        self.now_ns = 1

    @rule(rows=st.integers(0, 7), priority=st.integers(0, 3), timeout_us=st.sampled_from([0, 1]))
    def enqueue(self, rows, priority, timeout_us):
        self.now_ns += MS
        request = waiting_request(at_ns=self.now_ns, rows=rows, priority=priority, timeout_us=timeout_us)
        assert self.scheduler.enqueue(request, self.now_ns), "a free instance would not be woken"
        self.waiting.append(request)

    @rule(instance=st.integers(0, 2))
    def take(self, instance):
        batch = self.scheduler.take(self.now_ns, instance)
        assert (batch is None) == (not self.waiting)
        if batch is not None:
            assert list(batch.requests) == [self.waiting.pop(0)]
            assert batch.size == batch.requests[0].batch_size
            self.gone.extend(batch.requests)

    @rule(data=st.data())
    def cancel(self, data):
        if self.waiting:
            request = data.draw(st.sampled_from(self.waiting))
            assert self.scheduler.cancel(request)
            self.waiting.remove(request)
            self.gone.append(request)

    @rule(data=st.data())
    def cancel_what_has_left(self, data):
        if self.gone:
            assert not self.scheduler.cancel(data.draw(st.sampled_from(self.gone)))

    @rule(is_sure=st.integers(0, 5))
    def drain(self, is_sure):
        if not is_sure:
            assert self.scheduler.drain() == self.waiting
            self.gone.extend(self.waiting)
            self.waiting.clear()

    @invariant()
    def nothing_is_forgotten(self):
        assert self.scheduler.pending_count == len(self.waiting)
        assert bool(self.scheduler.wake_ns()) == bool(self.waiting)
        assert (self.scheduler.expire_ns(), self.scheduler.expire(self.now_ns)) == (0, ())


TestDirect = DirectMachine.TestCase
TestDirect.settings = settings(max_examples=examples(100), stateful_step_count=60)

"""For all events each iterative request is in exactly one place, and no slot is lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from naiad.scheduler.sequence.strategies import DirectSequenceScheduler, OldestSequenceScheduler
from support.long_run import examples
from support.scheduling import MS, sequence_request

_INSTANCES = 2
_SLOTS = 2


class IterativeMachine(RuleBasedStateMachine):
    """Two instances with two slots each; what executes is put back or done in any order."""

    @initialize(kind=st.sampled_from([DirectSequenceScheduler, OldestSequenceScheduler]))
    def start(self, kind):
        self.scheduler = kind(
            model_name="m", instance_count=_INSTANCES, max_batch_size=_SLOTS, idle_ns=20 * MS, is_iterative=True
        )
        self.now_ns = 1
        self.waiting = []
        self.executing = []

    @rule(correlation_id=st.integers(1, 6))
    def come(self, correlation_id):
        request = sequence_request(correlation_id, start=True, at_ns=self.now_ns)
        self.scheduler.enqueue(request, self.now_ns)
        self.waiting.append(request)

    @rule(instance=st.integers(0, _INSTANCES - 1))
    def take(self, instance):
        # A driver takes when what it took before was executed.
        for request in [each for each in self.executing if each.sequence.instance == instance]:
            self.finish(request, again=request.header.sequence_id % 2 == 0)
        batch = self.scheduler.take(self.now_ns, instance)
        for request in batch.requests if batch is not None else ():
            assert request in self.waiting, "executed although it did not wait"
            assert request.sequence.instance == instance
            assert request.sequence not in [other.sequence for other in self.executing], "a sequence in two places"
            self.waiting.remove(request)
            self.executing.append(request)

    def finish(self, request, *, again):
        self.executing.remove(request)
        if again and self.scheduler.reschedule(request, self.now_ns):
            self.waiting.append(request)
        else:
            self.scheduler.release(request, self.now_ns)

    @precondition(lambda self: self.executing)
    @rule(data=st.data(), again=st.booleans())
    def end_step(self, data, again):
        self.finish(data.draw(st.sampled_from(self.executing)), again=again)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data):
        request = data.draw(st.sampled_from(self.waiting))
        assert self.scheduler.cancel(request)
        self.waiting.remove(request)
        self.drop()

    @rule(elapsed_ms=st.integers(1, 50))
    def wait(self, elapsed_ms):
        self.now_ns += elapsed_ms * MS
        self.drop()

    def drop(self):
        for request, _ in self.scheduler.expire(self.now_ns):
            self.waiting.remove(request)

    @invariant()
    def everything_is_counted(self):
        if hasattr(self, "scheduler"):
            assert self.scheduler.pending_count == len(self.waiting)
            sequences = {id(request.sequence) for request in (*self.waiting, *self.executing)}
            assert self.scheduler.live_sequence_count >= len(sequences)

    def teardown(self):
        """Let everything end: nothing is left, and every slot is free."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(200):
            for request in list(self.executing):
                self.finish(request, again=False)
            for instance in range(_INSTANCES):
                batch = self.scheduler.take(self.now_ns, instance)
                for request in batch.requests if batch is not None else ():
                    self.waiting.remove(request)
                    self.executing.append(request)
            if not (self.waiting or self.executing):
                break
        self.now_ns += 1000 * MS
        self.drop()
        assert not self.waiting
        assert not self.executing
        assert self.scheduler.live_sequence_count == 0


IterativeMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
TestIterativeSequences = IterativeMachine.TestCase

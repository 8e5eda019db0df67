"""Processes that share resources, whatever the order in which messages come and whoever dies."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from naiad.options.limits import ResourceAmount
from support.sharing_processes import Process, Server, model

_COUNTS = (1, 2)
"""What the two instances of each process need."""
_WHO = st.integers(0, 5)


class ProcessesMachine(RuleBasedStateMachine):
    """Three processes whose instances ask, execute, give back, change their minds and die with their process."""

    @initialize(limit=st.integers(2, 3))
    def start(self, limit):
        self.limit = limit
        self.server = Server(ResourceAmount("R", limit), process_count=3)
        self.claims = {process: process.load(model(*_COUNTS))[0] for process in self.server.processes}
        self.executing: set[tuple[Process, int]] = set()

    def pick(self, who):
        return self.server.processes[who % len(self.server.processes)], who // 3

    @rule(who=_WHO)
    def take(self, who):
        process, instance = self.pick(who)
        self.executing.discard((process, instance))
        if self.claims[process].acquire(instance):
            self.claims[process].start(instance)
            self.executing.add((process, instance))

    @rule(who=_WHO)
    def release(self, who):
        process, instance = self.pick(who)
        self.claims[process].release(instance)
        self.executing.discard((process, instance))

    @rule(who=_WHO)
    def withdraw(self, who):
        process, instance = self.pick(who)
        self.claims[process].withdraw(instance)

    @rule(who=_WHO)
    def deliver(self, who):
        self.pick(who)[0].deliver(1)

    @rule(who=_WHO)
    def receive(self, who):
        self.pick(who)[0].receive(1)

    @precondition(lambda self: len(self.server.processes) > 1)
    @rule(who=_WHO)
    def kill(self, who):
        process, _ = self.pick(who)
        self.server.end(process)
        self.executing = {each for each in self.executing if each[0] is not process}

    @invariant()
    def never_more_than_there_is(self):
        assert sum(_COUNTS[instance] for _, instance in self.executing) <= self.limit

    def teardown(self):
        """Nobody waits in vain: once everybody ends what it has begun, all get what they have asked for."""
        for process, instance in self.executing:
            self.claims[process].release(instance)
        left = [(process, instance) for process in self.server.processes for instance in range(len(_COUNTS))]
        while left:
            self.server.settle()
            ended = [each for each in left if self.ends(*each)]
            assert ended
            left = [each for each in left if each not in ended]
        self.server.settle()
        assert self.server.held() == 0

    def ends(self, process, instance):
        """Let an instance that does not wait give back what it has; whether it was one."""
        claims = self.claims[process]
        if claims.is_waiting(instance) and not claims.acquire(instance):
            return False
        claims.release(instance)
        return True


TestProcesses = ProcessesMachine.TestCase
TestProcesses.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)

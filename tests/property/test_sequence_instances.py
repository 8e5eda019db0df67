"""Instances come and go while sequences live: no request is lost, and every sequence stays where it began."""

from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.scheduler.sequence.strategies import DirectSequenceScheduler, OldestSequenceScheduler
from support.long_run import examples
from support.scheduling import MS, sequence_request

STEP = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 6), st.booleans()),
    st.tuples(st.just("take"), st.integers(0, 9), st.none()),
    st.tuples(st.just("add"), st.none(), st.none()),
    st.tuples(st.just("retire"), st.integers(0, 9), st.none()),
)


class Server:
    """A scheduler with instances that execute a batch within the step that takes it."""

    def __init__(self, *, is_direct, is_decoupled, max_rows):
        made = DirectSequenceScheduler if is_direct else OldestSequenceScheduler
        self.scheduler = made(
            model_name="m", instance_count=1, max_batch_size=max_rows, idle_ns=10**15, is_decoupled=is_decoupled
        )
        self.is_decoupled = is_decoupled
        self.now_ns = MS
        self.serving = [0]
        self.retired = []
        self.count = 1
        self.live = set()
        self.sent = []
        self.done = []
        self.places = {}
        self.closed_to = {}
        """For each retired instance the sequences that it had."""

    def ask(self, correlation_id, is_end):
        start = correlation_id not in self.live
        request = sequence_request(correlation_id, start=start, end=is_end, at_ns=self.now_ns)
        self.scheduler.enqueue(request, self.now_ns)
        self.sent.append(request)
        self.live.add(correlation_id)
        if is_end:
            self.live.discard(correlation_id)

    def take(self, instance):
        batch = self.scheduler.take(self.now_ns, instance)
        for request in batch.requests if batch is not None else ():
            place = self.places.setdefault(id(request.sequence), instance)
            assert place == instance, "a sequence has moved to another instance"
            if instance in self.closed_to:
                assert id(request.sequence) in self.closed_to[instance], "a retired instance began a sequence"
            self.done.append(request)
        if batch is not None and self.is_decoupled:
            for request in batch.requests:
                self.scheduler.release(request, self.now_ns)
        return batch is not None

    def add(self):
        self.scheduler.add_instance(self.now_ns)
        self.serving.append(self.count)
        self.count += 1

    def retire(self, choice):
        if len(self.serving) > 1:
            instance = self.serving.pop(choice % len(self.serving))
            seated = [r.sequence for r in self.sent if r.sequence.instance == instance and not r.sequence.is_released]
            self.closed_to[instance] = {*map(id, seated)}
            self.scheduler.retire_instance(instance)
            self.retired.append(instance)

    def work_off(self):
        while sum(self.take(instance) for instance in range(self.count)):
            self.now_ns += MS


@settings(max_examples=examples(200))
@given(st.booleans(), st.booleans(), st.integers(1, 3), st.lists(STEP, max_size=40))
def test_sequences_outlive_changes_of_instances(is_direct, is_decoupled, max_rows, steps):
    server = Server(is_direct=is_direct, is_decoupled=is_decoupled, max_rows=max_rows)
    for kind, number, flag in steps:
        server.now_ns += MS
        if kind == "ask":
            server.ask(number, flag)
        elif kind == "take":
            server.take(number % server.count)
        elif kind == "add":
            server.add()
        else:
            server.retire(number)
    for correlation_id in sorted(server.live):
        server.ask(correlation_id, True)
    server.work_off()
    assert sorted(map(id, server.done)) == sorted(map(id, server.sent))
    for sequence in {id(request.sequence) for request in server.sent}:
        asked, executed = (
            [id(request) for request in requests if id(request.sequence) == sequence]
            for requests in (server.sent, server.done)
        )
        assert executed == asked, "requests of a sequence were executed in another order"
    assert server.scheduler.pending_count == server.scheduler.live_sequence_count == 0
    assert all(server.scheduler.is_vacated(instance) for instance in server.retired)

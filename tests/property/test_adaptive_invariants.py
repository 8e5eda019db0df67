"""For all arrivals and durations the adaptive batcher loses no request and meets its delay."""

from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.scheduler.adaptive import AdaptiveScheduler
from support.batching_simulation import Device, Simulation
from support.long_run import examples
from support.scheduling import MS, waiting_request

_LIMIT_NS = 5 * MS
_GAPS_NS = st.one_of(st.integers(0, 50_000), st.integers(0, 20 * MS), st.just(0))


class Load(Simulation):
    """Requests of the given rows and shapes, the last of them cancelled while they wait."""

    def __init__(self, scheduler, device, requests, cancelled):
        super().__init__(scheduler, device)
        self.requests = iter(requests)
        self.came, self.cancelled_left, self.cancelled = [], cancelled, []

    def _arrive(self, arrival_ns):
        rows, shape = next(self.requests)
        request = waiting_request(at_ns=arrival_ns, rows=rows, shape=shape)
        self.came.append(request)
        self.station.enqueue(request)
        if self.cancelled_left and self.scheduler.cancel(request):
            self.cancelled_left -= 1
            self.cancelled.append(request)


@settings(max_examples=examples(60))
@given(
    gaps_ns=st.lists(_GAPS_NS, min_size=1, max_size=120),
    kinds=st.lists(st.tuples(st.integers(0, 5), st.sampled_from("AAAAB")), min_size=120, max_size=120),
    instances=st.integers(1, 3),
    parallel=st.integers(1, 3),
    fixed_ns=st.integers(0, 3 * MS),
    row_ns=st.integers(0, 1 * MS),
    goal_ns=st.sampled_from([0, 4 * MS, 1000 * MS]),
    preferred=st.sets(st.integers(1, 4), max_size=2),
    cancelled=st.integers(0, 5),
)
def test_everything_is_executed_once_in_batches_within_limits(
    gaps_ns, kinds, instances, parallel, fixed_ns, row_ns, goal_ns, preferred, cancelled
):
    scheduler = AdaptiveScheduler(
        max_batch_size=4,
        instance_count=instances,
        latency_goal_ns=goal_ns,
        preferred_batch_sizes=preferred,
        max_hold_ns=_LIMIT_NS,
    )
    arrivals, now_ns = [], 1
    for gap_ns in gaps_ns:
        now_ns += gap_ns
        arrivals.append(now_ns)
    load = Load(scheduler, Device(lambda rows: fixed_ns + row_ns * rows, instances, parallel), kinds, cancelled)
    load.run(arrivals)
    executed = [request for batch in load.batches for request in batch.requests]
    assert {id(request) for request in [*executed, *load.cancelled]} == {id(request) for request in load.came}
    assert len(executed) + len(load.cancelled) == len(load.came)
    assert scheduler.pending_count == 0
    for batch in load.batches:
        assert len({request.shape_key for request in batch.requests}) == 1
        assert len(batch.requests) == 1 or sum(request.batch_size or 1 for request in batch.requests) <= 4
        assert batch.release_reason in ("full", "preferred", "delay", "shape", "idle")
    state = scheduler.state()
    assert sum(state.decisions.values()) == len(load.batches)
    assert state.hold_ns <= state.hold_count * _LIMIT_NS

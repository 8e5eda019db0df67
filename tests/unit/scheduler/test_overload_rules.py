"""Rules of overload: when a queue is overloaded, what leaves it first, what is refused."""

import itertools
import random

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.environment.model_call import ModelCall
from naiad.core.errors import ErrorCode, FailureReason
from naiad.core.request import InferRequest, RequestHeader
from naiad.options.sources.command_line import parse_options
from naiad.scheduler.direct import DirectScheduler
from naiad.scheduler.dynamic import DynamicScheduler
from naiad.scheduler.factory import create_scheduler
from naiad.scheduler.overload import OverloadPolicy
from naiad.scheduler.queue import QueueLimits
from support.batching_simulation import poisson
from support.overload_simulation import SECOND, OverloadSimulation
from support.scheduling import MS, waiting_request

POLICY = OverloadPolicy()


def overload(scheduler, *, make_request=lambda at_ns: waiting_request(at_ns=at_ns), seconds=2):
    """Bring a scheduler into overload: 40 requests a second come, 10 are taken. Returns the time."""
    now_ns = 0
    for step in range(seconds * 10):
        now_ns = step * 100 * MS
        for number in range(4):
            scheduler.enqueue(make_request(now_ns + number), now_ns + number)
        assert scheduler.take(now_ns + 10) is not None
    return now_ns + 100 * MS


def schedulers(policy=POLICY):
    return [DirectScheduler(policy), DynamicScheduler(max_batch_size=1, overload=policy)]


@pytest.mark.parametrize("scheduler", schedulers(), ids=["direct", "dynamic"])
def test_under_overload_the_newest_goes_first(scheduler):
    # O1
    now_ns = overload(scheduler)
    newest = waiting_request(at_ns=now_ns)
    scheduler.enqueue(newest, now_ns)
    assert scheduler.take(now_ns).requests[0] is newest
    assert scheduler.dropped == ()


@pytest.mark.parametrize("scheduler", schedulers(None), ids=["direct", "dynamic"])
def test_without_a_policy_order_is_never_changed(scheduler):
    # O7
    now_ns = overload(scheduler, seconds=30)
    scheduler.enqueue(waiting_request(at_ns=now_ns), now_ns)
    taken = [scheduler.take(now_ns + 30 * SECOND).requests[0].arrival_ns for _ in range(scheduler.pending_count)]
    assert taken == sorted(taken)
    assert scheduler.dropped == ()


@pytest.mark.parametrize("scheduler", schedulers(), ids=["direct", "dynamic"])
def test_long_growth_refuses_what_waited_too_long(scheduler):
    # O3
    now_ns = overload(scheduler, seconds=9)
    assert scheduler.dropped == ()
    before = scheduler.pending_count
    later_ns = now_ns
    while not scheduler.dropped and later_ns < now_ns + 20 * SECOND:
        later_ns += 100 * MS
        for number in range(4):
            scheduler.enqueue(waiting_request(at_ns=later_ns + number), later_ns)
        scheduler.take(later_ns)
        before += 3
    dropped = scheduler.pop_dropped()
    assert scheduler.pending_count == before - len(dropped)
    for request, error in dropped:
        assert later_ns - request.arrival_ns > POLICY.max_wait_ns
        assert (error.code, error.reason) == (ErrorCode.UNAVAILABLE, FailureReason.REJECTED)
        assert error.message == "[request id: <id_unknown>] Exceeds maximum queue size"
    assert scheduler.pop_dropped() == ()


def test_growth_beyond_the_bytes_refuses_the_oldest():
    # O4
    def of_1000_bytes(at_ns):
        request = waiting_request(at_ns=at_ns)
        request.data = (bytes(1000),)
        return request

    scheduler = DirectScheduler(OverloadPolicy(max_bytes=50_000))
    now_ns = overload(scheduler, make_request=of_1000_bytes, seconds=4)
    dropped = scheduler.pop_dropped()
    assert dropped
    assert scheduler.pending_count < 50 + 4 * 4
    newest_dropped_ns = max(each.request.arrival_ns for each in dropped)
    assert newest_dropped_ns < scheduler.oldest_ns() < now_ns


def test_priority_wins_over_newness():
    # O8
    scheduler = DynamicScheduler(max_batch_size=1, priority_levels=2, default_priority_level=2, overload=POLICY)
    now_ns = overload(scheduler)
    urgent = waiting_request(at_ns=now_ns, priority=1)
    scheduler.enqueue(urgent, now_ns)
    scheduler.enqueue(waiting_request(at_ns=now_ns + 1), now_ns + 1)
    assert scheduler.take(now_ns + 2).requests[0] is urgent


def test_least_urgent_requests_free_bytes():
    # O4
    scheduler = DynamicScheduler(
        max_batch_size=1,
        priority_levels=2,
        default_priority_level=2,
        overload=OverloadPolicy(max_bytes=50_000),
    )
    number = iter(range(10_000))

    def alternately(at_ns):
        request = waiting_request(at_ns=at_ns, priority=1 + next(number) % 2)
        request.data = (bytes(1000),)
        return request

    overload(scheduler, make_request=alternately, seconds=3)
    dropped = scheduler.pop_dropped()
    assert dropped
    assert {each.request.header.priority for each in dropped} == {2}


def test_level_with_own_policy_keeps_order():
    # O7
    scheduler = DynamicScheduler(
        max_batch_size=1,
        priority_levels=2,
        default_priority_level=2,
        level_policies={1: QueueLimits(max_queue_size=10_000)},
        overload=POLICY,
    )
    now_ns = overload(scheduler, make_request=lambda at_ns: waiting_request(at_ns=at_ns, priority=1), seconds=15)
    assert scheduler.oldest_ns() == scheduler.take(now_ns).requests[0].arrival_ns
    assert scheduler.dropped == ()


@pytest.mark.parametrize(
    ("block", "is_watched"),
    [
        ("", True),
        ("default_queue_policy", False),
        ("preserve_ordering", False),
    ],
)
def test_a_configured_policy_replaces_the_default(block, is_watched):
    # O7
    config = ModelConfig(name="m", max_batch_size=1)
    config.dynamic_batching.SetInParent()
    if block == "default_queue_policy":
        config.dynamic_batching.default_queue_policy.SetInParent()
    elif block:
        config.dynamic_batching.preserve_ordering = True
    scheduler = create_scheduler(config, overload=POLICY)
    now_ns = overload(scheduler)
    newest = waiting_request(at_ns=now_ns)
    scheduler.enqueue(newest, now_ns)
    assert (scheduler.take(now_ns).requests[0] is newest) == is_watched


def test_sequences_are_never_refused_or_reordered():
    # O7
    config = ModelConfig(name="m", max_batch_size=1)
    config.sequence_batching.direct.SetInParent()
    assert not hasattr(create_scheduler(config, overload=POLICY), "_guard")


class _StreamRequest(InferRequest):
    __slots__ = ()

    @property
    def keeps_order(self):
        return True


def _as(kind, at_ns):
    request = kind(RequestHeader(model_name="m"), (), lambda request, response: None, arrival_ns=at_ns)
    request.shape_key = "A"
    return request


@pytest.mark.parametrize("scheduler", schedulers(), ids=["direct", "dynamic"])
def test_work_that_has_begun_goes_first(scheduler):
    # O5
    now_ns = overload(scheduler)
    begun = _as(ModelCall, now_ns)
    scheduler.enqueue(begun, now_ns)
    scheduler.enqueue(waiting_request(at_ns=now_ns + 1), now_ns + 1)
    assert scheduler.take(now_ns + 2).requests[0] is begun


@pytest.mark.parametrize("scheduler", schedulers(), ids=["direct", "dynamic"])
def test_requests_of_streams_keep_their_order(scheduler):
    # O5
    now_ns = overload(scheduler)
    kept = [_as(_StreamRequest, now_ns + number) for number in range(5)]
    for request in kept:
        scheduler.enqueue(request, request.arrival_ns)
    taken = [scheduler.take(now_ns + 10).requests[0] for _ in range(10)]
    assert [request for request in taken if request in kept] == kept


@pytest.mark.parametrize("scheduler", schedulers(), ids=["direct", "dynamic"])
def test_after_the_backlog_requests_leave_in_order(scheduler):
    # O6
    now_ns = overload(scheduler)
    while scheduler.pending_count:
        now_ns += 20 * MS
        scheduler.take(now_ns)
    now_ns += SECOND
    scheduler.take(now_ns)
    requests = [waiting_request(at_ns=now_ns + number) for number in range(3)]
    for request in requests:
        scheduler.enqueue(request, request.arrival_ns)
    assert [scheduler.take(now_ns + 10).requests[0] for _ in requests] == requests


def test_batch_of_newest_keeps_arrival_order():
    # O8
    scheduler = DynamicScheduler(max_batch_size=4, overload=POLICY)
    now_ns = 0
    for step in range(40):
        now_ns = step * 100 * MS
        for number in range(12):
            scheduler.enqueue(waiting_request(at_ns=now_ns + number), now_ns + number)
        batch = scheduler.take(now_ns + 20)
    arrivals = [request.arrival_ns for request in batch.requests]
    assert arrivals == [now_ns + number for number in (8, 9, 10, 11)]


@pytest.mark.parametrize("scheduler", schedulers(), ids=["direct", "dynamic"])
def test_drain_empties_every_lane(scheduler):
    now_ns = overload(scheduler)
    scheduler.enqueue(_as(ModelCall, now_ns), now_ns)
    scheduler.enqueue(_as(_StreamRequest, now_ns), now_ns)
    count = scheduler.pending_count
    left = scheduler.drain()
    assert len(set(map(id, left))) == count
    assert (scheduler.pending_count, scheduler.take(now_ns)) == (0, None)


# --- what only looks like overload ---


def _inversions(outcome):
    arrivals = [outcome.arrived_ns[request] for request in outcome.order]
    return sum(later < earlier for earlier, later in itertools.pairwise(arrivals))


@pytest.mark.parametrize("count", [1000, 5000])
@pytest.mark.parametrize("spread_s", [0.0, 0.2])
def test_a_burst_is_answered_in_order(count, spread_s):
    # O2
    simulation = OverloadSimulation(DirectScheduler(POLICY), lambda rows: 5 * MS)
    for number in range(count):
        simulation.arrive(SECOND + int(number * spread_s * SECOND / count))
    outcome = simulation.run()
    assert (len(outcome.answered_ns), _inversions(outcome)) == (count, 0)


@pytest.mark.parametrize("spread_s", [1, 2, 8])
def test_a_long_burst_is_answered_to_the_last(spread_s):
    # O3
    simulation = OverloadSimulation(DynamicScheduler(max_batch_size=8, overload=POLICY), lambda rows: 30 * MS)
    for number in range(5000):
        simulation.arrive(SECOND + number * spread_s * SECOND // 5000)
    outcome = simulation.run()
    assert len(outcome.answered_ns) == 5000


@pytest.mark.parametrize(
    ("make", "duration_ms", "instances"),
    [
        (lambda: DirectScheduler(POLICY), 5, 1),
        (lambda: DirectScheduler(POLICY), 100, 2),
        (lambda: DynamicScheduler(max_batch_size=32, overload=POLICY), 200, 2),
    ],
    ids=["fast", "slow", "batches"],
)
@pytest.mark.parametrize("ramp_s", [0.0, 1.5, 4.0])
@pytest.mark.parametrize("think_s", [0.0, 3.0])
def test_a_closed_loop_loses_nothing(make, duration_ms, instances, ramp_s, think_s):
    """As of perf_analyzer with a concurrency of 500, for a minute; requests of one client at a time."""
    # O2
    rng = random.Random(5)
    simulation = OverloadSimulation(make(), lambda rows: duration_ms * MS, instance_count=instances)

    def again(request):
        then_ns = simulation.now_ns + 1 + int(rng.expovariate(1 / think_s) * SECOND if think_s else MS * rng.random())
        if then_ns < 60 * SECOND:
            simulation.arrive(then_ns)

    simulation.on_end = again
    for number in range(500):
        simulation.arrive(SECOND + int(number * ramp_s * SECOND / 500))
    outcome = simulation.run()
    assert len(outcome.answered_ns) == len(outcome.arrived_ns)
    assert not outcome.refused_ns


@pytest.mark.parametrize("load", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("duration_ms", [5, 100])
def test_below_capacity_order_is_kept(load, duration_ms):
    # O2
    simulation = OverloadSimulation(DirectScheduler(POLICY), lambda rows: duration_ms * MS)
    rate = load * 1000 / duration_ms
    for time_ns in poisson(rate, int(60 * rate), seed=9):
        simulation.arrive(SECOND + time_ns)
    outcome = simulation.run()
    assert (len(outcome.answered_ns), _inversions(outcome)) == (int(60 * rate), 0)


# --- goodput ---

_LOADS = {
    "5 ms": (DirectScheduler, lambda rows: 5 * MS, 1, 200),
    "50 ms": (DirectScheduler, lambda rows: 50 * MS, 1, 20),
    "two of 20 ms": (DirectScheduler, lambda rows: 20 * MS, 2, 100),
    "batches of 8": (
        lambda policy: DynamicScheduler(max_batch_size=8, overload=policy),
        lambda rows: 12 * MS + rows * MS,
        1,
        400,
    ),
    "batches of 32": (
        lambda policy: DynamicScheduler(max_batch_size=32, overload=policy, delay_ns=5 * MS),
        lambda rows: 28 * MS + rows * MS,
        1,
        533,
    ),
}
_OVERLOAD_S, _AFTER_S = 6, 4


def _run(name, factor, patience_s, policy=POLICY):
    make, duration_ns, instances, capacity = _LOADS[name]
    simulation = OverloadSimulation(
        make(policy), duration_ns, instance_count=instances, patience_ns=patience_s * SECOND
    )
    for time_ns in poisson(factor * capacity, int(factor * capacity * _OVERLOAD_S)):
        simulation.arrive(SECOND + time_ns)
    for time_ns in poisson(capacity / 2, int(capacity / 2 * _AFTER_S), seed=2):
        simulation.arrive(SECOND * (1 + _OVERLOAD_S) + time_ns)
    return simulation.run(), capacity


@pytest.mark.parametrize("patience_s", [0, 1], ids=["waiting", "impatient"])
@pytest.mark.parametrize("factor", [2, 4])
@pytest.mark.parametrize("name", _LOADS)
def test_goodput_under_overload(name, factor, patience_s):
    # O1
    outcome, capacity = _run(name, factor, patience_s)
    end_ns = SECOND * (1 + _OVERLOAD_S)
    assert outcome.goodput(SECOND, end_ns) >= 0.9 * capacity * _OVERLOAD_S
    recovered = outcome.latencies_ns(end_ns + 2 * SECOND, 1 << 62)
    assert recovered[int(0.99 * len(recovered))] < SECOND / 2
    gone = len(outcome.answered_ns) + len(outcome.refused_ns) + len(outcome.abandoned_ns)
    assert gone == len(outcome.arrived_ns)


def test_a_load_near_capacity_follows_an_overload():
    """It keeps the backlog as long as it is, as a closed loop does; new requests do not wait behind the backlog."""
    # O6
    make, duration_ns, instances, capacity = _LOADS["5 ms"]
    simulation = OverloadSimulation(make(POLICY), duration_ns, instance_count=instances)
    for number in range(4 * capacity * 5):
        simulation.arrive(SECOND + number * SECOND // (4 * capacity))
    for number in range(capacity * 4):
        simulation.arrive(6 * SECOND + number * SECOND // capacity)
    latencies_ns = simulation.run().latencies_ns(6 * SECOND, 1 << 62)
    assert latencies_ns[int(0.95 * len(latencies_ns))] < SECOND / 2


def test_goodput_is_lost_in_order_of_arrival():
    """What the rules are for: the same load without them."""
    outcome, capacity = _run("5 ms", 4, 1, policy=None)
    assert outcome.goodput(SECOND, SECOND * (1 + _OVERLOAD_S)) < 0.3 * capacity * _OVERLOAD_S


def test_clients_of_little_patience_are_served():
    # O1
    simulation = OverloadSimulation(DirectScheduler(POLICY), lambda rows: 5 * MS, patience_ns=300 * MS)
    for time_ns in poisson(600, 6000):
        simulation.arrive(SECOND + time_ns)
    outcome = simulation.run()
    assert outcome.goodput(SECOND, 11 * SECOND, 300 * MS) >= 0.85 * 2000


class _Step(InferRequest):
    """A step of an ensemble whose three steps are of one model."""

    __slots__ = ("began_ns", "index")

    @property
    def has_begun(self):
        return self.index > 0


@pytest.mark.parametrize("factor", [2, 4])
def test_ensembles_that_have_begun_are_finished(factor):
    # O5
    steps, duration_ms, following = 3, 5, []

    def make(now_ns, index=0, began_ns=0):
        request = _as(_Step, now_ns)
        request.index, request.began_ns = index, began_ns or now_ns
        return request

    simulation = OverloadSimulation(
        DirectScheduler(POLICY),
        lambda rows: duration_ms * MS,
        make_request=lambda now_ns: following.pop() if following else make(now_ns),
    )
    latencies = []

    def go_on(request):
        if request.index + 1 < steps:
            following.append(make(simulation.now_ns, request.index + 1, request.began_ns))
            simulation.arrive_now()
        else:
            latencies.append(simulation.now_ns - request.began_ns)

    simulation.on_end = go_on
    capacity = 1000 / duration_ms / steps
    for time_ns in poisson(factor * capacity, int(factor * capacity * _OVERLOAD_S)):
        simulation.arrive(SECOND + time_ns)
    assert not simulation.run().refused_ns
    assert sum(latency <= SECOND for latency in latencies) >= 0.9 * capacity * _OVERLOAD_S


def test_options_make_the_policy():
    options = parse_options(["--model-repository=m", "--queue-overload-target-ms=20", "--queue-overload-max-bytes=7"])
    assert OverloadPolicy.from_options(options.overload) == OverloadPolicy(20 * MS, 10 * SECOND, 7)
    options = parse_options(["--model-repository=m", "--queue-overload-policy=none"])
    assert OverloadPolicy.from_options(options.overload) is None

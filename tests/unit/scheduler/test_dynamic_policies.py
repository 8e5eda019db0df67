"""Priority levels, queue policies, timeouts and cancellation of the dynamic batcher."""

import pytest

from naiad.core.errors import ErrorCode, FailureReason, InferError
from naiad.scheduler.dynamic import DynamicScheduler
from naiad.scheduler.queue import QueueLimits
from support.scheduling import MS, enqueue_all, waiting_request


def ids(batch):
    return [request.id for request in batch.requests]


class TestPriority:
    def test_level_one_leads_and_levels_share_batch(self):
        # Q1
        scheduler = DynamicScheduler(max_batch_size=3, priority_levels=3, default_priority_level=2)
        enqueue_all(
            scheduler,
            [waiting_request(at_ns=n, id=f"{p}.{n}", priority=p) for n, p in enumerate((3, 2, 1, 2, 1))],
        )
        assert ids(scheduler.take(9)) == ["1.2", "1.4", "2.1"]
        assert ids(scheduler.take(9)) == ["2.3", "3.0"]

    @pytest.mark.parametrize("priority", [0, 4, 2**63])
    def test_a_priority_outside_the_levels_means_the_default(self, priority):
        # Q2
        scheduler = DynamicScheduler(max_batch_size=1, priority_levels=3, default_priority_level=2)
        enqueue_all(
            scheduler,
            [
                waiting_request(id="3", priority=3),
                waiting_request(id="odd", priority=priority),
                waiting_request(id="1", priority=1),
            ],
        )
        assert [ids(scheduler.take(0))[0] for _ in range(3)] == ["1", "odd", "3"]

    def test_without_levels_priority_has_no_effect(self):
        # Q3
        scheduler = DynamicScheduler(max_batch_size=1)
        enqueue_all(scheduler, [waiting_request(id="a", priority=5), waiting_request(id="b", priority=1)])
        assert ids(scheduler.take(0)) == ["a"]

    def test_batch_that_skips_older_request_is_marked(self):
        scheduler = DynamicScheduler(max_batch_size=1, priority_levels=2, default_priority_level=2)
        enqueue_all(scheduler, [waiting_request(at_ns=0, priority=2), waiting_request(at_ns=1, priority=1)])
        assert scheduler.take(1).release_reason == "priority"
        assert scheduler.take(1).release_reason == "full"


class TestQueueSize:
    def test_exactly_max_queue_size_requests_wait(self):
        # Q5, Q9
        scheduler = DynamicScheduler(max_batch_size=4, default_policy=QueueLimits(max_queue_size=2))
        enqueue_all(scheduler, [waiting_request(), waiting_request()])
        refused = waiting_request(id="abc")
        with pytest.raises(InferError) as caught:
            scheduler.enqueue(refused, 0)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert caught.value.message == "[request id: abc] Exceeds maximum queue size"
        assert caught.value.reason is None, "a full queue is not counted by statistics"
        assert scheduler.pending_count == 2
        assert not scheduler.cancel(refused)

    def test_absent_id_is_named_like_triton(self):
        scheduler = DynamicScheduler(max_batch_size=4, default_policy=QueueLimits(max_queue_size=1))
        scheduler.enqueue(waiting_request(), 0)
        with pytest.raises(InferError, match=r"^\[request id: <id_unknown>\] Exceeds maximum queue size$"):
            scheduler.enqueue(waiting_request(), 0)

    def test_those_that_left_make_room(self):
        scheduler = DynamicScheduler(max_batch_size=1, default_policy=QueueLimits(max_queue_size=2))
        first, second = enqueue_all(scheduler, [waiting_request(), waiting_request()])
        scheduler.take(0)
        scheduler.enqueue(waiting_request(), 0)
        scheduler.cancel(second)
        scheduler.enqueue(waiting_request(), 0)
        assert scheduler.pending_count == 2
        assert first.queue is None

    def test_each_level_has_its_own_limit(self):
        # Q5
        scheduler = DynamicScheduler(
            max_batch_size=4,
            priority_levels=2,
            default_priority_level=1,
            level_policies={2: QueueLimits(max_queue_size=1)},
        )
        enqueue_all(scheduler, [waiting_request(priority=1) for _ in range(5)] + [waiting_request(priority=2)])
        with pytest.raises(InferError, match="Exceeds maximum queue size"):
            scheduler.enqueue(waiting_request(priority=2), 0)

    def test_delayed_requests_count_but_rejected_ones_do_not(self):
        # Q5
        policy = QueueLimits(max_queue_size=1, timeout_ns=MS, delays=True)
        delaying = DynamicScheduler(max_batch_size=4, default_policy=policy)
        rejecting = DynamicScheduler(max_batch_size=4, default_policy=QueueLimits(max_queue_size=1, timeout_ns=MS))
        for scheduler in (delaying, rejecting):
            scheduler.enqueue(waiting_request(), 0)
        rejecting.enqueue(waiting_request(at_ns=2 * MS), 2 * MS)
        with pytest.raises(InferError, match="Exceeds maximum queue size"):
            delaying.enqueue(waiting_request(at_ns=2 * MS), 2 * MS)

    def test_taken_requests_free_equal_room(self):
        # Q5
        # The limit counts those that wait, not those that execute.
        scheduler = DynamicScheduler(max_batch_size=2, default_policy=QueueLimits(max_queue_size=3))
        enqueue_all(scheduler, [waiting_request() for _ in range(3)])
        scheduler.take(0)
        enqueue_all(scheduler, [waiting_request(), waiting_request()])
        with pytest.raises(InferError, match="Exceeds maximum queue size"):
            scheduler.enqueue(waiting_request(), 0)

    def test_burst_beyond_queue_size_is_rejected(self):
        # Q5
        scheduler = DynamicScheduler(max_batch_size=8, default_policy=QueueLimits(max_queue_size=100))
        refused = 0
        for _ in range(1000):
            try:
                scheduler.enqueue(waiting_request(), 0)
            except InferError:
                refused += 1
        assert (scheduler.pending_count, refused) == (100, 900)


class TestTimeout:
    def test_reject_is_on_time(self):
        # Q7, Q9
        scheduler = DynamicScheduler(max_batch_size=4, default_policy=QueueLimits(timeout_ns=5 * MS))
        requests = enqueue_all(scheduler, [waiting_request(at_ns=0), waiting_request(at_ns=2 * MS)])
        assert scheduler.has_timeouts
        assert scheduler.expire_ns() == 5 * MS
        assert scheduler.expire(5 * MS - 1) == []
        ((dropped, error),) = scheduler.expire(5 * MS)
        assert dropped is requests[0]
        assert (error.code, error.message, error.reason) == (
            ErrorCode.UNAVAILABLE,
            "Request timeout expired",
            FailureReason.REJECTED,
        )
        assert scheduler.expire_ns() == 7 * MS
        assert scheduler.take(6 * MS).requests == [requests[1]]
        assert scheduler.expire_ns() == 0

    def test_expired_request_is_reported_and_never_taken(self):
        # Q7
        scheduler = DynamicScheduler(max_batch_size=4, default_policy=QueueLimits(timeout_ns=5 * MS))
        (request,) = enqueue_all(scheduler, [waiting_request()])
        assert scheduler.take(6 * MS) is None
        assert scheduler.pending_count == 0
        assert 0 < scheduler.wake_ns() <= 6 * MS
        assert [dropped.request for dropped in scheduler.expire(6 * MS)] == [request]
        assert scheduler.wake_ns() == 0

    @pytest.mark.parametrize(
        ("allows", "default_us", "own_us", "expected_us"),
        [
            (True, 5000, 1000, 1000),
            (True, 5000, 0, 5000),
            (True, 5000, 9000, 5000),
            (False, 5000, 1000, 5000),
            (True, 0, 1000, 0),
        ],
    )
    def test_an_override_only_shortens_a_default(self, allows, default_us, own_us, expected_us):
        # Q6
        policy = QueueLimits(timeout_ns=default_us * 1000, allows_override=allows)
        scheduler = DynamicScheduler(max_batch_size=4, default_policy=policy)
        scheduler.enqueue(waiting_request(timeout_us=own_us), 0)
        assert scheduler.expire_ns() == expected_us * 1000

    def test_delay_action_sends_late_requests_last(self):
        # Q4
        policy = QueueLimits(timeout_ns=5 * MS, delays=True)
        scheduler = DynamicScheduler(max_batch_size=2, default_policy=policy)
        enqueue_all(scheduler, [waiting_request(at_ns=n * MS, id=str(n)) for n in (0, 1, 4, 5)])
        assert scheduler.expire(7 * MS) == []
        assert ids(scheduler.take(7 * MS)) == ["4", "5"]
        assert ids(scheduler.take(7 * MS)) == ["0", "1"]

    def test_late_requests_precede_next_level(self):
        # Q4
        scheduler = DynamicScheduler(
            max_batch_size=1,
            priority_levels=2,
            default_priority_level=1,
            level_policies={1: QueueLimits(timeout_ns=MS, delays=True)},
        )
        enqueue_all(scheduler, [waiting_request(id="2", priority=2), waiting_request(id="late", priority=1)])
        assert ids(scheduler.take(9 * MS)) == ["late"]

    def test_wake_is_the_nearer_of_delay_and_timeout(self):
        # B8
        policy = QueueLimits(timeout_ns=20 * MS, allows_override=True)
        scheduler = DynamicScheduler(max_batch_size=8, delay_ns=10 * MS, default_policy=policy)
        scheduler.enqueue(waiting_request(), 0)
        assert scheduler.take(0) is None
        assert (scheduler.wake_ns(), scheduler.expire_ns()) == (10 * MS, 20 * MS)
        scheduler.enqueue(waiting_request(timeout_us=4000), 0)
        assert scheduler.wake_ns() == 4 * MS

    def test_what_was_taken_does_not_time_out(self):
        # Q8
        scheduler = DynamicScheduler(max_batch_size=4, default_policy=QueueLimits(timeout_ns=5 * MS))
        enqueue_all(scheduler, [waiting_request(), waiting_request()])
        assert scheduler.take(4 * MS).size == 2
        assert (scheduler.expire_ns(), scheduler.expire(9 * MS)) == (0, [])

    def test_delayed_batch_loses_timed_out_requests(self):
        # B8
        policy = QueueLimits(timeout_ns=50 * MS, allows_override=True)
        scheduler = DynamicScheduler(max_batch_size=4, delay_ns=10 * MS, default_policy=policy)
        stays, _ = enqueue_all(scheduler, [waiting_request(), waiting_request(timeout_us=2000)])
        assert scheduler.take(0) is None
        assert scheduler.take(10 * MS).requests == [stays]
        assert len(scheduler.expire(10 * MS)) == 1

    def test_a_burst_of_timeouts_leaves_nothing_behind(self):
        policy = QueueLimits(timeout_ns=MS, allows_override=True)
        scheduler = DynamicScheduler(max_batch_size=8, default_policy=policy)
        requests = enqueue_all(scheduler, [waiting_request(timeout_us=1 + n % 900) for n in range(5000)])
        assert len(scheduler.expire(MS)) == len(requests)
        assert (scheduler.pending_count, scheduler.wake_ns()) == (0, 0)


class TestCancel:
    def test_a_waiting_request_is_removed_once(self):
        # B12
        scheduler = DynamicScheduler(max_batch_size=8)
        first, second, third = enqueue_all(scheduler, [waiting_request() for _ in range(3)])
        assert scheduler.cancel(second)
        assert not scheduler.cancel(second)
        assert scheduler.pending_count == 2
        assert scheduler.take(0).requests == [first, third]
        assert not scheduler.cancel(first)

    def test_a_request_that_never_came_is_not_there(self):
        assert not DynamicScheduler(max_batch_size=8).cancel(waiting_request())

    def test_a_cancelled_request_does_not_time_out(self):
        scheduler = DynamicScheduler(max_batch_size=8, default_policy=QueueLimits(timeout_ns=MS))
        (request,) = enqueue_all(scheduler, [waiting_request()])
        assert scheduler.cancel(request)
        assert scheduler.expire_ns() == 0
        assert scheduler.expire(2 * MS) == []


def test_drain_returns_all_by_priority_and_arrival():
    policy = QueueLimits(timeout_ns=50 * MS)
    scheduler = DynamicScheduler(
        max_batch_size=8, priority_levels=2, default_priority_level=2, delay_ns=MS, default_policy=policy
    )
    low, high, gone = enqueue_all(scheduler, [waiting_request(), waiting_request(priority=1), waiting_request()])
    scheduler.cancel(gone)
    assert scheduler.drain() == [high, low]
    assert (scheduler.pending_count, scheduler.wake_ns(), scheduler.take(MS)) == (0, 0, None)
    assert not scheduler.cancel(low)

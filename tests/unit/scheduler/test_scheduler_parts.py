"""Queues, the default scheduler, and the choice of a scheduler."""

import pytest

from naiad.config.model_config_pb2 import ModelConfig, ModelQueuePolicy
from naiad.options.artificial_delays import ArtificialDelays
from naiad.scheduler.direct import DirectScheduler
from naiad.scheduler.dynamic import DynamicScheduler
from naiad.scheduler.factory import create_scheduler
from naiad.scheduler.queue import Deadlines, RequestQueue
from support.scheduling import MS, enqueue_all, waiting_request


class TestLane:
    def test_stale_entries_do_not_pile_up(self):
        queue = RequestQueue()
        requests = [waiting_request() for _ in range(10_000)]
        for request in requests:
            queue.append(request)
        for request in requests[1:]:
            queue.remove(request)
        assert queue.live_count == 1
        assert len(queue.requests) < 100

    def test_trim_forgets_only_the_front(self):
        queue = RequestQueue()
        first, second, third = (waiting_request() for _ in range(3))
        for request in (first, second, third):
            queue.append(request)
        queue.remove(first)
        queue.remove(third)
        queue.trim()
        assert queue.requests[0] is second


def test_deadlines_of_requests_that_left_are_swept():
    deadlines = Deadlines()
    for number in range(10_000):
        request = waiting_request()
        deadlines.add(request, 10**9 + number)
        deadlines.remove(request)
    assert deadlines.nearest_ns() == 0
    assert len(deadlines._heap) < 100


def test_later_deadline_replaces_that_of_before():
    # Also of another request: the heap knows ids, which are used again.
    deadlines = Deadlines()
    request = waiting_request()
    deadlines.add(request, 100)
    deadlines.remove(request)
    deadlines.add(request, 200)
    assert deadlines.nearest_ns() == 200
    assert deadlines.pop_expired(199) == []
    assert deadlines.pop_expired(200) == [request]


class TestDirect:
    def test_each_request_is_a_batch_in_order(self):
        # B11
        scheduler = DirectScheduler()
        requests = enqueue_all(scheduler, [waiting_request(rows=rows) for rows in (1, 8, 2)])
        batches = [scheduler.take(0) for _ in requests]
        assert [batch.requests[0] for batch in batches] == requests
        assert [batch.size for batch in batches] == [1, 8, 2]
        assert scheduler.take(0) is None

    def test_timeouts_and_priorities_have_no_effect(self):
        # B11
        scheduler = DirectScheduler()
        first, _ = enqueue_all(scheduler, [waiting_request(timeout_us=1), waiting_request(priority=1)])
        assert not scheduler.has_timeouts
        assert (scheduler.expire(MS), scheduler.expire_ns()) == ((), 0)
        assert scheduler.take(MS).requests[0] is first

    def test_cancelled_requests_are_passed_over(self):
        # B12
        scheduler = DirectScheduler()
        first, second, third = enqueue_all(scheduler, [waiting_request() for _ in range(3)])
        assert scheduler.cancel(first)
        assert scheduler.cancel(second)
        assert not scheduler.cancel(second)
        assert scheduler.pending_count == 1
        assert scheduler.take(0).requests[0] is third
        assert scheduler.take(0) is None
        assert scheduler.wake_ns() == 0

    def test_drain(self):
        scheduler = DirectScheduler()
        first, second = enqueue_all(scheduler, [waiting_request(), waiting_request()])
        assert scheduler.wake_ns() > 0
        scheduler.cancel(first)
        assert scheduler.drain() == [second]
        assert scheduler.take(0) is None


class TestFactory:
    def test_no_batching_block_means_no_merging(self):
        # B11
        assert isinstance(create_scheduler(ModelConfig(max_batch_size=8)), DirectScheduler)

    def test_empty_block_allows_batches_up_to_maximum(self):
        config = ModelConfig(max_batch_size=8)
        config.dynamic_batching.SetInParent()
        scheduler = create_scheduler(config)
        assert isinstance(scheduler, DynamicScheduler)
        enqueue_all(scheduler, [waiting_request() for _ in range(9)])
        assert scheduler.take(0).size == 8

    def test_every_field_reaches_the_batcher(self):
        config = ModelConfig(max_batch_size=8)
        batching = config.dynamic_batching
        batching.preferred_batch_size.append(4)
        batching.max_queue_delay_microseconds = 1000
        batching.priority_levels = 2
        batching.default_priority_level = 2
        batching.default_queue_policy.default_timeout_microseconds = 3000
        batching.default_queue_policy.allow_timeout_override = True
        batching.priority_queue_policy[1].timeout_action = ModelQueuePolicy.DELAY
        batching.priority_queue_policy[1].max_queue_size = 1
        scheduler = create_scheduler(config)
        scheduler.enqueue(waiting_request(timeout_us=2000), 0)
        assert scheduler.take(0) is None
        assert (scheduler.wake_ns(), scheduler.expire_ns()) == (MS, 2 * MS)
        scheduler.enqueue(waiting_request(priority=1, id="first"), 0)
        with pytest.raises(Exception, match="Exceeds maximum queue size"):
            scheduler.enqueue(waiting_request(priority=1), 0)
        enqueue_all(scheduler, [waiting_request() for _ in range(3)])
        batch = scheduler.take(0)
        assert (batch.size, batch.requests[0].id, batch.release_reason) == (4, "first", "preferred")

    def test_the_test_hook_holds_the_batcher(self):
        config = ModelConfig(max_batch_size=8)
        config.dynamic_batching.SetInParent()
        scheduler = create_scheduler(config, delays=ArtificialDelays(scheduler_count=2))
        scheduler.enqueue(waiting_request(), 0)
        assert scheduler.take(0) is None

"""Iterative sequences (S-18): a request is executed again and again, in its slot, until it is done."""

import pytest

from naiad.scheduler.sequence.strategies import DirectSequenceScheduler, OldestSequenceScheduler
from support.scheduling import MS, sequence_request

_KINDS = [DirectSequenceScheduler, OldestSequenceScheduler]


def scheduler_of(kind, *, slots=2, idle_ns=1000 * MS):
    return kind(model_name="m", instance_count=1, max_batch_size=slots, idle_ns=idle_ns, is_iterative=True)


def begun(scheduler, *ids, at_ns=1):
    requests = [sequence_request(correlation_id, start=True, at_ns=at_ns) for correlation_id in ids]
    for request in requests:
        scheduler.enqueue(request, at_ns)
    return requests


def taken(scheduler, now_ns=2):
    batch = scheduler.take(now_ns)
    return None if batch is None else list(batch.requests)


@pytest.mark.parametrize("kind", _KINDS)
def test_rescheduled_requests_execute_together_with_new_ones(kind):
    # T2
    scheduler = scheduler_of(kind)
    (first,) = begun(scheduler, 1)
    assert taken(scheduler) == [first]
    (second,) = begun(scheduler, 2)
    assert scheduler.reschedule(first, 3)
    assert sorted(request.header.sequence_id for request in taken(scheduler)) == [1, 2]
    assert scheduler.pending_count == 0
    assert scheduler.live_sequence_count == 2
    for request in (first, second):
        scheduler.release(request, 600 * MS)
    assert scheduler.live_sequence_count == 0


@pytest.mark.parametrize("kind", _KINDS)
def test_request_that_executes_is_not_taken_again(kind):
    # T2
    scheduler = scheduler_of(kind)
    (first,) = begun(scheduler, 1)
    assert taken(scheduler) == [first]
    assert taken(scheduler) is None
    assert scheduler.reschedule(first, 3)
    assert list(scheduler.pop_woken()) == [0]
    assert taken(scheduler) == [first]


@pytest.mark.parametrize("kind", _KINDS)
def test_slot_is_kept_until_the_request_is_done(kind):
    """Notes 12: the slot is freed when the request is finally released."""
    # T3
    scheduler = scheduler_of(kind, slots=1)
    first, second = begun(scheduler, 1, 2)
    for _ in range(3):
        assert taken(scheduler) == [first]
        assert scheduler.reschedule(first, 3)
    assert taken(scheduler) == [first]
    scheduler.release(first, 600 * MS)
    assert taken(scheduler) == [second]
    scheduler.release(second, 600 * MS)
    assert scheduler.live_sequence_count == 0


@pytest.mark.parametrize("kind", _KINDS)
def test_long_execution_does_not_end_sequence(kind):
    """Triton: it does, and rescheduling fails for want of START."""
    # T4
    scheduler = scheduler_of(kind, idle_ns=10 * MS)
    (first,) = begun(scheduler, 1)
    taken(scheduler)
    assert list(scheduler.expire(500 * MS)) == []
    assert scheduler.reschedule(first, 500 * MS)
    assert taken(scheduler, 501 * MS) == [first]
    scheduler.release(first, 600 * MS)
    assert scheduler.live_sequence_count == 0


@pytest.mark.parametrize("kind", _KINDS)
def test_second_request_of_id_waits_for_first(kind):
    # T3
    scheduler = scheduler_of(kind)
    first, second = begun(scheduler, 1, 1)
    assert taken(scheduler) == [first]
    assert scheduler.reschedule(first, 3)
    assert taken(scheduler) == [first]
    scheduler.release(first, 600 * MS)
    assert taken(scheduler) == [second]
    scheduler.release(second, 600 * MS)
    assert scheduler.live_sequence_count == 0


@pytest.mark.parametrize("kind", _KINDS)
def test_rescheduled_request_can_be_cancelled(kind):
    # T5
    scheduler = scheduler_of(kind, slots=1)
    first, second = begun(scheduler, 1, 2)
    taken(scheduler)
    assert scheduler.reschedule(first, 3)
    assert scheduler.cancel(first)
    assert taken(scheduler) == [second]
    assert scheduler.live_sequence_count == 1


@pytest.mark.parametrize("kind", _KINDS)
def test_sequence_of_dead_instance_does_not_continue(kind):
    # T5
    scheduler = scheduler_of(kind)
    (first,) = begun(scheduler, 1)
    taken(scheduler)
    assert scheduler.drain_instance(0) == []
    assert not scheduler.reschedule(first, 3)
    scheduler.release(first, 600 * MS)
    assert scheduler.live_sequence_count == 0
    assert scheduler.pending_count == 0


@pytest.mark.parametrize("kind", _KINDS)
def test_stopping_model_accepts_only_live_sequences(kind):
    # T5
    scheduler = scheduler_of(kind)
    begun(scheduler, 1)
    assert not scheduler.admits_while_stopping(sequence_request(1, start=True))

"""The sequence batcher's rules on slots, the backlog, idleness and ends; numbered in docs/scheduling-rules.md."""

import pytest

from naiad.core.errors import InferError
from naiad.core.request import InferRequest
from naiad.scheduler.sequence.strategies import DirectSequenceScheduler, OldestSequenceScheduler
from support.scheduling import MS, sequence_request

IDLE_NS = 100 * MS


def direct(slots: int = 2, instances: int = 1, **fields: object) -> DirectSequenceScheduler:
    return DirectSequenceScheduler(
        model_name="m", instance_count=instances, max_batch_size=slots, idle_ns=IDLE_NS, **fields
    )


def oldest(slots: int = 2, instances: int = 1, **fields: object) -> OldestSequenceScheduler:
    settings = {"max_batch_size": 4, "max_candidate_sequences": slots, **fields}
    return OldestSequenceScheduler(model_name="m", instance_count=instances, idle_ns=IDLE_NS, **settings)


BOTH = pytest.mark.parametrize("make", [direct, oldest])


def send(scheduler, correlation_id: int | str, name: str = "", at_ns: int = 0, **flags: bool) -> InferRequest:
    request = sequence_request(correlation_id, at_ns=at_ns, **flags)
    request.id = name
    scheduler.enqueue(request, at_ns)
    return request


def take(scheduler, now_ns: int = 0, instance: int = 0) -> list[str]:
    batch = scheduler.take(now_ns, instance)
    return [] if batch is None else [request.id for request in batch.requests]


class TestAdmission:
    @BOTH
    def test_the_correlation_id_is_looked_at_before_start(self, make):
        # S1
        with pytest.raises(InferError, match="must specify a non-zero or non-empty correlation ID"):
            send(make(), 0)

    @BOTH
    def test_what_is_refused_leaves_nothing(self, make):
        # S1
        scheduler = make()
        for correlation_id in (0, 7):
            with pytest.raises(InferError):
                send(scheduler, correlation_id)
        assert (scheduler.pending_count, scheduler.live_sequence_count) == (0, 0)
        assert not scheduler.pop_woken()

    @BOTH
    def test_messages_are_tritons(self, make):
        # S1
        request = sequence_request(7)
        request.id = "abc"
        with pytest.raises(InferError) as caught:
            make().enqueue(request, 0)
        # Without the request's id, which Triton puts before what is wrong with a request itself.
        assert caught.value.message == (
            "inference request for sequence 7 to model 'm' must specify the START flag on the first request of the "
            "sequence"
        )


class TestSlots:
    @pytest.mark.parametrize(("max_batch_size", "slots"), [(0, 1), (1, 1), (4, 4)])
    def test_direct_has_as_many_as_rows(self, max_batch_size, slots):
        # S2
        scheduler = direct(max_batch_size)
        requests = [send(scheduler, key, start=True) for key in range(1, 7)]
        assert [request.sequence.slot for request in requests if not request.sequence.is_backlogged] == [
            *range(slots)
        ]

    @pytest.mark.parametrize(("candidates", "max_batch_size", "slots"), [(3, 1, 3), (0, 4, 4), (0, 0, 1)])
    def test_oldest_slots_default_to_rows(self, candidates, max_batch_size, slots):
        # S2
        scheduler = oldest(candidates, max_batch_size=max_batch_size)
        requests = [send(scheduler, key, start=True) for key in range(1, 7)]
        assert sum(not request.sequence.is_backlogged for request in requests) == slots

    @BOTH
    def test_slot_0_of_instances_fills_first(self, make):
        # S3
        scheduler = make(2, instances=3)
        seats = [send(scheduler, key, start=True).sequence for key in range(1, 7)]
        assert [(seat.slot, seat.instance) for seat in seats] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]

    @BOTH
    def test_lowest_free_slot_is_reused(self, make):
        # S3
        scheduler = make(2, instances=2)
        for key in (1, 2, 3):
            send(scheduler, key, str(key), start=True, end=key == 2)
        assert take(scheduler, instance=1) == ["2"]
        assert take(scheduler, instance=1) == []
        seat = send(scheduler, 4, start=True).sequence
        assert (seat.slot, seat.instance) == (0, 1)

    @BOTH
    def test_start_after_end_opens_another_slot(self, make):
        # S4
        scheduler = make()
        ended = send(scheduler, 7, start=True, end=True).sequence
        opened = send(scheduler, 7, start=True).sequence
        assert ended is not opened
        assert (ended.slot, opened.slot) == (0, 1)

    @BOTH
    def test_start_after_end_without_slot_is_backlogged(self, make):
        # S4
        scheduler = make(1)
        send(scheduler, 7, "old", start=True, end=True)
        send(scheduler, 7, "new", start=True)
        assert take(scheduler) == ["old"]
        assert take(scheduler) == ["new"]

    @BOTH
    def test_one_request_may_be_a_whole_sequence(self, make):
        # S5
        scheduler = make(1)
        for name in "abc":
            send(scheduler, 7, name, start=True, end=True)
        assert [take(scheduler) for _ in range(4)] == [["a"], ["b"], ["c"], []]
        assert scheduler.live_sequence_count == 0

    @BOTH
    def test_duplicate_start_goes_behind_in_the_same_slot(self, make):
        # S6
        scheduler = make()
        first = send(scheduler, 7, "a", start=True)
        second = send(scheduler, 7, "b", start=True)
        assert first.sequence is second.sequence
        assert [take(scheduler), take(scheduler)] == [["a"], ["b"]]


class TestBacklog:
    @BOTH
    def test_whole_sequences_leave_in_order(self, make):
        # S7
        scheduler = make(1)
        send(scheduler, 1, "1a", start=True, end=True)
        for key in (2, 3):
            send(scheduler, key, f"{key}a", start=True)
        for key in (3, 2):
            send(scheduler, key, f"{key}b", end=True)
        assert [take(scheduler) for _ in range(6)] == [["1a"], ["2a"], ["2b"], ["3a"], ["3b"], []]

    @BOTH
    def test_later_requests_follow_their_sequence_into_the_slot(self, make):
        # S7
        scheduler = make(1)
        send(scheduler, 1, "1a", start=True, end=True)
        send(scheduler, 2, "2a", start=True)
        assert [take(scheduler), take(scheduler)] == [["1a"], ["2a"]]
        late = send(scheduler, 2, "2b")
        assert not late.sequence.is_backlogged
        assert take(scheduler) == ["2b"]

    @BOTH
    def test_backlog_cancellation_removes_later_requests_and_place(self, make):
        # S12
        scheduler = make(1)
        send(scheduler, 1, "1a", start=True)
        first = send(scheduler, 2, "2a", start=True)
        send(scheduler, 2, "2b")
        send(scheduler, 3, "3a", start=True)
        assert scheduler.cancel(first)
        assert [dropped.request.id for dropped in scheduler.expire(0)] == ["2b"]
        send(scheduler, 1, "1b", end=True)
        assert [take(scheduler) for _ in range(4)] == [["1a"], ["1b"], ["3a"], []]
        assert scheduler.live_sequence_count == 1

    @BOTH
    def test_idle_sequences_are_reported_to_instance(self, make):
        # S17
        scheduler = make(1)
        send(scheduler, 7, "7a", start=True)
        assert take(scheduler) == ["7a"]
        assert take(scheduler) == []
        scheduler.pop_woken()
        scheduler.expire(IDLE_NS)
        assert scheduler.pop_woken() == {0}
        assert scheduler.pop_ended(0) == [(7, "expired")]
        assert scheduler.pop_ended(0) == ()

    @BOTH
    def test_cancelled_sequences_are_reported_after_execution(self, make):
        # S17
        scheduler = make(1)
        send(scheduler, 7, "7a", start=True)
        assert take(scheduler) == ["7a"]
        assert scheduler.cancel(send(scheduler, 7, "7b"))
        assert scheduler.pop_ended(0) == ()
        assert take(scheduler) == []
        assert scheduler.pop_ended(0) == [(7, "cancelled")]

    @BOTH
    def test_visible_or_foreign_ends_are_not_reported(self, make):
        # S17
        scheduler = make(1)
        send(scheduler, 7, "7a", start=True)
        waiting = send(scheduler, 8, "8a", start=True)
        send(scheduler, 7, "7b", end=True)
        assert scheduler.cancel(waiting)
        assert [take(scheduler) for _ in range(3)] == [["7a"], ["7b"], []]
        scheduler.expire(IDLE_NS)
        assert scheduler.pop_ended(0) == ()

    @BOTH
    def test_end_of_restarted_id_is_not_reported(self, make):
        # S17
        scheduler = make(2)
        send(scheduler, 7, "7a", start=True)
        assert take(scheduler) == ["7a"]
        assert scheduler.cancel(send(scheduler, 7, "7b"))
        send(scheduler, 7, "again", start=True)
        assert take(scheduler) == ["again"]
        assert scheduler.pop_ended(0) == ()

    @BOTH
    def test_dead_instance_gets_no_ends(self, make):
        # S17
        scheduler = make(1)
        send(scheduler, 7, "7a", start=True)
        assert take(scheduler) == ["7a"]
        assert take(scheduler) == []
        scheduler.expire(IDLE_NS)
        scheduler.drain_instance(0)
        assert scheduler.pop_ended(0) == ()

    @BOTH
    def test_a_timeout_counts_in_the_backlog_only(self, make):
        # S8
        scheduler = make(1)
        request = sequence_request(1, start=True, timeout_us=1)
        scheduler.enqueue(request, 0)
        assert scheduler.expire(50 * MS) == []
        assert scheduler.take(50 * MS).requests == [request]


class TestIdleness:
    """S9: the clock of a sequence runs while nothing of it waits or executes."""

    @BOTH
    def test_not_while_a_request_waits(self, make):
        # S9
        scheduler = make()
        send(scheduler, 1, "a", start=True)
        scheduler.expire(5 * IDLE_NS)
        send(scheduler, 1, "b", at_ns=5 * IDLE_NS)
        assert take(scheduler, 5 * IDLE_NS) == ["a"]

    @BOTH
    def test_not_while_a_request_executes(self, make):
        # S9
        scheduler = make()
        send(scheduler, 1, "a", start=True)
        assert take(scheduler) == ["a"]
        scheduler.expire(5 * IDLE_NS)
        send(scheduler, 1, "b", at_ns=5 * IDLE_NS)
        assert take(scheduler, 5 * IDLE_NS) == ["b"]

    @BOTH
    def test_it_begins_when_the_execution_is_over(self, make):
        # S9
        scheduler = make()
        send(scheduler, 1, "a", start=True)
        take(scheduler)
        assert take(scheduler, 3 * IDLE_NS) == [], "the instance has executed it and looks for more"
        scheduler.expire(4 * IDLE_NS - 1)
        assert scheduler.live_sequence_count == 1
        scheduler.expire(4 * IDLE_NS)
        assert scheduler.live_sequence_count == 0

    @BOTH
    def test_begins_with_final_response_of_decoupled_model(self, make):
        scheduler = make(is_decoupled=True)
        request = send(scheduler, 1, "a", start=True)
        take(scheduler)
        take(scheduler)
        scheduler.expire(3 * IDLE_NS)
        scheduler.release(request, 3 * IDLE_NS)
        scheduler.expire(4 * IDLE_NS - 1)
        assert scheduler.live_sequence_count == 1
        scheduler.expire(4 * IDLE_NS)
        assert scheduler.live_sequence_count == 0

    @BOTH
    def test_the_timer_knows_when(self, make):
        scheduler = make()
        send(scheduler, 1, start=True)
        take(scheduler)
        scheduler.expire(IDLE_NS)
        due_ns = scheduler.expire_ns()
        assert IDLE_NS < due_ns <= 2 * IDLE_NS, "a timer would spin, or come too late"

    @BOTH
    def test_late_continuation_error_has_reason(self, make):
        # S9
        scheduler = make()
        send(scheduler, 7, start=True)
        take(scheduler)
        take(scheduler, 10 * MS)
        scheduler.expire(10 * MS + IDLE_NS)
        with pytest.raises(InferError) as caught:
            send(scheduler, 7, at_ns=260 * MS)
        assert "must specify the START flag on the first request of the sequence" in caught.value.message
        assert (
            "sequence 7 has expired: no request arrived for 250 ms, and max_sequence_idle_microseconds is 100000"
            in caught.value.message
        )

    @BOTH
    def test_restarted_sequence_gets_no_old_error(self, make):
        scheduler = make()
        send(scheduler, 7, start=True)
        take(scheduler)
        take(scheduler)
        scheduler.expire(IDLE_NS)
        send(scheduler, 7, at_ns=IDLE_NS, start=True, end=True)
        with pytest.raises(InferError) as caught:
            send(scheduler, 7, at_ns=IDLE_NS)
        assert "expired" not in caught.value.message

    @BOTH
    def test_few_are_remembered(self, make):
        scheduler = make(1, instances=1)
        for number in range(1, 1100):
            now_ns = number * IDLE_NS
            send(scheduler, number, at_ns=now_ns, start=True)
            take(scheduler, now_ns)
            take(scheduler, now_ns)
            scheduler.expire(now_ns + IDLE_NS)
        with pytest.raises(InferError) as caught:
            send(scheduler, 1)
        assert "expired" not in caught.value.message
        with pytest.raises(InferError, match="expired"):
            send(scheduler, 1099, at_ns=1101 * IDLE_NS)


class TestBatches:
    def test_direct_covers_slots_up_to_highest_request(self):
        # S10
        scheduler = direct(4)
        for key in (1, 2, 3, 4):
            send(scheduler, key, start=True)
        scheduler.take(0)
        send(scheduler, 3, "3b")
        batch = scheduler.take(0)
        assert [request.id for request in batch.requests] == ["3b"]
        assert list(batch.slots) == [2], "the executor fills rows 0 and 1"
        assert batch.size == 3, "which count as executed rows"

    def test_direct_freed_slot_is_filled_for_next_batch(self):
        # S11
        scheduler = direct(2)
        send(scheduler, 1, "1", start=True, end=True)
        send(scheduler, 2, "2", start=True)
        send(scheduler, 3, "3", start=True)
        assert take(scheduler) == ["1", "2"]
        send(scheduler, 2, "2b")
        batch = scheduler.take(0)
        assert [(request.id, slot) for request, slot in zip(batch.requests, batch.slots, strict=True)] == [
            ("3", 0),
            ("2b", 1),
        ]

    def test_direct_a_utilisation_without_a_delay_holds_nothing(self):
        # S13
        scheduler = direct(4, minimum_slot_utilization=1.0)
        send(scheduler, 1, "1", start=True)
        assert take(scheduler) == ["1"]

    def test_direct_the_delay_counts_from_the_oldest(self):
        # S13
        scheduler = direct(4, delay_ns=10 * MS, minimum_slot_utilization=1.0)
        send(scheduler, 1, "1", at_ns=0, start=True)
        send(scheduler, 2, "2", at_ns=6 * MS, start=True)
        assert take(scheduler, 10 * MS - 1) == []
        assert scheduler.wake_ns() == 10 * MS
        assert take(scheduler, 10 * MS) == ["1", "2"]

    def test_oldest_without_preferred_sizes_waits_for_maximum(self):
        # S14
        scheduler = oldest(8, delay_ns=10 * MS)
        for key in range(1, 4):
            send(scheduler, key, str(key), start=True)
        assert take(scheduler) == []
        send(scheduler, 4, "4", start=True)
        assert take(scheduler) == ["1", "2", "3", "4"]

    def test_oldest_never_batches_one_sequence_twice(self):
        # S15
        scheduler = oldest(2)
        for name in "abc":
            send(scheduler, 1, f"1{name}", start=name == "a")
        send(scheduler, 2, "2a", start=True)
        assert [take(scheduler) for _ in range(4)] == [["1a", "2a"], ["1b"], ["1c"], []]

    def test_direct_five_hundred_clients_fill_the_slots(self):
        """With 500 clients of 10 requests each, at least 90 % of the rows are real."""
        scheduler = direct(32)
        left = dict.fromkeys(range(1, 501), 10)
        for key in left:
            send(scheduler, key, start=True)
        rows = requests = 0
        while batch := scheduler.take(0):
            rows += batch.slots[-1] + 1
            requests += len(batch.requests)
            for request in batch.requests:
                key = request.header.sequence_id
                left[key] -= 1
                if left[key]:
                    send(scheduler, key, end=left[key] == 1)
        assert not any(left.values())
        assert requests == 5000
        assert requests / rows >= 0.9


@BOTH
def test_ended_sequences_leave_no_records(make):
    scheduler = make()
    send(scheduler, "lives on", start=True)
    for number in range(1000):
        send(scheduler, 1 + number, start=True, end=True, at_ns=number)
        while take(scheduler, number):
            pass
    assert len(scheduler._table._idle) < 200
    assert scheduler.live_sequence_count < 3

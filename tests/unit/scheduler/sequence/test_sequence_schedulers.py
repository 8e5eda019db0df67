"""The sequence batcher with a manual clock: Triton's rules, one by one."""

import pytest

from naiad.core.errors import ErrorCode, FailureReason, InferError
from naiad.core.request import InferRequest, RequestHeader
from naiad.scheduler.sequence.strategies import DirectSequenceScheduler, OldestSequenceScheduler

MS = 1_000_000
S = 1_000 * MS


def of_sequence(
    correlation_id: int | str = 1,
    *,
    start: bool = False,
    end: bool = False,
    at_ns: int = 0,
    rows: int = 1,
    shape: object = "A",
    timeout_us: int = 0,
    name: str = "",
) -> InferRequest:
    header = RequestHeader(
        model_name="m", sequence_id=correlation_id, sequence_start=start, sequence_end=end, timeout_us=timeout_us
    )
    made = InferRequest(header, (), lambda request, response: None, id=name, arrival_ns=at_ns)
    made.batch_size = rows
    made.shape_key = shape
    return made


def direct(instances: int = 1, size: int = 2, **fields: object) -> DirectSequenceScheduler:
    return DirectSequenceScheduler(
        model_name="m", instance_count=instances, max_batch_size=size, idle_ns=1 * S, **fields
    )


def oldest(instances: int = 1, size: int = 4, candidates: int = 4, **fields: object) -> OldestSequenceScheduler:
    return OldestSequenceScheduler(
        model_name="m",
        instance_count=instances,
        max_batch_size=size,
        idle_ns=1 * S,
        max_candidate_sequences=candidates,
        **fields,
    )


def names(batch) -> list[str]:
    return [] if batch is None else [request.id for request in batch.requests]


BOTH = pytest.mark.parametrize("make", [direct, oldest])


# --- admission, in Triton's order -----------------------------------------------------------------------------------


@BOTH
def test_request_with_several_rows_is_rejected_first(make) -> None:
    # S1
    with pytest.raises(InferError, match="must specify batch-size 1 due to requirements of sequence batcher"):
        make().enqueue(of_sequence(0, rows=2), 0)


@BOTH
@pytest.mark.parametrize("nothing", [0, ""])
def test_a_correlation_id_is_needed(make, nothing) -> None:
    with pytest.raises(InferError, match="must specify a non-zero or non-empty correlation ID"):
        make().enqueue(of_sequence(nothing, start=True), 0)


@BOTH
def test_a_sequence_begins_with_start(make) -> None:
    with pytest.raises(InferError, match="must specify the START flag on the first request of the sequence"):
        make().enqueue(of_sequence(7), 0)


@BOTH
def test_integer_and_string_ids_are_distinct(make) -> None:
    scheduler = make()
    scheduler.enqueue(of_sequence(7, start=True), 0)
    with pytest.raises(InferError, match="START"):
        scheduler.enqueue(of_sequence("7"), 0)


@BOTH
def test_end_removes_id_on_arrival(make) -> None:
    # S4
    scheduler = make()
    scheduler.enqueue(of_sequence(7, start=True, end=True), 0)
    with pytest.raises(InferError, match="START"):
        scheduler.enqueue(of_sequence(7), 0)
    scheduler.enqueue(of_sequence(7, start=True), 0)
    assert scheduler.live_sequence_count == 2


# --- direct ---------------------------------------------------------------------------------------------------------


def test_direct_each_sequence_keeps_its_row() -> None:
    # S10
    scheduler = direct(size=3)
    for key in (1, 2, 3):
        scheduler.enqueue(of_sequence(key, start=True, name=f"{key}a"), 0)
    first = scheduler.take(0)
    assert (names(first), list(first.slots)) == (["1a", "2a", "3a"], [0, 1, 2])
    scheduler.enqueue(of_sequence(3, name="3b"), 0)
    scheduler.enqueue(of_sequence(1, name="1b"), 0)
    second = scheduler.take(0)
    assert (names(second), list(second.slots)) == (["1b", "3b"], [0, 2])


def test_direct_takes_one_request_of_each_sequence() -> None:
    scheduler = direct()
    scheduler.enqueue(of_sequence(1, start=True, name="1a"), 0)
    scheduler.enqueue(of_sequence(1, name="1b"), 0)
    assert names(scheduler.take(0)) == ["1a"]
    assert names(scheduler.take(0)) == ["1b"]
    assert scheduler.take(0) is None


def test_direct_fills_slot_0_of_instances_first() -> None:
    scheduler = direct(instances=2)
    for key in (1, 2, 3):
        scheduler.enqueue(of_sequence(key, start=True, name=str(key)), 0)
    assert names(scheduler.take(0, 0)) == ["1", "3"]
    assert names(scheduler.take(0, 1)) == ["2"]


def test_direct_another_shape_waits_a_round() -> None:
    # S10
    scheduler = direct()
    scheduler.enqueue(of_sequence(1, start=True, name="1", shape="A"), 0)
    scheduler.enqueue(of_sequence(2, start=True, name="2", shape="B"), 0)
    first = scheduler.take(0)
    assert (names(first), list(first.slots), first.release_reason) == (["1"], [0], "shape")
    second = scheduler.take(0)
    assert (names(second), list(second.slots)) == (["2"], [1])


def test_direct_backlog_moves_whole_into_freed_slot() -> None:
    scheduler = direct(size=1)
    scheduler.enqueue(of_sequence(1, start=True, name="1a"), 0)
    assert not scheduler.enqueue(of_sequence(2, start=True, name="2a"), 0)
    scheduler.enqueue(of_sequence(2, name="2b"), 0)
    assert names(scheduler.take(0)) == ["1a"]
    assert scheduler.take(0) is None
    scheduler.enqueue(of_sequence(1, end=True, name="1b"), 0)
    assert names(scheduler.take(0)) == ["1b"]
    assert names(scheduler.take(0)) == ["2a"]
    assert names(scheduler.take(0)) == ["2b"]


def test_direct_backlog_wakes_the_instance_that_gets_it() -> None:
    # S7
    scheduler = direct(instances=2, size=1)
    scheduler.enqueue(of_sequence(1, start=True, name="1"), 0)
    scheduler.enqueue(of_sequence(2, start=True, name="2"), 0)
    scheduler.enqueue(of_sequence(3, start=True, name="3"), 0)
    assert set(scheduler.pop_woken()) == {0, 1}
    scheduler.enqueue(of_sequence(2, end=True, name="2b"), 0)
    scheduler.pop_woken()
    assert names(scheduler.take(0, 1)) == ["2"]
    assert names(scheduler.take(0, 1)) == ["2b"]
    assert scheduler.live_sequence_count == 3
    assert names(scheduler.take(0, 1)) == ["3"]
    assert set(scheduler.pop_woken()) == {1}
    assert scheduler.live_sequence_count == 2


def test_direct_duplicate_start_queues_in_same_slot() -> None:
    scheduler = direct()
    scheduler.enqueue(of_sequence(1, start=True, name="1a"), 0)
    scheduler.enqueue(of_sequence(1, start=True, name="1b"), 0)
    first, second = scheduler.take(0), scheduler.take(0)
    assert names(first) == ["1a"]
    assert names(second) == ["1b"]
    assert first.requests[0].sequence is second.requests[0].sequence


def test_direct_delay_counts_only_beside_a_utilisation() -> None:
    # S13
    scheduler = direct(size=4, delay_ns=5 * MS)
    scheduler.enqueue(of_sequence(1, start=True, name="1"), 0)
    batch = scheduler.take(0)
    assert (names(batch), batch.release_reason) == (["1"], "idle")


def test_direct_waits_for_the_utilisation_or_the_delay() -> None:
    # S13
    scheduler = direct(size=4, delay_ns=5 * MS, minimum_slot_utilization=0.5)
    scheduler.enqueue(of_sequence(1, start=True, name="1"), 0)
    assert scheduler.take(0) is None
    assert scheduler.wake_ns() == 5 * MS
    scheduler.enqueue(of_sequence(2, start=True, name="2", at_ns=1 * MS), 1 * MS)
    batch = scheduler.take(1 * MS)
    assert (names(batch), batch.release_reason) == (["1", "2"], "preferred")
    scheduler.enqueue(of_sequence(1, name="1b", at_ns=10 * MS), 10 * MS)
    assert scheduler.take(14 * MS) is None
    late = scheduler.take(15 * MS)
    assert (names(late), late.release_reason) == (["1b"], "delay")


def test_direct_decoupled_sequence_waits_for_the_final_response() -> None:
    # S16
    scheduler = direct(is_decoupled=True)
    first = of_sequence(1, start=True, name="1a")
    scheduler.enqueue(first, 0)
    scheduler.enqueue(of_sequence(1, name="1b"), 0)
    assert names(scheduler.take(0)) == ["1a"]
    assert scheduler.take(0) is None
    scheduler.pop_woken()
    scheduler.release(first, 0)
    assert set(scheduler.pop_woken()) == {0}
    assert names(scheduler.take(0)) == ["1b"]


# --- oldest ---------------------------------------------------------------------------------------------------------


def test_oldest_batches_one_request_per_sequence() -> None:
    scheduler = oldest(size=2, candidates=3)
    for key in (1, 2, 3):
        scheduler.enqueue(of_sequence(key, start=True, name=f"{key}a", at_ns=key), 0)
    scheduler.enqueue(of_sequence(1, name="1b", at_ns=4), 0)
    assert names(scheduler.take(10)) == ["1a", "2a"]
    assert names(scheduler.take(10)) == ["3a", "1b"]


def test_oldest_feeds_next_request_after_execution() -> None:
    # S15
    scheduler = oldest()
    scheduler.enqueue(of_sequence(1, start=True, name="1a"), 0)
    scheduler.enqueue(of_sequence(1, end=True, name="1b"), 0)
    assert names(scheduler.take(0)) == ["1a"]
    assert names(scheduler.take(0)) == ["1b"]
    assert scheduler.live_sequence_count == 1
    assert scheduler.take(0) is None
    assert scheduler.live_sequence_count == 0


def test_oldest_a_sequence_stays_on_its_instance() -> None:
    # S15
    scheduler = oldest(instances=2)
    scheduler.enqueue(of_sequence(1, start=True, name="1a"), 0)
    scheduler.enqueue(of_sequence(2, start=True, name="2a"), 0)
    assert names(scheduler.take(0, 1)) == ["2a"]
    assert names(scheduler.take(0, 0)) == ["1a"]
    scheduler.enqueue(of_sequence(2, name="2b"), 0)
    assert scheduler.take(0, 0) is None
    assert names(scheduler.take(0, 1)) == ["2b"]


def test_oldest_uses_delay_and_preferred_sizes() -> None:
    # S14
    scheduler = oldest(size=4, candidates=8, preferred_batch_sizes=[2], delay_ns=5 * MS)
    scheduler.enqueue(of_sequence(1, start=True, name="1"), 0)
    assert scheduler.take(0) is None
    assert scheduler.wake_ns() == 5 * MS
    scheduler.enqueue(of_sequence(2, start=True, name="2"), 0)
    batch = scheduler.take(0)
    assert (names(batch), batch.release_reason) == (["1", "2"], "preferred")


def test_oldest_decoupled_sequence_waits_for_the_final_response() -> None:
    # S16
    scheduler = oldest(is_decoupled=True)
    first = of_sequence(1, start=True, name="1a")
    scheduler.enqueue(first, 0)
    scheduler.enqueue(of_sequence(1, name="1b"), 0)
    assert names(scheduler.take(0)) == ["1a"]
    assert scheduler.take(0) is None
    scheduler.release(first, 0)
    assert names(scheduler.take(0)) == ["1b"]


# --- idleness, timeouts, cancellation ------------------------------------------------------------------------------


@BOTH
def test_an_idle_sequence_loses_its_slot(make) -> None:
    # S9
    scheduler = make(1, 1, **({"candidates": 1} if make is oldest else {}))
    scheduler.enqueue(of_sequence(1, start=True, name="1"), 0)
    scheduler.enqueue(of_sequence(2, start=True, name="2"), 0)
    assert names(scheduler.take(0)) == ["1"]
    assert scheduler.take(0) is None
    assert scheduler.expire_ns() == 1 * S
    assert list(scheduler.expire(1 * S)) == []
    assert names(scheduler.take(1 * S)) == ["2"]
    with pytest.raises(InferError, match="START"):
        scheduler.enqueue(of_sequence(1), 1 * S)


@BOTH
def test_a_request_keeps_its_sequence_from_being_idle(make) -> None:
    scheduler = make()
    scheduler.enqueue(of_sequence(1, start=True), 0)
    scheduler.take(0)
    scheduler.enqueue(of_sequence(1, name="b"), 900 * MS)
    scheduler.take(900 * MS)
    scheduler.take(900 * MS)
    scheduler.expire(1 * S)
    scheduler.enqueue(of_sequence(1, name="c"), 1800 * MS)
    assert names(scheduler.take(1800 * MS)) == ["c"]


@BOTH
def test_backlog_timeout_ends_whole_sequence(make) -> None:
    # S8
    scheduler = make(1, 1, **({"candidates": 1} if make is oldest else {}))
    scheduler.enqueue(of_sequence(1, start=True), 0)
    scheduler.enqueue(of_sequence(2, start=True, name="2a"), 0)
    scheduler.enqueue(of_sequence(2, name="2b", timeout_us=1000), 0)
    assert scheduler.expire_ns() == 1 * MS
    dropped = scheduler.expire(1 * MS)
    assert [item.request.id for item in dropped] == ["2a", "2b"]
    assert all(item.error.code is ErrorCode.UNAVAILABLE for item in dropped)
    assert scheduler.pending_count == 1
    assert scheduler.live_sequence_count == 1


@BOTH
def test_cancelling_drops_what_waits_behind_in_the_sequence(make) -> None:
    # S12
    scheduler = make()
    requests = [of_sequence(1, start=True, name="a"), of_sequence(1, name="b"), of_sequence(1, name="c")]
    for request in requests:
        scheduler.enqueue(request, 0)
    assert scheduler.cancel(requests[1])
    dropped = scheduler.expire(0)
    assert [item.request.id for item in dropped] == ["c"]
    assert dropped[0].error.reason is FailureReason.CANCELED
    assert dropped[0].error.message.startswith("[request id: c] a request before it in its sequence was cancelled")
    assert names(scheduler.take(0)) == ["a"]
    assert scheduler.take(0) is None
    assert scheduler.live_sequence_count == 0
    assert not scheduler.cancel(requests[0])


@BOTH
def test_cancelling_the_first_frees_the_slot(make) -> None:
    # S12
    scheduler = make(1, 1, **({"candidates": 1} if make is oldest else {}))
    first = of_sequence(1, start=True, name="1")
    scheduler.enqueue(first, 0)
    scheduler.enqueue(of_sequence(2, start=True, name="2"), 0)
    assert scheduler.cancel(first)
    assert names(scheduler.take(0)) == ["2"]


@BOTH
def test_draining_an_instance_ends_its_sequences_only(make) -> None:
    scheduler = make(2)
    scheduler.enqueue(of_sequence(1, start=True, name="1a"), 0)
    scheduler.enqueue(of_sequence(2, start=True, name="2a"), 0)
    scheduler.enqueue(of_sequence(1, name="1b"), 0)
    assert sorted(request.id for request in scheduler.drain_instance(0)) == ["1a", "1b"]
    assert scheduler.pending_count == 1
    assert names(scheduler.take(0, 1)) == ["2a"]
    with pytest.raises(InferError, match="START"):
        scheduler.enqueue(of_sequence(1), 0)


@BOTH
def test_end_after_lost_instance_frees_slot_once(make) -> None:
    scheduler = make(1, 1, is_decoupled=True, **({"candidates": 1} if make is oldest else {}))
    lost = of_sequence(1, start=True, name="lost")
    scheduler.enqueue(lost, 0)
    assert names(scheduler.take(0)) == ["lost"]
    scheduler.drain_instance(0)
    scheduler.release(lost, 0)
    assert scheduler.live_sequence_count == 0
    scheduler.enqueue(of_sequence(2, start=True), 0)
    waiting = of_sequence(3, start=True)
    scheduler.enqueue(waiting, 0)
    assert waiting.sequence.is_backlogged, "two sequences in one slot"


def test_oldest_drained_execution_frees_slot_once() -> None:
    scheduler = oldest()
    scheduler.enqueue(of_sequence(1, start=True, end=True), 0)
    scheduler.take(0)
    scheduler.drain()
    assert scheduler.take(0) is None
    assert scheduler.live_sequence_count == 0, "a driver would wait for the end of a sequence that is no more"


@BOTH
def test_backlogged_sequence_does_not_become_idle(make) -> None:
    # S9
    scheduler = make(1, 1, **({"candidates": 1} if make is oldest else {}))
    scheduler.enqueue(of_sequence(1, start=True, name="1a"), 0)
    scheduler.enqueue(of_sequence(2, start=True, name="2a"), 0)
    assert names(scheduler.take(0)) == ["1a"]
    scheduler.enqueue(of_sequence(1, name="1b"), 1 * S - MS)
    scheduler.expire(1 * S)
    scheduler.enqueue(of_sequence(2, name="2b"), 1 * S)  # would be refused if it had ended
    assert names(scheduler.take(1 * S)) == ["1b"]


@BOTH
def test_draining_returns_everything(make) -> None:
    scheduler = make(1, 1, **({"candidates": 1} if make is oldest else {}))
    for key in (1, 2):
        scheduler.enqueue(of_sequence(key, start=True, name=f"{key}a"), 0)
        scheduler.enqueue(of_sequence(key, name=f"{key}b"), 0)
    assert sorted(request.id for request in scheduler.drain()) == ["1a", "1b", "2a", "2b"]
    assert (scheduler.pending_count, scheduler.live_sequence_count) == (0, 0)
    assert scheduler.take(0) is None
    scheduler.enqueue(of_sequence(1, start=True, name="new"), 0)
    assert names(scheduler.take(0)) == ["new"]


@BOTH
def test_live_sequence_continues_while_model_stops(make) -> None:
    # S1
    scheduler = make()
    scheduler.enqueue(of_sequence(1, start=True), 0)
    assert scheduler.admits_while_stopping(of_sequence(1))
    assert not scheduler.admits_while_stopping(of_sequence(2, start=True))


@pytest.mark.parametrize("make", [lambda: direct(2, size=1), lambda: oldest(2, candidates=1)])
def test_request_needs_instance_of_its_sequence(make) -> None:
    scheduler = make()
    for number in (1, 2, 3):
        scheduler.enqueue(of_sequence(number, start=True), 0)
    assert [scheduler.instance_of(of_sequence(number)) for number in (1, 2, 3, 4)] == [0, 1, None, None]
    assert scheduler.instance_of(of_sequence(2, start=True)) is None

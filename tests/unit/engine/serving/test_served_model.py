"""A served model answers every request exactly once, for any behaviour of its instances."""

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError, invalid_argument
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.serving.served_model import ServedModel
from naiad.scheduler.api import Dropped
from naiad.scheduler.direct import DirectScheduler
from naiad.scheduler.queue import overload_error
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from support.engine_parts import (
    Answers,
    Gate,
    ScriptedInstance,
    ScriptedModel,
    Serve,
    StepLoop,
    config,
    header,
    request,
    served_model,
)
from support.model_call_parts import FakeServed, make_call


def now_request(answers: Answers, request_id: str = "", **fields: object) -> object:
    return request(answers, request_id, arrival_ns=time.monotonic_ns(), **fields)  # type: ignore[arg-type]


def test_answers_a_request(serve: Serve, loop: StepLoop) -> None:
    answers = Answers()
    model = serve([ScriptedInstance()])
    model.submit(now_request(answers, "a"))
    loop.run_until(lambda: len(answers) == 1)
    assert answers.received[0][0] == "a"
    assert answers.received[0][1].error is None
    snapshot = model.statistics.snapshot()
    assert (snapshot.success.count, snapshot.inference_count, snapshot.execution_count) == (1, 1, 1)


def test_requests_that_wait_for_the_instance_execute_together(serve: Serve, loop: StepLoop) -> None:
    # B10
    gate, answers = Gate(), Answers()
    instance = ScriptedInstance(gate)
    model = serve([instance], config(dynamic_batching={}))
    model.submit(now_request(answers, "first"))
    gate.reached.acquire()
    for number in range(5):
        model.submit(now_request(answers, str(number)))
    assert model.pending_count == 5
    gate.opened.release(2)
    loop.run_until(lambda: len(answers) == 6)
    assert [batch.size for batch in instance.batches] == [1, 5]
    assert [request_id for request_id, _ in answers.received] == ["first", "0", "1", "2", "3", "4"]


def test_exception_fails_its_whole_batch_only(serve: Serve, loop: StepLoop) -> None:
    def fail(batch: Batch) -> Sequence[InferResponse]:
        raise RuntimeError("boom")

    instance, answers = ScriptedInstance(fail), Answers()
    model = serve([instance])
    model.submit(now_request(answers, "bad"))
    loop.run_until(lambda: len(answers) == 1)
    error = answers.received[0][1].error
    assert error is not None
    assert error.code is ErrorCode.INTERNAL
    assert "RuntimeError: boom" in error.message
    assert "fail" in error.detail
    instance.script = None
    model.submit(now_request(answers, "good"))
    loop.run_until(lambda: len(answers) == 2)
    assert answers.received[1][1].error is None
    assert model.statistics.snapshot().failures[FailureReason.BACKEND] == 1


def test_wrong_response_count_fails_every_request(serve: Serve, loop: StepLoop) -> None:
    answers = Answers()
    model = serve([ScriptedInstance(lambda batch: [])])
    model.submit(now_request(answers))
    loop.run_until(lambda: len(answers) == 1)
    error = answers.received[0][1].error
    assert error is not None
    assert "returned 0 responses for 1 requests" in error.message


@pytest.mark.parametrize(
    "script",
    [lambda batch: None, lambda batch: [None], lambda batch: sys.exit("enough"), lambda batch: 7],
    ids=["none", "no-response", "exit", "number"],
)
def test_invalid_backend_result_costs_only_the_batch(
    serve: Serve, loop: StepLoop, script: Callable[[Batch], Any]
) -> None:
    instance, answers = ScriptedInstance(script), Answers()
    model = serve([instance])
    model.submit(now_request(answers, "bad"))
    loop.run_until(lambda: len(answers) == 1)
    error = answers.received[0][1].error
    assert error is not None
    assert error.code is ErrorCode.INTERNAL
    instance.script = None
    model.submit(now_request(answers, "good"))
    loop.run_until(lambda: len(answers) == 2)
    assert answers.received[1][1].error is None
    assert model.in_flight_count == 0
    snapshot = model.statistics.snapshot()
    assert (snapshot.success.count, snapshot.fail.count) == (1, 1)


def test_infer_error_of_a_backend_keeps_its_code(serve: Serve, loop: StepLoop) -> None:
    def refuse(batch: Batch) -> Sequence[InferResponse]:
        raise invalid_argument("no such class")

    answers = Answers()
    serve([ScriptedInstance(refuse)]).submit(now_request(answers))
    loop.run_until(lambda: len(answers) == 1)
    error = answers.received[0][1].error
    assert error is not None
    assert (error.code, error.message) == (ErrorCode.INVALID_ARG, "no such class")


def test_timeout_gets_its_response_while_instances_are_busy(serve: Serve, loop: StepLoop) -> None:
    # Q7
    policy = {"default_timeout_microseconds": 20_000, "timeout_action": "REJECT"}
    # A level of its own: the request that keeps the instance busy must not be late itself on a slow machine.
    levels = {"priority_levels": 2, "default_priority_level": 1, "priority_queue_policy": {2: policy}}
    gate, answers = Gate(), Answers()
    model = serve([ScriptedInstance(gate)], config(dynamic_batching=levels))
    model.submit(now_request(answers, "running"))
    assert gate.reached.acquire(timeout=60)
    made = header()
    made.priority = 2
    model.submit(now_request(answers, "late", made=made))
    loop.run_until(lambda: len(answers) == 1)
    request_id, response = answers.received[0]
    assert request_id == "late"
    assert response.error is not None
    assert response.error.code is ErrorCode.UNAVAILABLE
    assert response.error.message == "Request timeout expired"
    gate.opened.release()
    loop.run_until(lambda: len(answers) == 2)
    assert model.statistics.snapshot().failures[FailureReason.REJECTED] == 1


def test_a_full_queue_refuses_at_the_door(serve: Serve, loop: StepLoop) -> None:
    gate, answers = Gate(), Answers()
    model = serve([ScriptedInstance(gate)], config(dynamic_batching={"default_queue_policy": {"max_queue_size": 2}}))
    model.submit(now_request(answers))
    gate.reached.acquire()
    for _ in range(2):
        model.submit(now_request(answers))
    with pytest.raises(InferError, match="Exceeds maximum queue size") as caught:
        model.submit(now_request(answers))
    assert caught.value.code is ErrorCode.UNAVAILABLE
    gate.opened.release(2)
    loop.run_until(lambda: len(answers) == 3)


def test_cancelled_waiting_request_never_executes(serve: Serve, loop: StepLoop) -> None:
    gate, answers = Gate(), Answers()
    instance = ScriptedInstance(gate)
    model = serve([instance])
    model.submit(now_request(answers, "running"))
    gate.reached.acquire()
    waiting = now_request(answers, "waiting")
    model.submit(waiting)
    assert model.cancel(waiting)
    # At once: the loop has nothing to do for it.
    error = answers.received[0][1].error
    assert error is not None
    assert error.code is ErrorCode.CANCELLED
    assert waiting.data == ()
    assert not model.cancel(waiting)
    gate.opened.release()
    loop.run_until(lambda: len(answers) == 2)
    assert [r.id for batch in instance.batches for r in batch.requests] == ["running"]
    counts = model.statistics.snapshot()
    assert (counts.cancelled_in_queue_count, counts.cancelled_in_execution_count) == (1, 0)
    assert counts.failures[FailureReason.CANCELED] == 1


def test_cancelled_executing_request_counts_once(serve: Serve, loop: StepLoop) -> None:
    gate, answers = Gate(), Answers()
    model = serve([ScriptedInstance(gate)])
    running = now_request(answers, "running")
    model.submit(running)
    gate.reached.acquire()
    assert not model.cancel(running)
    assert not model.cancel(running)
    assert running.cancelled
    gate.opened.release()
    loop.run_until(lambda: len(answers) == 1)
    counts = model.statistics.snapshot()
    assert (counts.cancelled_in_queue_count, counts.cancelled_in_execution_count) == (0, 1)
    assert counts.failures[FailureReason.CANCELED] == 0


def test_a_storm_of_cancels_leaves_nothing_waiting(serve: Serve, loop: StepLoop) -> None:
    gate, answers = Gate(), Answers()
    made = config(max_batch_size=1, dynamic_batching={"default_queue_policy": {"max_queue_size": 500}})
    model = serve([ScriptedInstance(gate)], made)
    model.submit(now_request(answers, "running"))
    gate.reached.acquire()
    for _ in range(20):
        # As many as may wait: a cancelled request takes no room.
        requests = [now_request(answers) for _ in range(500)]
        for each in requests:
            model.submit(each)
        assert model.pending_count == 500
        for each in requests:
            assert model.cancel(each)
        assert model.pending_count == 0
    gate.opened.release()
    loop.run_until(lambda: model.in_flight_count == 0)
    assert len(answers) == 10_001
    assert model.statistics.snapshot().cancelled_in_queue_count == 10_000


def test_preserve_ordering_holds_a_fast_answer_back(serve: Serve, loop: StepLoop) -> None:
    # B13
    slow, answers = Gate(), Answers()

    def by_id(batch: Batch) -> Sequence[InferResponse]:
        if batch.requests[0].id == "slow":
            return slow(batch)
        return [InferResponse(ResponseHeader("m", "1", ()), [])]

    made = config(max_batch_size=1, dynamic_batching={"preserve_ordering": True})
    instances = [ScriptedInstance(by_id), ScriptedInstance(by_id)]
    model = serve(instances, made)
    first, second = now_request(answers, "slow"), now_request(answers, "fast")
    model.submit(first)
    slow.reached.acquire()
    model.submit(second)
    while model.in_flight_count != 1:
        time.sleep(0.001)
    assert len(answers) == 0
    slow.opened.release()
    loop.run_until(lambda: len(answers) == 2)
    assert [request_id for request_id, _ in answers.received] == ["slow", "fast"]


def test_call_of_held_instances_is_refused(serve: Serve, loop: StepLoop) -> None:
    answers, instances = Answers(), [ScriptedInstance(), ScriptedInstance()]
    model = serve(instances)
    call = make_call(FakeServed("a"), FakeServed("m"))
    call.header, call.data, call.on_response = header(), [bytes(8)], answers
    call.held = frozenset(map(id, instances))
    with pytest.raises(
        InferError, match=r"would wait for itself \(a -> m\): .* every instance of model 'm'"
    ) as caught:
        model.submit(call)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert model.in_flight_count == 0
    call.held = frozenset([id(instances[0])])
    model.submit(call)
    loop.run_until(lambda: len(answers) == 1)
    assert answers.received[0][1].error is None


def test_ordered_model_rejects_call_of_own_request(serve: Serve, loop: StepLoop) -> None:
    answers = Answers()
    model = serve([ScriptedInstance(), ScriptedInstance()], config(dynamic_batching={"preserve_ordering": True}))
    executed = now_request(answers, "executed")
    model.submit(executed)
    loop.run_until(lambda: len(answers) == 1)
    call = make_call(FakeServed("m"), FakeServed("m"), parents=[executed])  # type: ignore[list-item]
    call.header, call.data, call.on_response = header(), [bytes(8)], answers
    with pytest.raises(InferError, match="preserve_ordering"):
        model.submit(call)
    call.parents = []
    model.submit(call)
    loop.run_until(lambda: len(answers) == 2)


def test_stop_finishes_accepted_requests_and_rejects_new(serve: Serve, loop: StepLoop) -> None:
    gate, answers = Gate(), Answers()
    instance = ScriptedInstance(gate)
    model = serve([instance])
    for _ in range(3):
        model.submit(now_request(answers))
    gate.opened.release(3)
    assert model.stop(10.0)
    with pytest.raises(InferError, match="stopped accepting new inference requests"):
        model.submit(now_request(answers))
    loop.run_until(lambda: len(answers) == 3)
    assert all(response.error is None for _, response in answers.received)
    assert instance.closed


def test_an_abort_knows_what_had_begun(serve: Serve, loop: StepLoop) -> None:
    gate, answers = Gate(), Answers()
    model = serve([ScriptedInstance(gate)])
    model.submit(now_request(answers, "running"))
    gate.reached.acquire()
    model.submit(now_request(answers, "waiting"))
    model.abort("the server exits")
    gate.opened.release()
    loop.run_until(lambda: len(answers) == 2)
    errors = {name: response.error for name, response in answers.received}
    assert {name: error.has_begun for name, error in errors.items() if error} == {
        "running": True,
        "waiting": False,
    }


def test_requests_fail_at_once_without_usable_instance(serve: Serve, loop: StepLoop) -> None:
    answers = Answers()
    instance = ScriptedInstance()
    model = serve([instance])
    instance.reason = "worker was killed by SIGSEGV"
    deadline = time.monotonic() + 60
    while not any(r.error for _, r in answers.received):
        assert time.monotonic() < deadline
        try:
            model.submit(now_request(answers))
        except InferError as error:
            assert "SIGSEGV" in error.message  # noqa: PT017 - either way of refusing is right
            break
        seen = len(answers)
        loop.run_until(lambda seen=seen: len(answers) > seen)
    assert model.health == "worker was killed by SIGSEGV"
    instance.reason = ""
    before = len(answers)
    model.submit(now_request(answers))
    loop.run_until(lambda: len(answers) > before)
    assert answers.received[-1][1].error is None


def test_batches_that_finish_together_wake_loop_once(serve: Serve, loop: StepLoop) -> None:
    answers = Answers()
    instance = ScriptedInstance()
    model = serve([instance])
    for _ in range(20):
        model.submit(now_request(answers))
    while model.in_flight_count:
        time.sleep(0.001)
    assert loop.wakes == 1
    loop.run_until(lambda: len(answers) == 20)


def test_a_repeated_header_is_checked_once(serve: Serve, loop: StepLoop) -> None:
    answers = Answers()
    model = serve([ScriptedInstance()])
    shared = header()
    model.submit(now_request(answers, made=shared))
    admission = shared.admission
    model.submit(now_request(answers, made=shared))
    assert shared.admission is admission
    loop.run_until(lambda: len(answers) == 2)


class FastInstance(ScriptedInstance):
    """May run anywhere, and notes where it did."""

    runs_on_any_thread = True

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []
        self.delay_s = 0.0

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        self.threads.append(threading.get_ident())
        if self.delay_s:
            time.sleep(self.delay_s)
        return super().execute(batch)


def test_instance_moves_between_loop_and_thread(serve: Serve, loop: StepLoop) -> None:
    answers = Answers()
    instance = FastInstance()
    model = serve([instance])

    def ask() -> None:
        seen = len(answers)
        model.submit(now_request(answers))
        loop.run_until(lambda: len(answers) > seen)

    here = threading.get_ident()
    deadline = time.monotonic() + 60
    while here not in instance.threads and time.monotonic() < deadline:
        ask()
    assert here in instance.threads
    instance.delay_s = 0.02
    ask()  # the first doubt, from which on the loop looks closer
    ask()
    instance.delay_s = 0.0
    instance.threads.clear()
    for _ in range(20):
        ask()
    assert here not in instance.threads
    assert all(response.error is None for _, response in answers.received)


def test_stop_ends_instance_on_the_loop(serve: Serve, loop: StepLoop) -> None:
    answers = Answers()
    instance = FastInstance()
    model = serve([instance])
    for number in range(200):
        model.submit(now_request(answers))
        loop.run_until(lambda number=number: len(answers) > number)
    assert model.stop(10.0)
    assert instance.closed


def test_unhealthy_woken_instance_passes_request_on(serve: Serve, loop: StepLoop) -> None:
    well, ill = ScriptedInstance(), ScriptedInstance()
    model, answers = serve([well, ill]), Answers()
    ill.reason = "its worker was killed by SIGKILL; it is being restarted"
    model.submit(now_request(answers))  # wakes the one that fell asleep last, also an unhealthy one
    loop.run_until(lambda: len(answers) == 1)
    assert answers.received[0][1].error is None
    assert (len(well.batches), len(ill.batches)) == (1, 0)


def test_cached_header_does_not_keep_stopped_version(loop: StepLoop) -> None:
    answers, remembered = Answers(), header()
    model = served_model([ScriptedInstance()], loop)
    model.submit(now_request(answers, made=remembered))
    loop.run_until(lambda: len(answers) == 1)
    assert model.stop(60.0)
    left = weakref.ref(model)
    del model
    gc.collect()
    assert remembered.admission is not None
    assert left() is None


def test_a_request_whose_deadline_has_passed_never_executes(serve: Serve, loop: StepLoop) -> None:
    gate, answers = Gate(), Answers()
    instance = ScriptedInstance(gate)
    model = serve([instance], config(dynamic_batching={}))
    model.submit(now_request(answers, "running"))
    gate.reached.acquire()
    made = [now_request(answers, name) for name in ("over", "in time", "without")]
    for waiting in made:
        # As one that waited while a loop with much to do came late to its timers.
        waiting.arrival_ns = time.monotonic_ns() - 20_000_000
    made[0].deadline_ns = time.monotonic_ns() - 1
    made[1].deadline_ns = time.monotonic_ns() + 60 * 10**9
    for waiting in made:
        model.submit(waiting)
    gate.opened.release(2)
    loop.run_until(lambda: len(answers) == 4)
    assert [[r.id for r in batch.requests] for batch in instance.batches] == [["running"], ["in time", "without"]]
    assert instance.batches[1].size == 2
    errors = {request_id: response.error for request_id, response in answers.received}
    assert errors["over"] is not None
    assert errors["over"].code is ErrorCode.DEADLINE_EXCEEDED
    assert model.statistics.snapshot().failures[FailureReason.CANCELED] == 1


@pytest.mark.parametrize("batching", [None, {}, {"parameters": True}], ids=["direct", "dynamic", "adaptive"])
def test_batch_without_requests_left_is_skipped(serve: Serve, loop: StepLoop, batching: Any) -> None:
    gate, answers = Gate(), Answers()
    instance = ScriptedInstance(gate)
    made = config() if batching is None else config(dynamic_batching={})
    if batching:
        made.parameters["adaptive_batching"].string_value = "true"
    model = serve([instance], made)
    model.submit(now_request(answers, "running"))
    gate.reached.acquire()
    for name in ("a", "b", "c"):
        waiting = now_request(answers, name)
        waiting.arrival_ns, waiting.deadline_ns = time.monotonic_ns() - 20_000_000, 1
        model.submit(waiting)
    gate.opened.release()
    loop.run_until(lambda: len(answers) == 4)
    model.submit(now_request(answers, "next"))
    gate.opened.release()
    loop.run_until(lambda: len(answers) == 5)
    assert [[r.id for r in batch.requests] for batch in instance.batches] == [["running"], ["next"]]
    assert model.in_flight_count == 0


class RefusingScheduler(DirectScheduler):
    """Drops what waits for a request that is taken, as overload does with the oldest."""

    def take(self, now_ns: int, instance: int = 0) -> Batch | None:
        batch = super().take(now_ns, instance)
        self.dropped = [Dropped(each, overload_error(each)) for each in self.drain()]
        return batch


def test_what_overload_refuses_is_answered_and_counted(loop: StepLoop) -> None:
    gate, answers = Gate(), Answers()
    instance, made = ScriptedInstance(gate), config()
    model = ServedModel(
        name="m",
        version=1,
        config=made,
        backend_model=ScriptedModel(),
        instances=[instance],
        scheduler=RefusingScheduler(),
        statistics=ModelStatistics("m", "1"),
        loop=loop,
    )
    try:
        model.submit(now_request(answers, "running"))
        gate.reached.acquire()
        assert model.oldest_ns == 0
        for name in ("goes", "a", "b"):
            model.submit(now_request(answers, name))
        assert 0 < model.oldest_ns <= time.monotonic_ns()
        gate.opened.release(2)
        loop.run_until(lambda: len(answers) == 4)
    finally:
        gate.opened.release(10)
        assert model.stop(60)
    errors = {name: response.error for name, response in answers.received if response.error is not None}
    assert set(errors) == {"a", "b"}
    assert errors["a"].message == "[request id: a] Exceeds maximum queue size"
    assert errors["a"].code is ErrorCode.UNAVAILABLE
    assert model.statistics.snapshot().failures[FailureReason.REJECTED] == 2
    assert [r.id for batch in instance.batches for r in batch.requests] == ["running", "goes"]

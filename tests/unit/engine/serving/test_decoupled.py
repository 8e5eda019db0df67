"""A decoupled model: any number of responses a request, one of them final, for any behaviour of its instance."""

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from naiad.core.batch import Batch
from naiad.core.environment.model_call import ModelCall
from naiad.core.errors import ErrorCode, FailureReason, InferError, invalid_argument
from naiad.core.request import RequestHeader
from naiad.core.response import RESCHEDULE, InferResponse, ResponseHeader
from naiad.engine.serving.decoupled import DecoupledResponses
from naiad.engine.serving.served_model import ServedModel
from naiad.telemetry.statistics.part_statistics import ResponseStatistics
from support.engine_parts import Answers, ScriptedInstance, Serve, StepLoop, config, request, served_model

HEADER = ResponseHeader("m", "1", ())


def part(number: int, *, final: bool = False) -> InferResponse:
    return InferResponse(HEADER, [], parameters={"number": number}, final=final)


def executor() -> InferResponse:
    return InferResponse(HEADER, [], final=True, empty_final=True)


@pytest.fixture
def serve(loop: StepLoop) -> Iterator[Serve]:
    served: list[ServedModel] = []

    def make(script: Callable[[Batch], Sequence[InferResponse]], stop_s: float = 5.0) -> ServedModel:
        made = config(max_batch_size=4, model_transaction_policy={"decoupled": True})
        model = served_model([ScriptedInstance(script)], loop, made)
        served.append(model)
        return model

    yield make
    for model in served:
        model.stop(0.0)


def numbers(answers: Answers) -> list[tuple[str, object, bool]]:
    return [(name, response.parameters.get("number"), response.final) for name, response in answers.received]


def test_every_response_arrives_in_order(serve: Serve, loop: StepLoop) -> None:
    def script(batch: Batch) -> Sequence[InferResponse]:
        assert batch.emit is not None
        for number in range(3):
            batch.emit(batch.requests[0], part(number))
        batch.emit(batch.requests[0], executor())
        return ()

    answers = Answers()
    model = serve(script)
    model.submit(request(answers, "a"))
    loop.run_until(lambda: len(answers) == 4)
    assert numbers(answers) == [("a", 0, False), ("a", 1, False), ("a", 2, False), ("a", None, True)]
    assert model.in_flight_count == 0


def test_responses_arrive_after_execute_and_during_next_batch(serve: Serve, loop: StepLoop) -> None:
    batches: list[Batch] = []

    def script(batch: Batch) -> Sequence[InferResponse]:
        batches.append(batch)
        return ()

    answers = Answers()
    model = serve(script)
    model.submit(request(answers, "a"))
    while not batches:
        threading.Event().wait(0.001)
    model.submit(request(answers, "b"))
    while len(batches) < 2:
        threading.Event().wait(0.001)
    assert model.in_flight_count == 2
    first, second = batches
    assert first.emit is not None
    assert second.emit is not None
    second.emit(second.requests[0], part(1, final=True))
    first.emit(first.requests[0], part(2, final=True))
    loop.run_until(lambda: len(answers) == 2)
    assert numbers(answers) == [("b", 1, True), ("a", 2, True)]
    assert model.in_flight_count == 0


def test_a_response_after_the_final_one_is_dropped(serve: Serve, loop: StepLoop) -> None:
    def script(batch: Batch) -> Sequence[InferResponse]:
        assert batch.emit is not None
        batch.emit(batch.requests[0], part(1, final=True))
        batch.emit(batch.requests[0], part(2, final=True))
        batch.emit(batch.requests[0], part(3))
        return ()

    answers = Answers()
    model = serve(script)
    model.submit(request(answers, "a"))
    model.submit(request(answers, "b"))
    loop.run_until(lambda: len(answers) == 2)
    assert numbers(answers) == [("a", 1, True), ("b", 1, True)]


def test_open_requests_are_answered_when_execute_raises(serve: Serve, loop: StepLoop) -> None:
    def script(batch: Batch) -> Sequence[InferResponse]:
        assert batch.emit is not None
        batch.emit(batch.requests[0], part(1))
        raise invalid_argument("not today")

    answers = Answers()
    model = serve(script)
    model.submit(request(answers, "a"))
    loop.run_until(lambda: len(answers) == 2)
    last = answers.received[-1][1]
    assert last.final
    assert last.error is not None
    assert last.error.message == "not today"


def test_returning_responses_is_a_fault_of_the_backend(serve: Serve, loop: StepLoop) -> None:
    answers = Answers()
    model = serve(lambda batch: [part(0, final=True) for _ in batch.requests])
    model.submit(request(answers, "a"))
    loop.run_until(lambda: len(answers) == 1)
    error = answers.received[0][1].error
    assert error is not None
    assert error.code is ErrorCode.INTERNAL


def test_stop_waits_for_open_requests_then_fails_them(serve: Serve, loop: StepLoop) -> None:
    started = threading.Event()

    def script(batch: Batch) -> Sequence[InferResponse]:
        started.set()
        return ()

    answers = Answers()
    model = serve(script)
    model.submit(request(answers, "a"))
    assert started.wait(60)
    assert not model.stop(0.05)
    loop.run_until(lambda: len(answers) == 1)
    error = answers.received[0][1].error
    assert error is not None
    assert error.code is ErrorCode.UNAVAILABLE


def test_responses_are_counted_by_position_and_outcome(serve: Serve, loop: StepLoop) -> None:
    def script(batch: Batch) -> Sequence[InferResponse]:
        assert batch.emit is not None
        (asked,) = batch.requests
        if asked.id == "cancelled":
            asked.cancelled = True
        batch.emit(asked, part(0))
        if asked.id == "broken":
            batch.emit(asked, InferResponse(HEADER, error=invalid_argument("no"), final=True))
        else:
            batch.emit(asked, executor())
        return ()

    answers = Answers()
    model = serve(script)
    for name in ("good", "broken", "cancelled"):
        model.submit(request(answers, name))
    loop.run_until(lambda: len(answers) == 6)
    first, second = model.statistics.snapshot().response_stats
    assert (first.success.count, first.cancel.count, first.fail.count, first.empty_response.count) == (2, 1, 0, 0)
    assert (second.success.count, second.cancel.count, second.fail.count, second.empty_response.count) == (0, 1, 1, 1)
    assert (first.compute_infer.count, second.compute_infer.count) == (2, 1)
    assert first.success.ns == first.compute_infer.ns > 0


SECOND_NS = 1_000_000_000


@pytest.fixture
def streaming(serve: Serve, loop: StepLoop) -> tuple[ServedModel, Answers, list[Batch]]:
    """A model that keeps its requests open, what they are answered with, and its batches."""
    batches: list[Batch] = []

    def script(batch: Batch) -> Sequence[InferResponse]:
        batches.append(batch)
        return ()

    return serve(script), Answers(), batches


def test_a_client_slow_for_too_long_fails(
    streaming: tuple[ServedModel, Answers, list[Batch]], loop: StepLoop
) -> None:
    model, answers, batches = streaming
    slow = request(answers, "slow")
    model.submit(slow)
    model.submit(request(answers, "other"))
    while sum(len(batch.requests) for batch in batches) < 2:
        threading.Event().wait(0.001)
    slow.is_paused = True
    for second in range(31):
        model.check(second * SECOND_NS + 1)
    assert not answers.received
    model.check(32 * SECOND_NS)
    loop.run_until(lambda: len(answers) == 1)
    assert answers.received[0][0] == "slow"
    error = answers.received[0][1].error
    assert error is not None
    assert error.code is ErrorCode.UNAVAILABLE
    assert "has not taken the responses of model 'm'" in error.message
    assert slow.cancelled
    assert model.in_flight_count == 1


def test_a_client_that_catches_up_is_not_slow(
    streaming: tuple[ServedModel, Answers, list[Batch]], loop: StepLoop
) -> None:
    model, answers, batches = streaming
    steady = request(answers, "steady")
    model.submit(steady)
    while not batches:
        threading.Event().wait(0.001)
    emit = batches[0].emit
    assert emit is not None
    steady.is_paused = True
    for second in range(1, 100):
        if not second % 20:
            # It was congested whenever it was looked at, but has taken something in between.
            emit(steady, part(second))
        model.check(second * SECOND_NS)
    loop.run_until(lambda: len(answers) == 4)
    assert not steady.cancelled


def test_calls_of_models_have_no_limit() -> None:
    call = ModelCall(RequestHeader(model_name="m"), (), lambda request, response: None)
    call.is_paused = True
    assert not call.waits_for_client


def test_responses_of_two_threads_leave_as_taken() -> None:
    decoupled_responses: DecoupledResponses
    delivered: list[InferResponse] = []
    others: list[threading.Thread] = []

    def deliver(requests: object, responses: Sequence[InferResponse], *, on_loop: bool = False) -> None:
        if not others:
            # Between the moment at which the first was taken and that at which it is on its way.
            others.append(threading.Thread(target=decoupled_responses.emit, args=(emitting, part(1))))
            others[0].start()
            others[0].join(0.1)
        delivered.extend(responses)

    decoupled_responses = DecoupledResponses(deliver, ResponseStatistics(), lambda request: None)
    emitting = request(Answers())
    decoupled_responses.begin(Batch([emitting], 1))
    decoupled_responses.emit(emitting, part(0))
    others[0].join(60)
    assert [response.parameters["number"] for response in delivered] == [0, 1]


@pytest.mark.parametrize("end", ["answered", "executed"])
def test_rescheduled_request_is_forgotten_at_its_end(end: str) -> None:
    paused: list[object] = []
    decoupled_responses = DecoupledResponses(
        lambda *_, **__: None, ResponseStatistics(), lambda request: None, paused.append
    )
    waiting = request(Answers())
    decoupled_responses.begin(Batch([waiting], 1))
    decoupled_responses.emit(waiting, RESCHEDULE)
    assert (paused, decoupled_responses.open_count, decoupled_responses.has_requests) == ([waiting], 0, True)
    if end == "answered":
        decoupled_responses.forget(waiting)
    else:
        decoupled_responses.begin(Batch([waiting], 1))
        decoupled_responses.emit(waiting, executor())
    assert not decoupled_responses.has_requests


def test_requests_that_the_model_cancels_are_failures(serve: Serve, loop: StepLoop) -> None:
    def script(batch: Batch) -> Sequence[InferResponse]:
        assert batch.emit is not None
        for each in batch.requests:
            error = InferError(ErrorCode.CANCELLED, "had enough") if each.id == "gives-up" else None
            batch.emit(each, InferResponse(HEADER, error=error, final=True))
        return ()

    answers = Answers()
    model = serve(script)
    for name in ("a", "gives-up"):
        model.submit(request(answers, name))
    loop.run_until(lambda: len(answers) == 2 and model.statistics.snapshot().success.count == 1)
    counts = model.statistics.snapshot()
    assert (counts.fail.count, counts.failures[FailureReason.CANCELED]) == (1, 1)

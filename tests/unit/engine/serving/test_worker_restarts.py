"""Requests wait for an instance that restarts, and go back to the queue when none has begun them."""

import time
from collections.abc import Callable, Sequence

import pytest

from naiad.backend.api import InstanceDiedError
from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason
from naiad.core.response import InferResponse
from support.engine_parts import (
    Answers,
    Gate,
    ScriptedInstance,
    Serve,
    StepLoop,
    answers_of,
    config,
    request,
)


class Mortal(ScriptedInstance):
    """An instance whose restart requests wait for or not."""

    restarts = True

    @property
    def awaits_restart(self) -> bool:
        return self.restarts


def dying(*, has_begun: bool) -> Callable[[Batch], Sequence[InferResponse]]:
    """Return a script whose worker dies with its first batch."""
    deaths = []

    def script(batch: Batch) -> Sequence[InferResponse]:
        if deaths:
            return answers_of(batch)
        deaths.append(batch)
        error = InstanceDiedError(ErrorCode.UNAVAILABLE, "the worker died", reason=FailureReason.BACKEND)
        error.has_begun = has_begun
        raise error

    return script


def submit(serve: Serve, instance: ScriptedInstance, answers: Answers, count: int = 1, **fields: object) -> object:
    model = serve([instance], config(**fields))
    for number in range(count):
        model.submit(request(answers, str(number), arrival_ns=time.monotonic_ns()))
    return model


def test_requests_wait_for_a_restart(serve: Serve, loop: StepLoop) -> None:
    instance, answers = Mortal(), Answers()
    instance.reason = "the worker died"
    submit(serve, instance, answers, 3)
    waited: list[None] = []
    loop.call_later(0.2, waited.append, None)
    loop.run_until(lambda: bool(waited))
    assert not answers.received
    instance.reason = ""
    loop.run_until(lambda: len(answers) == 3)
    assert all(response.error is None for _, response in answers.received)


def test_requests_are_refused_without_a_restart(serve: Serve, loop: StepLoop) -> None:
    instance, answers = Mortal(), Answers()
    instance.reason, instance.restarts = "the worker died", False
    submit(serve, instance, answers, 3)
    loop.run_until(lambda: len(answers) == 3)
    errors = [response.error for _, response in answers.received]
    assert {(error.code, error.message) for error in errors if error} == {(ErrorCode.UNAVAILABLE, "the worker died")}


def test_a_batch_not_begun_waits_again(serve: Serve, loop: StepLoop) -> None:
    instance, answers = ScriptedInstance(dying(has_begun=False)), Answers()
    model = submit(serve, instance, answers)
    loop.run_until(lambda: len(answers) == 1)
    assert answers.received[0][1].error is None
    assert len(instance.batches) == 2
    assert model.in_flight_count == 0  # type: ignore[attr-defined]
    assert not model.statistics.snapshot().failures[FailureReason.BACKEND]  # type: ignore[attr-defined]


def test_a_batch_that_was_begun_fails(serve: Serve, loop: StepLoop) -> None:
    instance, answers = ScriptedInstance(dying(has_begun=True)), Answers()
    submit(serve, instance, answers)
    loop.run_until(lambda: len(answers) == 1)
    assert answers.received[0][1].error is not None
    assert len(instance.batches) == 1


@pytest.mark.parametrize("fields", [{}, {"dynamic_batching": {"preserve_ordering": True}}])
def test_put_back_requests_keep_timeouts_and_order(serve: Serve, loop: StepLoop, fields: dict[str, object]) -> None:
    policy = {"default_timeout_microseconds": 60_000_000}
    batching = {**fields.get("dynamic_batching", {}), "default_queue_policy": policy}  # type: ignore[dict-item]
    instance, answers = ScriptedInstance(dying(has_begun=False)), Answers()
    submit(serve, instance, answers, 5, dynamic_batching=batching)
    loop.run_until(lambda: len(answers) == 5)
    assert all(response.error is None for _, response in answers.received)
    assert sorted(request_id for request_id, _ in answers.received) == list("01234")


def test_cancelled_requests_do_not_wait_again(serve: Serve, loop: StepLoop) -> None:
    gate, answers = Gate(), Answers()
    die = dying(has_begun=False)

    def script(batch: Batch) -> Sequence[InferResponse]:
        gate(batch)
        return die(batch)

    instance = ScriptedInstance(script)
    model = serve([instance])
    cancelled = request(answers, "cancelled", arrival_ns=time.monotonic_ns())
    model.submit(cancelled)
    gate.reached.acquire()
    assert not model.cancel(cancelled)
    gate.opened.release()
    loop.run_until(lambda: len(answers) == 1)
    error = answers.received[0][1].error
    assert error is not None
    assert error.code is ErrorCode.CANCELLED
    assert len(instance.batches) == 1

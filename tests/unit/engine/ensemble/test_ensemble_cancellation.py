"""Ensembles whose requests are cancelled; the members answer when the test says so."""

from typing import Any

import pytest

from naiad.core.errors import ErrorCode, FailureReason, InferError
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.ensemble.ensemble_model import EnsembleModel
from support.engine_parts import Answers
from support.ensemble_parts import IN, OUT, chain


class Members:
    """Takes requests of steps; those in `queued` are dropped at once when they are cancelled."""

    def __init__(self) -> None:
        self.asked: list[InferRequest] = []
        self.queued: set[str] = set()

    def submit(self, request: InferRequest) -> None:
        self.asked.append(request)

    def cancel(self, request: InferRequest) -> bool:
        request.cancelled = True
        if request.id not in self.queued:
            return False
        self.asked.remove(request)
        dropped = InferError(ErrorCode.CANCELLED, "", reason=FailureReason.CANCELED)
        request.on_response(request, InferResponse(ResponseHeader("member", "1", ()), error=dropped))
        return True

    def served(self, name: str, version: str = "") -> Any:
        raise AssertionError("nothing asks here")

    def answer(self) -> None:
        request = self.asked.pop(0)
        request.on_response(request, InferResponse(ResponseHeader("member", "1", (OUT,)), [b"1234"]))

    @property
    def ids(self) -> list[str]:
        return [request.id for request in self.asked]


@pytest.fixture
def members() -> Members:
    return Members()


def ensemble(members: Members, *, limit: int = 0, steps: int = 1) -> EnsembleModel:
    return chain(members, steps, most_inflight=limit)


def ask(model: EnsembleModel, answers: Answers, *names: str) -> list[InferRequest]:
    header = RequestHeader(model_name="e", inputs=[IN])
    requests = [InferRequest(header, [b"abcd"], answers, id=name, arrival_ns=1) for name in names]
    for request in requests:
        model.submit(request)
    return requests


def outcomes(answers: Answers) -> list[tuple[str, ErrorCode | None]]:
    return [(name, each.error.code if each.error else None) for name, each in answers.received]


def counts(model: EnsembleModel) -> tuple[int, int]:
    found = model.statistics.snapshot()
    return found.cancelled_in_queue_count, found.cancelled_in_execution_count


def test_queued_step_is_cancelled_with_its_request(members: Members) -> None:
    # E10
    model, answers = ensemble(members, steps=2), Answers()
    members.queued.add("a")
    (request,) = ask(model, answers, "a")
    assert model.cancel(request)
    assert outcomes(answers) == [("a", ErrorCode.CANCELLED)]
    assert (model.in_flight_count, members.asked) == (0, [])
    assert counts(model) == (1, 0)


def test_nothing_follows_the_step_that_executes(members: Members) -> None:
    # E10
    model, answers = ensemble(members, steps=2), Answers()
    (request,) = ask(model, answers, "a")
    assert not model.cancel(request)
    assert not model.cancel(request)
    assert members.asked[0].cancelled
    assert model.in_flight_count == 1
    members.answer()
    assert outcomes(answers) == [("a", ErrorCode.CANCELLED)]
    assert (model.in_flight_count, members.asked) == (0, [])
    assert counts(model) == (0, 1)


def test_a_step_that_waits_for_room_is_withdrawn(members: Members) -> None:
    # E10
    model, answers = ensemble(members, limit=1), Answers()
    _, second, _ = ask(model, answers, "a", "b", "c")
    assert model.pending_count == 2
    assert model.cancel(second)
    assert outcomes(answers) == [("b", ErrorCode.CANCELLED)]
    assert (model.pending_count, model.in_flight_count) == (1, 2)
    members.answer()
    assert members.ids == ["c"]
    members.answer()
    assert outcomes(answers)[1:] == [("a", None), ("c", None)]
    assert counts(model) == (1, 0)


def test_many_cancelled_waiting_steps_leave_nothing(members: Members) -> None:
    model, answers = ensemble(members, limit=1), Answers()
    ask(model, answers, "first")
    for request in ask(model, answers, *map(str, range(10_000))):
        assert model.cancel(request)
    assert (model.pending_count, model.in_flight_count) == (0, 1)
    members.answer()
    assert outcomes(answers)[-1] == ("first", None)
    (room,) = model._rooms
    assert (room.started_count, len(room.waiting)) == (0, 0)


def test_a_request_that_has_ended_is_not_cancelled(members: Members) -> None:
    model, answers = ensemble(members), Answers()
    (request,) = ask(model, answers, "a")
    members.answer()
    assert not model.cancel(request)
    assert counts(model) == (0, 0)


def test_failed_step_is_not_cancelled(members: Members) -> None:
    model, answers = ensemble(members), Answers()
    ask(model, answers, "a")
    (step,) = members.asked
    members.asked.clear()
    error = InferError(ErrorCode.INTERNAL, "broken")
    step.on_response(step, InferResponse(ResponseHeader("member", "1", ()), error=error))
    assert outcomes(answers) == [("a", ErrorCode.INTERNAL)]
    assert not step.cancelled, "its member would count a cancelled execution"

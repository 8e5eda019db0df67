"""How tensors and errors pass between the steps of an ensemble."""

import gc
import weakref
from types import SimpleNamespace

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError, invalid_argument, unavailable
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from support.engine_parts import Answers
from support.ensemble_parts import IN, OUT, chain
from support.model_call_parts import FakeServed


class Router:
    """Keeps what it is asked, or refuses it."""

    def __init__(self) -> None:
        self.asked: list[InferRequest] = []
        self.refusal: InferError | None = None

    def submit(self, request: InferRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(request)

    def cancel(self, request: InferRequest) -> bool:
        request.cancelled = True
        return False

    def served(self, name: str, version: str = "") -> None:
        raise AssertionError("nothing asks here")


def ask(router: Router, data: object, steps: int, statistics: ModelStatistics | None = None) -> Answers:
    model = chain(router, steps, statistics=statistics)
    answers = Answers()
    model.submit(InferRequest(RequestHeader(model_name="e", inputs=[IN]), [data], answers, arrival_ns=1))
    return answers


def test_tensors_are_passed_on_without_copies() -> None:
    # E2
    router, given = Router(), memoryview(b"abcd")
    answers = ask(router, given, steps=3)
    assert router.asked[0].data[0] is given
    for made in (bytearray(b"1234"), memoryview(b"5678"), b"last"):
        step = router.asked[-1]
        step.on_response(step, InferResponse(ResponseHeader("member", "1", (OUT,)), [made]))
        passed = answers.received[0][1] if answers.received else router.asked[-1]
        assert passed.data[0] is made


def test_a_step_counts_unread_bytes_of_the_client() -> None:
    class Unread(InferRequest):
        unread_bytes = 70_000

    router = Router()
    model = chain(router, 1)
    model.submit(Unread(RequestHeader(model_name="e", inputs=[IN]), [b"abcd"], Answers(), arrival_ns=1))
    assert router.asked[0].unread_bytes == 70_000


def test_the_time_of_each_step_is_counted() -> None:
    router, statistics = Router(), ModelStatistics("e", "1")
    ask(router, b"abcd", 2, statistics)
    first = router.asked[0]
    first.times.exec_start_ns = first.arrival_ns + 300
    first.times.exec_end_ns = first.arrival_ns + 1000
    first.on_response(first, InferResponse(ResponseHeader("member", "1", (OUT,)), [b"1234"]))
    second = router.asked[1]
    second.on_response(second, InferResponse(ResponseHeader("member", "1", ()), error=unavailable("no")))
    one, two = statistics.snapshot().steps
    assert (one.model, one.success.count, one.fail.count) == ("member", 1, 0)
    assert (one.queue.ns, one.compute.ns) == (300, 700)
    assert one.success.ns > 0
    assert (two.success.count, two.fail.count, two.compute.count) == (0, 1, 0)


def test_cached_step_does_not_count_as_executed() -> None:
    router, statistics = Router(), ModelStatistics("e", "1")
    ask(router, b"abcd", 1, statistics)
    (step,) = router.asked
    step.on_response(step, InferResponse(ResponseHeader("member", "1", (OUT,)), [b"1234"]))
    (counts,) = statistics.snapshot().steps
    assert (counts.success.count, counts.queue.count, counts.compute.count) == (1, 0, 0)


def test_a_step_that_its_member_refuses_has_failed() -> None:
    router, statistics = Router(), ModelStatistics("e", "1")
    router.refusal = unavailable("full")
    ask(router, b"abcd", 1, statistics)
    (counts,) = statistics.snapshot().steps
    assert (counts.success.count, counts.fail.count) == (0, 1)


def test_an_error_says_which_step_it_came_from() -> None:
    # E9
    router = Router()
    answers = ask(router, b"abcd", steps=2)
    (step,) = router.asked
    step.on_response(step, InferResponse(ResponseHeader("member", "1", ()), error=unavailable("too late")))
    assert answers.received[0][1].error.message == "in ensemble 'e', too late (step of model 'member')"


def test_error_that_names_its_model_is_unchanged() -> None:
    router = Router()
    router.refusal = InferError(ErrorCode.NOT_FOUND, "Request for unknown model: 'member' is not found")
    answers = ask(router, b"abcd", steps=2)
    error = answers.received[0][1].error
    assert error.message == "in ensemble 'e', Request for unknown model: 'member' is not found"
    assert error.code is ErrorCode.NOT_FOUND


def test_step_without_room_waits_for_another_step() -> None:
    router = Router()
    model = chain(router, 2, most_inflight=1)
    answers = Answers()
    first, second = (
        InferRequest(RequestHeader(model_name="e", inputs=[IN]), [b"abcd"], answers, arrival_ns=1) for _ in range(2)
    )
    model.submit(first)
    model.submit(second)
    (step,) = router.asked
    step.model = FakeServed("member")
    assert not model.is_waiting(first)
    assert model.is_waiting(second)
    step.queue = "queue"
    assert model.is_waiting(first)
    step.on_response(step, InferResponse(ResponseHeader("member", "1", [OUT]), [b"efgh"]))
    assert len(router.asked) == 3


def test_immediate_responses_free_room_for_many_steps() -> None:
    class Cache(Router):
        def submit(self, request: InferRequest) -> None:
            super().submit(request)
            if len(self.asked) > 1:
                request.on_response(request, InferResponse(ResponseHeader("member", "1", [OUT]), [b"efgh"]))

    router, answers = Cache(), Answers()
    model = chain(router, 1, most_inflight=1)
    for _ in range(5_000):
        model.submit(InferRequest(RequestHeader(model_name="e", inputs=[IN]), [b"abcd"], answers, arrival_ns=1))
    (slow,) = router.asked
    slow.on_response(slow, InferResponse(ResponseHeader("member", "1", [OUT]), [b"efgh"]))
    assert [response.error for _, response in answers.received] == [None] * 5_000
    assert (model.in_flight_count, model.pending_count) == (0, 0)


def test_rejecting_member_fails_all_waiting_steps() -> None:
    router, answers = Router(), Answers()
    model = chain(router, 1, most_inflight=1)
    for _ in range(5_000):
        model.submit(InferRequest(RequestHeader(model_name="e", inputs=[IN]), [b"abcd"], answers, arrival_ns=1))
    (slow,) = router.asked
    router.refusal = unavailable("full")
    slow.on_response(slow, InferResponse(ResponseHeader("member", "1", [OUT]), [b"efgh"]))
    errors = [response.error for _, response in answers.received]
    assert len(errors) == 5_000
    assert errors.count(None) == 1
    assert (model.in_flight_count, model.pending_count) == (0, 0)


def test_cached_header_does_not_keep_unloaded_ensemble() -> None:
    router, remembered = Router(), RequestHeader(model_name="e", inputs=[IN])
    model = chain(router, 1)
    model.submit(InferRequest(remembered, [b"abcd"], Answers(), arrival_ns=1))
    step = router.asked.pop()
    step.on_response(step, InferResponse(ResponseHeader("member", "1", (OUT,)), [b"1234"]))
    left = weakref.ref(model)
    del model, step
    gc.collect()
    assert remembered.execution is not None
    assert left() is None


@pytest.mark.parametrize(
    ("lacks", "code"), [("", ErrorCode.INVALID_ARG), ("IN", ErrorCode.UNAVAILABLE), ("OUT", ErrorCode.UNAVAILABLE)]
)
def test_replaced_member_is_no_fault_of_the_client(lacks: str, code: ErrorCode) -> None:
    config = ModelConfig()
    for name, tensors in (("IN", config.input), ("OUT", config.output)):
        tensors.add(name="other" if name == lacks else name)
    router = Router()
    router.served = lambda name, version: SimpleNamespace(config=config)  # type: ignore[assignment,method-assign]
    router.refusal = invalid_argument("unexpected tensor for model 'member'")
    ((_, response),) = ask(router, b"abcd", 1).received
    assert response.error.code is code
    assert ("it does not fit its members any more" in response.error.message) == bool(lacks)
    assert response.error.message.endswith("unexpected tensor for model 'member'")

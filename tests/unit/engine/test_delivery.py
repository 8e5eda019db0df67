"""Answers reach the loop once, and in the order that was asked for."""

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.delivery import Delivery, OrderedDelivery
from support.engine_parts import Answers, StepLoop, request

HEADER = ResponseHeader("m", "1", ())


def response() -> InferResponse:
    return InferResponse(HEADER, [])


def ids(answers: Answers) -> list[str]:
    return [request_id for request_id, _ in answers.received]


def requests(answers: Answers, names: str) -> list[InferRequest]:
    return [request(answers, name) for name in names]


def test_what_is_handed_over_on_the_loop_comes_after_what_was_posted_before(loop: StepLoop) -> None:
    answers = Answers()
    delivery = Delivery(loop)
    first, second = requests(answers, "ab")
    delivery.hand_over([first], [response()])
    assert ids(answers) == []
    delivery.hand_over([second], [response()], on_loop=True)
    assert ids(answers) == ["a", "b"]


def test_a_broken_exchange_does_not_keep_others_from_their_answers(loop: StepLoop) -> None:
    answers = Answers()

    def fail(request: InferRequest, response: InferResponse) -> None:
        raise RuntimeError("the connection is gone")

    broken, whole = requests(answers, "ab")
    broken.on_response = fail
    Delivery(loop).hand_over([broken, whole], [response(), response()], on_loop=True)
    assert ids(answers) == ["b"]


def test_order_is_that_of_acceptance_whichever_thread_is_done_first(loop: StepLoop) -> None:
    answers = Answers()
    delivery = OrderedDelivery(loop)
    first, second, third = requests(answers, "abc")
    for each in (first, second, third):
        delivery.expect(each)
    delivery.hand_over([third], [response()])
    delivery.hand_over([second], [response()], on_loop=True)
    assert ids(answers) == []
    delivery.hand_over([first], [response()], on_loop=True)
    assert ids(answers) == ["a", "b", "c"]

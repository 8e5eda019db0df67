"""Responses reach the loop once, and in the requested order."""

from collections import deque

import pytest

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.serving.dispatch.response_queue import OrderedResponseQueue, ResponseQueue
from support.engine_parts import Answers, StepLoop, request

HEADER = ResponseHeader("m", "1", ())


def response(*, final: bool = True) -> InferResponse:
    return InferResponse(HEADER, [], final=final)


def ids(answers: Answers) -> list[str]:
    return [request_id for request_id, _ in answers.received]


def requests(answers: Answers, names: str) -> list[InferRequest]:
    return [request(answers, name) for name in names]


def test_response_from_loop_follows_earlier_posted_responses(loop: StepLoop) -> None:
    answers = Answers()
    response_queue = ResponseQueue(loop)
    first, second = requests(answers, "ab")
    response_queue.hand_over([first], [response()])
    assert ids(answers) == []
    response_queue.hand_over([second], [response()], on_loop=True)
    assert ids(answers) == ["a", "b"]


def test_response_posted_behind_the_last_wakes_again(loop: StepLoop) -> None:
    answers = Answers()
    response_queue = ResponseQueue(loop)
    first, second = requests(answers, "ab")
    late = [second]

    class Queue(deque):  # type: ignore[type-arg]  # of what the delivery puts into it
        """Has an instance post one more response when the loop has found no further one."""

        def __len__(self) -> int:
            count = super().__len__()
            if not count and answers and late:
                response_queue.post([late.pop()], [response()])
            return count

    response_queue._answers = Queue()
    response_queue.post([first], [response()])
    loop.run_until(lambda: not late)
    assert loop.wakes == 2
    loop.run_until(lambda: len(answers) == 2)
    assert ids(answers) == ["a", "b"]


def test_broken_callback_does_not_stop_other_responses(loop: StepLoop) -> None:
    answers = Answers()

    def fail(request: InferRequest, response: InferResponse) -> None:
        raise RuntimeError("the connection is gone")

    broken, whole = requests(answers, "ab")
    broken.on_response = fail
    ResponseQueue(loop).hand_over([broken, whole], [response(), response()], on_loop=True)
    assert ids(answers) == ["b"]


def test_order_of_acceptance_holds_for_any_thread(loop: StepLoop) -> None:
    # B13
    answers = Answers()
    response_queue = OrderedResponseQueue(loop)
    first, second, third = requests(answers, "abc")
    for each in (first, second, third):
        response_queue.expect(each)
    response_queue.hand_over([third], [response()])
    response_queue.hand_over([second], [response()], on_loop=True)
    assert ids(answers) == []
    response_queue.hand_over([first], [response()], on_loop=True)
    assert ids(answers) == ["a", "b", "c"]


def test_partial_response_leaves_when_request_is_oldest(loop: StepLoop) -> None:
    # B13
    answers = Answers()
    response_queue = OrderedResponseQueue(loop)
    first, second = requests(answers, "ab")
    response_queue.expect(first)
    response_queue.expect(second)
    response_queue.hand_over([second], [response(final=False)], on_loop=True)
    assert ids(answers) == []
    response_queue.hand_over([first], [response(final=False)], on_loop=True)
    assert ids(answers) == ["a"]
    response_queue.hand_over([first], [response()], on_loop=True)
    assert ids(answers) == ["a", "a", "b"]


def test_a_request_that_is_not_expected_is_refused(loop: StepLoop) -> None:
    (unexpected,) = requests(Answers(), "a")
    with pytest.raises(KeyError):
        OrderedResponseQueue(loop).hand_over([unexpected], [response()])


def test_order_holds_if_a_thread_pauses_before_delivery(loop: StepLoop) -> None:
    answers = Answers()
    response_queue = OrderedResponseQueue(loop)
    first, second = requests(answers, "ab")
    for each in (first, second):
        response_queue.expect(each)

    class Lock:
        """Has another instance complete the second as soon as the first thread releases the lock."""

        left = 1

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            if self.left:
                self.left -= 1
                response_queue.hand_over([second], [response()], on_loop=True)

    response_queue._lock = Lock()  # type: ignore[assignment]  # the moment between two lines cannot be met otherwise
    response_queue.hand_over([first], [response()])
    loop.run_until(lambda: len(answers) == 2)
    assert ids(answers) == ["a", "b"]

"""Which responses of a request are decoded and checked, and whose they may be."""

import pytest

from naiad.tools.perf.perf_exchange import WRONG_ANSWER, RightAnswers, SentRequest


def request(answers: RightAnswers, request_id: str = "") -> SentRequest:
    made = SentRequest(lambda _: None)
    made.right_answers, made.request_id = answers, request_id
    return made


def test_first_response_of_each_size_is_kept():
    answers = RightAnswers()
    assert request(answers).keeps(70)
    answers.add(70)
    assert not request(answers).keeps(70)
    assert request(answers).keeps(71)


def test_of_many_sizes_those_outside_are_kept():
    """Numbers in JSON have many lengths; an error is shorter or longer than all of them."""
    answers = RightAnswers()
    for size in range(100, 180, 2):
        answers.add(size)
    assert not request(answers).keeps(101)
    assert request(answers).keeps(40)
    assert request(answers).keeps(500)
    answers.add(190)
    assert not request(answers).keeps(185)


@pytest.mark.parametrize(
    ("model", "request_id", "is_right"),
    [("echo", "7", True), ("echo-v2", "", True), ("", "", True), ("other", "", False), ("echo", "8", False)],
)
def test_response_of_another_model_or_request_is_wrong(model, request_id, is_right):
    answers = RightAnswers()
    answers.models = ("echo", "echo-v2")
    sent = request(answers, "7")
    assert sent.is_answered_by(model, request_id) is is_right
    assert (sent.failure == WRONG_ANSWER) is not is_right
    assert request(RightAnswers()).is_answered_by("any", "9")

"""Requests that workers die of are found among those that were in the same batch."""

import numpy as np
import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import InferRequest
from naiad.engine.serving.suspects import Suspects, digest_of
from support.backend_parts import make_header, make_request

SECOND_NS = 1_000_000_000
DEATH = "exited with code 7"


def request_with(*values: float, request_id: str = "") -> InferRequest:
    made = make_request({"IN": np.array(values, np.float32)})
    made.id = request_id
    made.shape_key = "usual"
    return made


@pytest.fixture
def suspects() -> Suspects:
    return Suspects("m")


def is_refused(suspects: Suspects, request: InferRequest, now_ns: int = 3) -> bool:
    try:
        suspects.examine(request, now_ns)
    except InferError as error:
        return error.code is ErrorCode.INVALID_ARG
    return False


def test_the_second_death_refuses(suspects: Suspects) -> None:
    suspects.note_death([request_with(1, request_id="first")], DEATH, 1)
    assert not is_refused(suspects, request_with(1))
    suspects.note_death([request_with(1)], DEATH, 2)
    with pytest.raises(InferError, match=r"request 'again' for model 'm' is rejected.*first as 'first'") as caught:
        suspects.examine(request_with(1, request_id="again"), 3)
    assert caught.value.message.count(DEATH) == 2
    assert not is_refused(suspects, request_with(2))
    assert not is_refused(suspects, request_with(1, 1))


def test_a_suspect_is_alone_in_its_batch(suspects: Suspects) -> None:
    suspects.note_death([request_with(1), request_with(2)], DEATH, 1)
    guilty, innocent, other = request_with(1), request_with(2), request_with(3)
    for request in (guilty, innocent, other):
        suspects.examine(request, 2)
    assert other.shape_key == "usual"
    assert len({guilty.shape_key, innocent.shape_key, other.shape_key}) == 3


def test_an_answer_clears(suspects: Suspects) -> None:
    for moment in range(5):
        suspects.note_death([request_with(1)], DEATH, moment)
        suspects.clear([request_with(2), request_with(1)])
        assert not suspects.found
    assert not is_refused(suspects, request_with(1))


def test_suspicion_ends(suspects: Suspects) -> None:
    for moment in (1, 2):
        suspects.note_death([request_with(1)], DEATH, moment)
    assert is_refused(suspects, request_with(1), 600 * SECOND_NS)
    assert not is_refused(suspects, request_with(1), 601 * SECOND_NS)
    assert not suspects.found


def test_deaths_long_ago_do_not_count(suspects: Suspects) -> None:
    suspects.note_death([request_with(1)], DEATH, 1)
    suspects.note_death([request_with(1)], DEATH, 601 * SECOND_NS)
    assert not is_refused(suspects, request_with(1), 602 * SECOND_NS)


def test_suspects_are_bounded(suspects: Suspects) -> None:
    for number in range(1000):
        suspects.note_death([request_with(number)], DEATH, number)
    assert len(suspects.found) == 256
    suspects.note_death([request_with(999)], DEATH, 1001)
    assert is_refused(suspects, request_with(999), 1002)


def test_without_limit_no_request_is_suspected() -> None:
    suspects = Suspects("m", 0)
    suspects.note_death([request_with(1)], DEATH, 1)
    assert not suspects.found


def test_digests_see_content_but_no_ids() -> None:
    header = make_header({"IN": np.zeros(1 << 20, np.uint8)})
    data = bytearray(1 << 20)
    before = digest_of(header, [data])
    assert digest_of(header, [bytes(1 << 20)]) == before
    data[-1] = 1
    assert digest_of(header, [data]) != before
    other = make_header({"OTHER": np.zeros(1 << 20, np.uint8)})
    assert digest_of(other, [bytes(1 << 20)]) != before


def test_suspicion_ends_without_the_request(suspects: Suspects) -> None:
    suspects.note_death([request_with(1), request_with(1, 2)], DEATH, 1)
    suspects.examine(request_with(3), 601 * SECOND_NS)
    assert not suspects.found
    assert not suspects._sizes


def test_sizes_of_evicted_suspects_are_removed(suspects: Suspects) -> None:
    for count in range(1, 300):
        suspects.note_death([request_with(*range(count))], DEATH, count)
    assert len(suspects._sizes) == len(suspects.found) < 299

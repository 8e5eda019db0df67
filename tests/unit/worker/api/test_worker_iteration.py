"""The iterator of a call's responses, while another thread reads them."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from naiad.worker.api.failure import TritonModelException
from naiad.worker.api.iteration import Arrivals, ResponseIterator
from naiad.worker.api.response import InferenceResponse
from naiad.worker.api.tensor import Tensor


class Calls:
    """The line of calls, on which nothing more comes."""

    def __init__(self) -> None:
        self.taken_count = 0

    def wait(self, waiter: Any) -> None:
        raise AssertionError("it waits without end")

    def start_reading(self) -> None: ...

    def taken(self, number: int, count: int) -> None:
        self.taken_count += count

    def cancel(self, number: int) -> None: ...

    def abandon(self, number: int) -> None: ...


class Watched(deque):
    """The other thread goes on as soon as there is something."""

    def __init__(self, on_append: Callable[[], object]) -> None:
        super().__init__()
        self._on_append = on_append

    def append(self, item: Any) -> None:
        super().append(item)
        self._on_append()


@pytest.mark.parametrize("count", [1, 2, 40])
def test_last_response_is_marked_when_taken_early(count):
    calls, arrivals, found = Calls(), Arrivals(), []
    responses = ResponseIterator(calls, 1, arrivals)
    arrivals.responses = Watched(lambda: found.append(next(responses)))
    sent = [InferenceResponse() for _ in range(count)]
    for response in sent:
        arrivals.take(response, response is sent[-1])
    assert found == sent
    assert next(responses, None) is None
    assert list(responses) == list(responses) == sent
    assert calls.taken_count == count // 16 * 16


def test_earlier_response_does_not_end_responses():
    arrivals = Arrivals()
    responses = ResponseIterator(Calls(), 1, arrivals)
    first, last = InferenceResponse(), InferenceResponse()
    arrivals.take(first, False)
    arrivals.take(last, True)
    assert list(responses) == [first, last]


def test_responses_are_kept_within_bounds():
    for tensors, count in (((), 5000), ((Tensor("A", np.zeros(600_000, np.uint8)),), 2)):
        arrivals = Arrivals()
        responses = ResponseIterator(Calls(), 1, arrivals)
        for number in range(count):
            arrivals.take(InferenceResponse(tensors), number == count - 1)
        assert len(list(responses)) == count
        with pytest.raises(TritonModelException, match="cannot be iterated again"):
            iter(responses)

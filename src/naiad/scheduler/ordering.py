"""preserve_ordering: responses leave in the order in which their requests came."""

from collections import deque
from collections.abc import Sequence

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse

Answer = tuple[InferRequest, InferResponse]


class _Expected:
    __slots__ = ("is_complete", "request", "responses")

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self.responses: list[InferResponse] = []
        self.is_complete = False


class OrderedRelease:
    """Holds responses back until those of all earlier requests have left.

    Every request that was expected must be completed, be it with an error, or all later ones wait for it. Bounded by
    the requests in flight.

    Triton: documents this rule, though with several instances its own responses can leave out of order.
    """

    def __init__(self) -> None:
        self._arrivals: deque[_Expected] = deque()
        self._by_request: dict[int, _Expected] = {}

    def __len__(self) -> int:
        return len(self._arrivals)

    def expect(self, request: InferRequest) -> None:
        """Note that a request has arrived, after those before it."""
        expected = _Expected(request)
        self._arrivals.append(expected)
        self._by_request[id(request)] = expected

    def complete(self, requests: Sequence[InferRequest], responses: Sequence[InferResponse]) -> list[Answer]:
        """Take one response for each request and return what may leave now, in order of arrival.

        A response that is not final leaves as soon as its request is the oldest. Raises KeyError for a request that
        is not expected.
        """
        for request, response in zip(requests, responses, strict=True):
            expected = self._by_request[id(request)]
            expected.responses.append(response)
            if response.final:
                expected.is_complete = True
                del self._by_request[id(request)]
        return self._released()

    def _released(self) -> list[Answer]:
        released: list[Answer] = []
        while self._arrivals:
            oldest = self._arrivals[0]
            released.extend((oldest.request, response) for response in oldest.responses)
            oldest.responses.clear()
            if not oldest.is_complete:
                break
            self._arrivals.popleft()
        return released

"""preserve_ordering: responses leave in the order of arrival of their requests."""

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
    """Holds responses back until the responses of all earlier requests have left.

    Every expected request must be completed, failures included; otherwise all later responses are held back. The
    requests in flight bound its size.

    Triton: documents this rule, but with several instances its own responses can leave out of order.
    """

    def __init__(self) -> None:
        self._arrivals: deque[_Expected] = deque()
        self._by_request: dict[int, _Expected] = {}

    def __len__(self) -> int:
        return len(self._arrivals)

    def expect(self, request: InferRequest) -> None:
        """Note the arrival of a request, after the earlier ones."""
        expected = _Expected(request)
        self._arrivals.append(expected)
        self._by_request[id(request)] = expected

    def complete(self, requests: Sequence[InferRequest], responses: Sequence[InferResponse]) -> list[Answer]:
        """Take one response for each request and return the responses that may leave now, in order of arrival.

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

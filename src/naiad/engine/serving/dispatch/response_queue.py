"""The response queue: finished batches go from instance threads to the event loop, one wake-up for many of them.

Theory of operation. Waking the loop (`call_soon_threadsafe`) costs a system call and a context switch, so a thread
wakes it only if no wake-up is pending. Three variables are shared without a lock: the deque, which is thread-safe,
the flag `_woken`, and the loop.

- A thread appends its responses, then reads the flag. If it is clear, the thread sets it and schedules `_deliver`.
- `_deliver` clears the flag first and then empties the deque. An item appended before the flag was cleared is read by
  this call. An item appended later either is read too, or finds the flag clear and schedules another call. No item
  can stay behind, and a superfluous call finds an empty deque.
- In the other order (first empty, then clear) an item appended between both steps would find the flag set, and would
  wait until the next batch: a lost wake-up.
- On the loop itself `hand_over` delivers at once, after the items already queued.

The requests in flight bound the queue. `OrderedResponseQueue` adds preserve_ordering: a lock keeps the release of
responses and their place in the queue in the same order.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence

from naiad.core.environment.ports import Loop
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse

_log = logging.getLogger(__name__)

Answer = tuple[InferRequest, InferResponse]
Answers = tuple[Sequence[InferRequest], Sequence[InferResponse]]


class ResponseQueue:
    """A queue of responses from instance threads to the loop.

    The loop is woken only once for all batches that finish before it runs. Bounded by the requests in flight.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._answers: deque[Answers] = deque()
        self._woken = False

    def hand_over(
        self, requests: Sequence[InferRequest], responses: Sequence[InferResponse], *, on_loop: bool = False
    ) -> None:
        """Respond to each request: at once if the caller is the loop, otherwise soon."""
        if not on_loop:
            self.post(requests, responses)
            return
        if self._answers:
            self._deliver()
        _answer(requests, responses)

    def post(self, requests: Sequence[InferRequest], responses: Sequence[InferResponse]) -> None:
        """Queue one response per request; callable on any thread."""
        self._answers.append((requests, responses))
        # Both operations are atomic under the GIL. `_deliver` clears the flag before it reads the queue, see above.
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False
        answers = self._answers
        while answers:
            _answer(*answers.popleft())


class _Expected:
    __slots__ = ("is_complete", "request", "responses")

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self.responses: list[InferResponse] = []
        self.is_complete = False


class OrderedResponseQueue(ResponseQueue):
    """preserve_ordering: sends responses in the order in which their requests were accepted.

    Every expected request must be completed, failures included; otherwise all later responses are held back. The
    requests in flight bound its size.

    Triton: documents this rule, but with several instances its own responses can leave out of order.
    """

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._arrivals: deque[_Expected] = deque()
        self._by_request: dict[int, _Expected] = {}
        self._lock = threading.Lock()

    def expect(self, request: InferRequest) -> None:
        """Note an accepted request, after the earlier ones. It must get a response."""
        expected = _Expected(request)
        with self._lock:
            self._arrivals.append(expected)
            self._by_request[id(request)] = expected

    def hand_over(
        self, requests: Sequence[InferRequest], responses: Sequence[InferResponse], *, on_loop: bool = False
    ) -> None:
        """Send the responses that may leave now, at once if the caller is the loop; hold the later ones back.

        A response that is not final leaves as soon as its request is the oldest. Raises KeyError for a request that
        is not expected.
        """
        with self._lock:
            for request, response in zip(requests, responses, strict=True):
                expected = self._by_request[id(request)]
                expected.responses.append(response)
                if response.final:
                    expected.is_complete = True
                    del self._by_request[id(request)]
            released = self._released()
            if released:
                # Under the lock: another thread releases the following responses as soon as it can.
                answers = [request for request, _ in released], [response for _, response in released]
                if on_loop:
                    self._answers.append(answers)
                else:
                    self.post(*answers)
        if on_loop:
            self._deliver()

    def _released(self) -> list[Answer]:
        """Remove and return the responses that may leave now, in order of arrival."""
        released: list[Answer] = []
        while self._arrivals:
            oldest = self._arrivals[0]
            released.extend((oldest.request, response) for response in oldest.responses)
            oldest.responses.clear()
            if not oldest.is_complete:
                break
            self._arrivals.popleft()
        return released


def _answer(requests: Sequence[InferRequest], responses: Sequence[InferResponse]) -> None:
    for request, response in zip(requests, responses, strict=True):
        try:
            request.on_response(request, response)
        except Exception:
            # A defect in one connection must not stop the responses of other requests of the batch.
            _log.exception("sending the response to request '%s' failed", request.id)

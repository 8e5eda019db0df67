"""ResponseQueue: finished batches go from instance threads to the event loop, one loop callback for many of them."""

import logging
import threading
from collections import deque
from collections.abc import Sequence

from naiad.core.ports import Loop
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.scheduler.ordering import OrderedRelease

_log = logging.getLogger(__name__)

Answers = tuple[Sequence[InferRequest], Sequence[InferResponse]]


class ResponseQueue:
    """A queue of answers towards the loop.

    Waking the loop costs a system call, so it is woken only when it does not already know of answers: batches that
    finish before the loop gets to run are handed over together. Bounded by the requests in flight.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._answers: deque[Answers] = deque()
        self._woken = False

    def hand_over(
        self, requests: Sequence[InferRequest], responses: Sequence[InferResponse], *, on_loop: bool = False
    ) -> None:
        """Answer each request with its response: at once if the caller is the loop, otherwise soon."""
        if not on_loop:
            self.post(requests, responses)
            return
        if self._answers:
            self._deliver()
        _answer(requests, responses)

    def post(self, requests: Sequence[InferRequest], responses: Sequence[InferResponse]) -> None:
        """Hand over one response per request; callable from any thread."""
        self._answers.append((requests, responses))
        # Both operations are atomic under the GIL. The flag is cleared before the queue is read, so an answer that
        # is appended while the loop reads is either read too or wakes the loop once more: none stays behind.
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False
        answers = self._answers
        while answers:
            _answer(*answers.popleft())


class OrderedResponseQueue(ResponseQueue):
    """Answers requests in the order in which they were accepted, whichever is done first."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._ordered = OrderedRelease()
        self._lock = threading.Lock()

    def expect(self, request: InferRequest) -> None:
        """Note that a request was accepted, after those before it. From now on it must be answered."""
        with self._lock:
            self._ordered.expect(request)

    def hand_over(
        self, requests: Sequence[InferRequest], responses: Sequence[InferResponse], *, on_loop: bool = False
    ) -> None:
        """Answer what may leave now, at once if the caller is the loop; hold back what others must precede."""
        with self._lock:
            released = self._ordered.complete(requests, responses)
            if released:
                # Under the lock: another thread releases what follows as soon as it has it.
                answers = [request for request, _ in released], [response for _, response in released]
                if on_loop:
                    self._answers.append(answers)
                else:
                    self.post(*answers)
        if on_loop:
            self._deliver()


def _answer(requests: Sequence[InferRequest], responses: Sequence[InferResponse]) -> None:
    for request, response in zip(requests, responses, strict=True):
        try:
            request.on_response(request, response)
        except Exception:
            # One broken exchange must not keep its batch mates from their answers.
            _log.exception("answering request '%s' failed", request.id)

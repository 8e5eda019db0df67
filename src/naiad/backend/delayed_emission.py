"""A thread that sends the responses of many requests, each when it is due."""

import heapq
import threading
import time
from collections.abc import Callable
from typing import Protocol

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse

_CONGESTED_NS = 50_000_000
"""After this a request whose client did not take its responses is looked at again."""

Emit = Callable[[InferRequest, InferResponse], None]


class Responses(Protocol):
    """What one request is still answered with."""

    request: InferRequest

    def next_delay_ns(self) -> int:
        """Return how long to wait before the next response."""

    def next_response(self) -> InferResponse:
        """Return the next response; nothing is asked after the final one."""


class DelayedEmission:
    """Sends responses in the order in which they are due; requests that are due together take turns.

    Bounded by the requests in flight, of which each has one entry.
    """

    def __init__(self, thread_name: str) -> None:
        self._due: list[tuple[int, int, Responses, Emit]] = []
        self._count = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)
        self._thread.start()

    def begin(self, responses: Responses, emit: Emit) -> None:
        """Begin to send `responses`; the first delay counts from now."""
        due_ns = time.monotonic_ns() + responses.next_delay_ns()
        with self._changed:
            self._push(due_ns, responses, emit)
            self._changed.notify()

    def close(self) -> None:
        """Send nothing more and end the thread."""
        with self._changed:
            self._is_closed = True
            self._due.clear()
            self._changed.notify()
        self._thread.join()

    def _push(self, due_ns: int, responses: Responses, emit: Emit) -> None:
        # The number keeps turns, and keeps the heap from comparing responses.
        self._count += 1
        heapq.heappush(self._due, (due_ns, self._count, responses, emit))

    def _run(self) -> None:
        while True:
            with self._changed:
                entry = self._wait()
            if entry is None:
                return
            due_ns, _, responses, emit = entry
            if responses.request.is_congested and not responses.request.cancelled:
                with self._changed:
                    self._push(time.monotonic_ns() + _CONGESTED_NS, responses, emit)
                continue
            response = responses.next_response()
            emit(responses.request, response)
            if not response.final:
                with self._changed:
                    self._push(due_ns + responses.next_delay_ns(), responses, emit)
            # A request must not live on while this thread waits for the next one.
            del entry, responses, response, emit

    def _wait(self) -> tuple[int, int, Responses, Emit] | None:
        """Return what is due next, when it is due; None when closed."""
        while not self._is_closed:
            if not self._due:
                self._changed.wait()
                continue
            left_ns = self._due[0][0] - time.monotonic_ns()
            if left_ns <= 0:
                return heapq.heappop(self._due)
            self._changed.wait(left_ns / 1e9)
        return None

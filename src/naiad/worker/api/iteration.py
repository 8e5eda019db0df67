"""The responses of a call with any number of them, and the lock of threads that share one channel.

Leader/follower: one waiting thread reads on behalf of all. When it has its own response it passes the turn to another
waiting thread. A dedicated reading thread would need two switches between threads for each response, which cost as
much as a small model takes.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Protocol

from naiad.worker.api.failure import TritonModelException
from naiad.worker.api.response import InferenceResponse

if TYPE_CHECKING:
    import asyncio


class Waiter(ABC):
    """A thread or coroutine that waits until `is_done`."""

    __slots__ = ("bell",)

    def __init__(self) -> None:
        self.bell: queue.SimpleQueue[None] | None = None
        """The lock it sleeps on, if it sleeps."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether its wait is over."""


class LeaderFollowerLock:
    """Passes the turn to read among waiting threads."""

    def __init__(self, read: Callable[[bool], None]) -> None:
        """`read` waits for one message and handles it; its argument is whether to busy poll for a moment."""
        self._read = read
        self._guard = threading.Lock()
        self._is_taken = False
        self._asleep: set[Waiter] = set()

    def wait(self, waiter: Waiter, *, may_busy_poll: bool = True) -> None:
        """Return when `waiter` is done; read meanwhile, unless another thread does."""
        while True:
            with self._guard:
                if waiter.is_done:
                    self._asleep.discard(waiter)
                    self._pass_on()
                    return
                bell = None
                if self._is_taken:
                    bell = waiter.bell = waiter.bell or queue.SimpleQueue()
                    self._asleep.add(waiter)
                else:
                    self._is_taken = True
            if bell is not None:
                self._sleep(waiter, bell)
                continue
            try:
                while not waiter.is_done:
                    self._read(may_busy_poll)
            finally:
                with self._guard:
                    self._is_taken = False
                    self._pass_on()

    def _sleep(self, waiter: Waiter, bell: queue.SimpleQueue[None]) -> None:
        try:
            bell.get()
        except BaseException:
            # A signal handler has interrupted the wait: no thread may rely on this one any more. It may have got the
            # turn already.
            with self._guard:
                self._asleep.discard(waiter)
                self._pass_on()
            raise

    def wake(self, waiter: Waiter) -> None:
        """Wake a waiter that is done; called afterwards."""
        with self._guard:
            if waiter in self._asleep:
                self._asleep.discard(waiter)
                self._ring(waiter)

    def _pass_on(self) -> None:
        """Wake a waiter to take the turn, if no thread has it."""
        if self._asleep and not self._is_taken:
            self._ring(self._asleep.pop())

    def _ring(self, waiter: Waiter) -> None:
        if waiter.bell is not None:
            waiter.bell.put(None)


_SHOWN_COUNT = 16
"""Taken responses per report to the server, which sends slightly more than that ahead."""


class StreamCaller(Protocol):
    """The methods of the worker's calls that an iterator needs."""

    def wait(self, waiter: Waiter) -> None:
        """Return when `waiter` is done."""

    def start_reading(self) -> None:
        """Start the reading thread for callers that do not wait in a thread."""

    def taken(self, number: int, count: int) -> None:
        """Report the number of responses that were taken to the server."""

    def cancel(self, number: int, *, is_listening: bool = False) -> None:
        """Report the cancellation of a call to the server, whose further responses are read if `is_listening`."""

    def abandon(self, number: int) -> None:
        """Do so from a finalizer."""


class Arrivals(Waiter):
    """The received responses of one call; the reader puts, the iterator takes."""

    __slots__ = ("_future", "_lock", "has_ended", "responses")

    def __init__(self) -> None:
        super().__init__()
        self.responses: deque[tuple[InferenceResponse, bool]] = deque()
        """Each with whether it is the final one. Bounded: the server limits the responses that were not taken."""
        self.has_ended = False
        """Whether the final response has arrived."""
        self._lock = threading.Lock()
        self._future: asyncio.Future[None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether a response can be taken."""
        return bool(self.responses)

    def take(self, response: InferenceResponse | None, is_final: bool) -> None:
        """Add a response; None for the end alone, which becomes a response without outputs (Triton)."""
        with self._lock:
            # In one step: the iterator must not miss that it is the last, and wait for another.
            self.responses.append((InferenceResponse() if response is None else response, is_final))
            self.has_ended = is_final
            future, self._future = self._future, None
        if future is not None:
            settle_soon(future, None)

    async def arrive(self) -> None:
        """Wait for a response."""
        import asyncio  # it takes a quarter of the start of a worker, and most models have no coroutines

        with self._lock:
            if self.responses:
                return
            future = self._future = asyncio.get_running_loop().create_future()
        await future


def settle_soon(future: asyncio.Future[Any], result: Any) -> None:
    """Set the result of a future from another thread."""
    try:
        future.get_loop().call_soon_threadsafe(_settle, future, result)
    except RuntimeError:
        return  # its loop is closed


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


_MOST_KEPT = 4096
_MOST_KEPT_BYTES = 1 << 20


class _KeptResponses:
    """The responses that an iterator has given, for another iteration; only a bounded number of them."""

    __slots__ = ("_index", "_is_over", "_responses", "_size_bytes")

    def __init__(self) -> None:
        self._responses: list[InferenceResponse] = []
        self._size_bytes = 0
        self._index = -1
        """The next one of another iteration; -1 before the first has begun."""
        self._is_over = False

    def add(self, response: InferenceResponse) -> None:
        """Keep a response of the first iteration."""
        if self._is_over:
            return
        self._responses.append(response)
        for tensor in response._tensors:
            self._size_bytes += tensor.size_bytes
        if self._size_bytes > _MOST_KEPT_BYTES or len(self._responses) > _MOST_KEPT:
            self._is_over = True
            self._responses.clear()

    def begin(self) -> None:
        """Begin again if the last iteration has ended. Raises TritonModelException without the responses."""
        if self._is_over:
            raise TritonModelException(
                f"the responses cannot be iterated again: they are kept up to {_MOST_KEPT} responses and "
                f"{_MOST_KEPT_BYTES} bytes; keep them in a list"
            )
        if not 0 <= self._index < len(self._responses):
            self._index = 0

    def next(self) -> InferenceResponse | None:
        """Return the next response of another iteration, None at its end."""
        if not 0 <= self._index < len(self._responses):
            return None
        self._index += 1
        return self._responses[self._index - 1]


class ResponseIterator:
    """The responses of a call, in order; `for` blocks until the next one, `async for` awaits it.

    The last of them has no outputs if the model ended its responses without a last one. After its end, `for` gives
    the same responses again (Triton). A released iterator cancels the responses that it has not taken.
    """

    __slots__ = ("_arrivals", "_calls", "_is_finished", "_kept", "_number", "_taken_count")

    def __init__(self, calls: StreamCaller, number: int, arrivals: Arrivals) -> None:
        self._calls = calls
        self._number = number
        self._arrivals = arrivals
        self._taken_count = 0
        self._is_finished = False
        self._kept = _KeptResponses()

    def __iter__(self) -> ResponseIterator:
        if self._is_finished:
            self._kept.begin()
        return self

    def __next__(self) -> InferenceResponse:
        if self._is_finished:
            again = self._kept.next()
            if again is None:
                raise StopIteration("Iteration is done for the responses.")
            return again
        if not self._arrivals.responses:
            self._calls.wait(self._arrivals)
        return self._pop()

    def __aiter__(self) -> ResponseIterator:
        return self.__iter__()

    async def __anext__(self) -> InferenceResponse:
        if self._is_finished:
            again = self._kept.next()
            if again is None:
                raise StopAsyncIteration
            return again
        if not self._arrivals.responses:
            self._calls.start_reading()
            await self._arrivals.arrive()
        return self._pop()

    def cancel(self) -> None:
        """Cancel the call. The model decides whether it respects that: the responses that it still sends arrive."""
        if not self._arrivals.has_ended:
            self._calls.cancel(self._number, is_listening=True)

    async def begun(self) -> ResponseIterator:
        """Return the iterator after its first response, as Triton's `await` of it does."""
        if not self._arrivals.responses:
            self._calls.start_reading()
            await self._arrivals.arrive()
        return self

    def _pop(self) -> InferenceResponse:
        response, self._is_finished = self._arrivals.responses.popleft()
        self._kept.add(response)
        if self._arrivals.has_ended:
            return response
        self._taken_count += 1
        if self._taken_count >= _SHOWN_COUNT:
            self._calls.taken(self._number, self._taken_count)
            self._taken_count = 0
        return response

    def __del__(self) -> None:
        if not self._arrivals.has_ended:
            self._calls.abandon(self._number)

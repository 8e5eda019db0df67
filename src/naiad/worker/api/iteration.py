"""The responses of a call that may have any number of them.

Who reads a line that several threads wait at: whoever waits, one at a time, also for the others.

A thread of its own that reads would have to be woken for each answer, and to wake who waits for it: two switches
between threads, which cost as much as a small model takes.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Callable, Protocol

from naiad.worker.api.inference import InferenceResponse


class Waiter(ABC):
    """Someone who waits until `is_done`."""

    __slots__ = ("bell",)

    def __init__(self) -> None:
        self.bell: queue.SimpleQueue[None] | None = None
        """What it sleeps on, when it sleeps."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether there is nothing to wait for any more."""


class LeaderFollowerLock:
    """Hands the turn to read from one to the next."""

    def __init__(self, read: Callable[[bool], None]) -> None:
        """`read` waits for one message and sees to it; it is told whether to wait awake for a moment."""
        self._read = read
        self._guard = threading.Lock()
        self._is_taken = False
        self._asleep: set[Waiter] = set()

    def wait(self, waiter: Waiter, *, may_busy_poll: bool = True) -> None:
        """Return when `waiter` is done; read meanwhile, unless someone else does."""
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
            # A signal handler has interrupted the wait: nobody may count on this thread any more. It may have been
            # handed the turn already.
            with self._guard:
                self._asleep.discard(waiter)
                self._pass_on()
            raise

    def wake(self, waiter: Waiter) -> None:
        """Let a waiter see that it is done; called after it is."""
        with self._guard:
            if waiter in self._asleep:
                self._asleep.discard(waiter)
                self._ring(waiter)

    def _pass_on(self) -> None:
        """Wake someone to take the turn, if nobody has it."""
        if self._asleep and not self._is_taken:
            self._ring(self._asleep.pop())

    def _ring(self, waiter: Waiter) -> None:
        if waiter.bell is not None:
            waiter.bell.put(None)


_TELL_COUNT = 16
"""How many responses are taken before the server hears of it; it sends some more than that ahead."""


class StreamCaller(Protocol):
    """What an iterator asks of the worker's calls."""

    def wait(self, waiter: Waiter) -> None:
        """Return when `waiter` is done."""

    def start_reading(self) -> None:
        """See to it that answers are read while nobody waits for them in a thread."""

    def taken(self, number: int, count: int) -> None:
        """Tell the server that so many responses were taken."""

    def cancel(self, number: int) -> None:
        """Tell the server that a call is given up."""

    def abandon(self, number: int) -> None:
        """Do so from wherever the garbage collector runs."""


class Arrivals(Waiter):
    """What has come for one call; the reader puts, the iterator takes."""

    __slots__ = ("_future", "_lock", "has_ended", "responses")

    def __init__(self) -> None:
        super().__init__()
        self.responses: deque[tuple[InferenceResponse, bool]] = deque()
        """Each with whether it is the final one. Bounded: the server sends only so many that were not taken."""
        self.has_ended = False
        """Whether the final response has come."""
        self._lock = threading.Lock()
        self._future: asyncio.Future[None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether a response can be taken."""
        return bool(self.responses)

    def take(self, response: InferenceResponse | None, is_final: bool) -> None:
        """Add a response; None for the end alone, which Triton makes a response without outputs."""
        with self._lock:
            # In one step: who takes it must not miss that it is the last, and wait for another.
            self.responses.append((InferenceResponse() if response is None else response, is_final))
            self.has_ended = is_final
            future, self._future = self._future, None
        if future is not None:
            settle_soon(future, None)

    async def arrive(self) -> None:
        """Wait for a response."""
        with self._lock:
            if self.responses:
                return
            future = self._future = asyncio.get_running_loop().create_future()
        await future


def settle_soon(future: asyncio.Future[Any], result: Any) -> None:
    """Give a future its result from another thread."""
    try:
        future.get_loop().call_soon_threadsafe(_settle, future, result)
    except RuntimeError:
        return  # its loop is closed: nobody waits any more


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


class ResponseIterator:
    """The responses of a call, in order; with `for` it blocks until there is one, with `async for` it does not.

    The last of them has no outputs when the model ended its responses without a last one. An iterator that is let go
    cancels what it has not had.
    """

    __slots__ = ("_arrivals", "_calls", "_is_finished", "_number", "_taken_count")

    def __init__(self, calls: StreamCaller, number: int, arrivals: Arrivals) -> None:
        self._calls = calls
        self._number = number
        self._arrivals = arrivals
        self._taken_count = 0
        self._is_finished = False

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        if self._is_finished:
            raise StopIteration("Iteration is done for the responses.")
        if not self._arrivals.responses:
            self._calls.wait(self._arrivals)
        return self._pop()

    def __aiter__(self) -> ResponseIterator:
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._is_finished:
            raise StopAsyncIteration
        if not self._arrivals.responses:
            self._calls.start_reading()
            await self._arrivals.arrive()
        return self._pop()

    def cancel(self) -> None:
        """Give up what has not come yet; the next response that comes then is the last, an error CANCELLED."""
        if not self._arrivals.has_ended:
            self._calls.cancel(self._number)

    async def begun(self) -> ResponseIterator:
        """Return the iterator when its first response has come, as Triton's `await` of it does."""
        if not self._arrivals.responses:
            self._calls.start_reading()
            await self._arrivals.arrive()
        return self

    def _pop(self) -> InferenceResponse:
        response, self._is_finished = self._arrivals.responses.popleft()
        if self._arrivals.has_ended:
            return response
        self._taken_count += 1
        if self._taken_count >= _TELL_COUNT:
            self._calls.taken(self._number, self._taken_count)
            self._taken_count = 0
        return response

    def __del__(self) -> None:
        if not self._arrivals.has_ended:
            self._calls.abandon(self._number)

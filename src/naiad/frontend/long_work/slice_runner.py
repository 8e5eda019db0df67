"""Runs large requests and responses in slices on the event loop.

A thread would not help: parsers hold the interpreter lock, and so does Python code for milliseconds at a time. The
work is therefore a generator that yields about every millisecond (`naiad.core.slices`). The runner advances one of
them per turn of the loop, for at most `_TURN_NS`, and the loop polls its sockets in between:

    turn 1: client A, 2 ms | sockets | turn 2: client B, 2 ms | sockets | turn 3: client A, 2 ms | ...

Clients alternate, regardless of the number of their requests; a client is a connection. Work that is done within its
first turn never waits. The queue is bounded in number and in bytes; beyond that a request is rejected as unavailable.

While the server also answers other requests, which take a fraction of a millisecond, a turn is one slice, and a pause
follows that is twice as long: in two thirds of the time an arriving request meets an idle loop, so that most are not
delayed at all, and the rest by one slice. Large requests then take up to three times as long; without other requests
there are no pauses. Other requests are noticed by the number of responses that the server has sent: it exceeds the
number of large requests more and more.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from naiad.core.errors import InferError, Rejection, internal, unavailable
from naiad.core.slices import Slices, finish

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

CallSoon = Callable[[Callable[[], object]], object]
"""`call_soon` of the loop: it calls back after the loop has polled its sockets."""

CallLater = Callable[[float, Callable[[], object]], object]
"""`call_later` of the loop."""

_TURN_NS = 2_000_000
_ACTIVE_NS = 50_000_000
"""Other requests count as present for this long after a response."""
_FORGET_NS = 1_000_000_000
_LEAST_PAUSE_S = 0.001
"""The precision of the loop's timers."""
MAX_JOBS = 1024
"""Limit of waiting requests and responses."""
MAX_WAITING_BYTES = 1 << 30
"""Limit of their bytes together."""


class SliceJob:
    """One piece of work with its callbacks."""

    __slots__ = ("client", "done", "failed", "is_over", "is_part", "size", "slices")

    def __init__(
        self,
        client: object,
        slices: Slices[Any],
        size: int,
        done: Callable[[Any], object],
        failed: Callable[[InferError], object],
    ) -> None:
        self.client = client
        self.slices = slices
        self.size = size
        self.done = done
        self.failed = failed
        self.is_part = False
        """Its request has another job, or no response of its own."""
        self.is_over = False
        """It has ended or was cancelled."""


class SliceRunner:
    """Advances the large requests and responses of one event loop."""

    def __init__(
        self,
        call_soon: CallSoon | None = None,
        *,
        max_jobs: int = MAX_JOBS,
        max_bytes: int = MAX_WAITING_BYTES,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        call_later: CallLater | None = None,
        response_count: Callable[[], int] = lambda: 0,
    ) -> None:
        """Without `call_soon` all work is done at once; without `call_later` it makes no pauses.

        `response_count` returns the number of responses that the server has sent so far.
        """
        self._call_soon = call_soon
        self._call_later = call_later
        self._response_count = response_count
        self._done_count = 0
        """Number of jobs that have ended; each belongs to a request, which gets one response."""
        self._most_others = 0
        """The largest number of responses, less ended jobs: it increases with each other request."""
        self._active_until_ns = 0
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._clock_ns = clock_ns
        self._clients: deque[object] = deque()
        """Clients with waiting work, in the order of their turns."""
        self._jobs: dict[object, deque[SliceJob]] = {}
        self._is_scheduled = False
        self.job_count = 0
        """Number of waiting jobs."""
        self.waiting_bytes = 0

    def run(
        self,
        client: object,
        slices: Slices[Any],
        size: int,
        done: Callable[[Any], object],
        failed: Callable[[InferError], object],
        *,
        starts_later: bool = False,
        is_part: bool = False,
    ) -> SliceJob:
        """Do the work, then call `done` with its result, or `failed` with the InferError that it raised.

        `size` is about the number of bytes that the work keeps in memory. Either callback may run before this
        returns. A job can be cancelled until one of them is called. With `starts_later` the first slice waits for its
        turn as well; used for a client whose turn was spent on the previous job. `is_part`: the request has another
        job, or no response of its own, so that the response counts only once.
        """
        job = SliceJob(client, slices, size, done, failed)
        job.is_part = is_part
        if self._call_soon is None:
            self._settle(job, finish)
        elif starts_later or self._jobs.get(client) or self._has_others() or not self._advance(job):
            self._enqueue(job)
        return job

    def _has_others(self) -> bool:
        """Return whether the server also answers requests that are not large."""
        others = self._response_count() - self._done_count
        now_ns = self._clock_ns()
        if others > self._most_others:
            self._most_others = others
            self._active_until_ns = now_ns + _ACTIVE_NS
        elif others < self._most_others and now_ns - self._active_until_ns > _FORGET_NS:
            # Large requests have ended without responses, because their clients have disconnected.
            self._most_others = others
            self._active_until_ns = now_ns
        return now_ns < self._active_until_ns

    def cancel(self, job: SliceJob) -> None:
        """Drop a job; no callback is called for it."""
        if not job.is_over:
            job.is_over = True
            job.slices.close()
            self._forget(job)

    def _enqueue(self, job: SliceJob) -> None:
        if self.job_count >= self._max_jobs or (
            self.waiting_bytes and self.waiting_bytes + job.size > self._max_bytes
        ):
            job.is_over = True
            job.slices.close()
            job.failed(unavailable("too many large requests are being decoded; try again", Rejection.OVERLOAD))
            return
        self.job_count += 1
        self.waiting_bytes += job.size
        queue = self._jobs.get(job.client)
        if queue is None:
            queue = self._jobs[job.client] = deque()
            self._clients.append(job.client)
        queue.append(job)
        self._schedule()

    def _forget(self, job: SliceJob) -> None:
        """Remove a job from its queue."""
        queue = self._jobs.get(job.client)
        if queue is None or job not in queue:
            return
        queue.remove(job)
        self.job_count -= 1
        self.waiting_bytes -= job.size
        if not queue:
            del self._jobs[job.client]
            self._clients.remove(job.client)

    def _schedule(self) -> None:
        if not self._is_scheduled and self._clients and self._call_soon is not None:
            self._is_scheduled = True
            self._call_soon(self._turn)

    def _pause(self, began_ns: int) -> None:
        """Schedule the next turn, after a pause of twice the time of the last one."""
        if self._call_later is None or self._is_scheduled or not self._clients:
            self._schedule()
            return
        self._is_scheduled = True
        self._call_later(max(_LEAST_PAUSE_S, 2 * (self._clock_ns() - began_ns) / 1e9), self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        has_others = self._call_later is not None and self._has_others()
        began_ns = self._clock_ns()
        if self._clients:
            self._clients.rotate(-1)
            job = self._jobs[self._clients[-1]][0]
            try:
                self._advance(job, 0 if has_others else _TURN_NS)
            except Exception:
                _log.exception("continuing a large request failed")
                self._fail(job)
        if has_others:
            self._pause(began_ns)
        else:
            self._schedule()

    def _fail(self, job: SliceJob) -> None:
        """End the request of a job with a callback that has raised: it would get no response otherwise."""
        try:
            job.failed(internal("internal error; see the server log"))
        except Exception:
            _log.exception("failing a large request failed")

    def _advance(self, job: SliceJob, turn_ns: int = _TURN_NS) -> bool:
        """Work for one turn, or for one slice if `turn_ns` is 0; return whether the job is done."""
        until_ns = self._clock_ns() + turn_ns

        def work(slices: Slices[Any]) -> Any:
            if not turn_ns:
                next(slices)
            while self._clock_ns() < until_ns:
                next(slices)
            return _UNFINISHED

        return self._settle(job, work)

    def _settle(self, job: SliceJob, work: Callable[[Slices[Any]], Any]) -> bool:
        outcome: Any = None
        error: InferError | None = None
        try:
            outcome = work(job.slices)
        except StopIteration as end:
            outcome = end.value
        except InferError as rejection:
            error = rejection
        except Exception:
            _log.exception("decoding or encoding in slices failed")
            error = internal("internal error; see the server log")
        if outcome is _UNFINISHED:
            return False
        job.is_over = True
        self._done_count += not job.is_part
        self._forget(job)
        if error is None:
            job.done(outcome)
        else:
            job.failed(error.with_traceback(None))
        return True


_UNFINISHED = object()


async def in_pieces(slices: Slices[_T]) -> _T:
    """Do work in slices, and let other work of the loop go on in between."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: _T = end.value
            return result
        await asyncio.sleep(0)

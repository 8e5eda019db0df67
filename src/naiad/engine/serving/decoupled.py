"""The responses of a decoupled model: its open requests, and the path of each response to the loop.

A client that does not read responses first pauses its model: its request is paused, and the instance emits no more.
The pause is limited: a request that is paused for `SLOW_CLIENT_S` without a response fails. Responses follow once the
client has read the queued ones, so the limit is a minimum rate: half of the amount that pauses a request in a
frontend (1 MiB of a gRPC stream) within that time, 17 KiB/s.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from naiad.backend.api import InstanceDiedError
from naiad.core.batch import Batch
from naiad.core.errors import excerpt
from naiad.core.request import InferRequest
from naiad.core.response import RESCHEDULE, InferResponse
from naiad.telemetry.statistics import part_statistics as response_statistics
from naiad.telemetry.statistics.model_statistics import is_cancelled
from naiad.telemetry.statistics.part_statistics import EMPTY, SUCCESS, ResponseStatistics

if TYPE_CHECKING:
    from naiad.engine.serving.suspects import Suspects

_log = logging.getLogger(__name__)

SLOW_CLIENT_S = 30.0
"""Maximum time that a model waits for one client."""


class _Deliver(Protocol):
    def __call__(
        self, requests: Sequence[InferRequest], responses: Sequence[InferResponse], *, on_loop: bool = False
    ) -> None: ...


class _Open:
    """A request without its final response."""

    __slots__ = ("has_executed", "owner", "paused_count", "paused_since_ns", "request", "response_count", "since_ns")

    def __init__(self, request: InferRequest, since_ns: int) -> None:
        self.request = request
        self.owner: object = None
        """The instance that executes it."""
        self.has_executed = False
        """Its execution has ended; more responses may follow."""
        self.response_count = 0
        self.since_ns = since_ns
        """Start of its next response: the time of the previous one."""
        self.paused_since_ns = 0
        """Time at which it was first found paused at its current number of responses; 0 for not."""
        self.paused_count = 0

    def paused_s(self, now_ns: int) -> float:
        """Return the observed time for which its client has paused the instance."""
        if not self.request.waits_for_client:
            self.paused_since_ns = 0
        elif not self.paused_since_ns or self.paused_count != self.response_count:
            self.paused_since_ns, self.paused_count = now_ns, self.response_count
        else:
            return (now_ns - self.paused_since_ns) / 1e9
        return 0.0


class DecoupledResponses:
    """Collects the responses of instances, on any thread, until the final one of each request.

    A request is open from the start of its batch until its final response. Bounded by the requests in flight; emitted
    responses wait in the response queue, then in the frontends, which bound them per peer.
    """

    def __init__(
        self,
        deliver: _Deliver,
        statistics: ResponseStatistics,
        on_final: Callable[[InferRequest], object],
        on_again: Callable[[InferRequest], object] | None = None,
    ) -> None:
        """`deliver` takes requests, their responses, and whether it is called on the loop.

        `on_final` is called with each completed request, `on_again` with requests to execute again.
        """
        self._on_again = on_again
        self._paused: dict[int, _Open] = {}
        """Requests that wait for another execution."""
        self._cancelled: dict[int, InferRequest] = {}
        """Requests that the model has answered with CANCELLED during their execution."""
        self._deliver = deliver
        self._statistics = statistics
        self._on_final = on_final
        self._open: dict[int, _Open] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._loop_thread = 0
        self.suspects: Suspects | None = None
        """Suspects of worker deaths."""
        self._awaited_owners: set[object] = set()
        """Owners with a thread that waits for the end of their open requests."""

    def bind_loop_thread(self) -> None:
        """Note that the calling thread runs the event loop: its responses are delivered at once."""
        self._loop_thread = threading.get_ident()

    @property
    def open_count(self) -> int:
        """Requests of started batches without their final response."""
        return len(self._open)

    @property
    def has_requests(self) -> bool:
        """Return whether any request is open, or waits for another execution."""
        return bool(self._open or self._paused)

    def begin(self, batch: Batch, owner: object = None) -> None:
        """Open the requests of a batch; `owner` is the instance that executes it."""
        self.open(batch.requests, owner)
        batch.emit = self.emit

    def open(self, requests: Sequence[InferRequest], owner: object) -> None:
        """Open requests of `owner`."""
        # Without the lock (an insertion is atomic): the caller may hold a lock that `deliver` needs.
        now_ns = time.monotonic_ns()
        for request in requests:
            entry = self._paused.pop(id(request), None) if self._paused else None
            if entry is not None:
                entry.since_ns = now_ns
            entry = entry or _Open(request, now_ns)
            entry.owner = owner
            self._open[id(request)] = entry

    def emit(self, request: InferRequest, response: InferResponse) -> None:
        """Send one response; callable on any thread. Responses to a completed request are dropped."""
        # hot: once a response
        if response is RESCHEDULE:
            self._pause(request)
            return
        key = id(request)
        now_ns = time.monotonic_ns()
        with self._lock:  # twice as fast as through the condition
            entry = self._open.get(key)
            # The request itself is compared: another request may have the same id by now.
            if entry is None or entry.request is not request:
                _log.debug("a response for request '%s', which is complete, was dropped", excerpt(request.id))
                return
            # Counted before it is sent: a client with the response finds it in the statistics. Its outputs are ready,
            # so their encoding takes no model time.
            if response.error is None and not request.cancelled:
                outcome = EMPTY if response.empty_final else SUCCESS
            else:
                outcome = _failed_outcome(request, response)
            self._statistics.record(entry.response_count, outcome, entry.since_ns, now_ns, now_ns)
            if not entry.response_count:
                self._statistics.record_first(now_ns - request.arrival_ns)
            entry.response_count += 1
            entry.since_ns = now_ns
            if response.final:
                self._close(entry, response)
            on_loop = threading.get_ident() == self._loop_thread
            if not on_loop:
                # Under the lock, so that responses of several threads keep their order.
                self._deliver((request,), (response,))
        if on_loop:
            self._deliver((request,), (response,), on_loop=True)
        if response.final:
            self._judge(request, response)
            self._on_final(request)

    def _close(self, entry: _Open, response: InferResponse) -> None:
        """Close a request with its final response, under the lock."""
        key = id(entry.request)
        if response.error is not None and is_cancelled(response.error) and not entry.has_executed:
            self._cancelled[key] = entry.request
        del self._open[key]
        if not self._open or self._awaited_owners:
            self._changed.notify_all()

    def _judge(self, request: InferRequest, response: InferResponse) -> None:
        """Note whether a completed request was executing at the death of its worker, or got a response."""
        suspects = self.suspects
        if suspects is None:
            return
        if isinstance(response.error, InstanceDiedError):
            suspects.note_death((request,), response.error.message, time.monotonic_ns())
        elif response.error is None and suspects.found:
            suspects.clear((request,))

    def _pause(self, request: InferRequest) -> None:
        with self._lock:
            entry = self._open.get(id(request))
            if entry is None or entry.request is not request:
                return  # it is complete: nothing to execute
            del self._open[id(request)]
            self._paused[id(request)] = entry
            if not self._open or self._awaited_owners:
                self._changed.notify_all()
        if self._on_again is not None:
            self._on_again(request)

    def resume(self, requests: Sequence[InferRequest]) -> None:
        """Reopen requests that were to be executed again, but are not."""
        with self._lock:
            for request in requests:
                entry = self._paused.pop(id(request), None)
                if entry is not None:
                    self._open[id(request)] = entry

    def end_execution(self, requests: Sequence[InferRequest]) -> Sequence[InferRequest]:
        """Note the end of an execution; return its requests that the model has answered with CANCELLED so far."""
        with self._lock:
            for request in requests:
                entry = self._open.get(id(request))
                if entry is not None:
                    entry.has_executed = True
            if not self._cancelled:
                return ()
            return [request for request in requests if self._cancelled.pop(id(request), None) is not None]

    def withdraw(self, request: InferRequest) -> None:
        """Close a request without a response: its instance has not begun it, and it is queued again."""
        with self._lock:
            self._open.pop(id(request), None)
            if not self._open or self._awaited_owners:
                self._changed.notify_all()

    def forget(self, request: InferRequest) -> None:
        """Remove a request that got its response while it waited."""
        if self._paused:
            self._paused.pop(id(request), None)

    def fail(self, requests: Sequence[InferRequest], response: InferResponse) -> None:
        """Send `response` to the open ones among `requests`."""
        for request in requests:
            entry = self._open.get(id(request))
            if entry is not None and entry.request is request:
                self.emit(request, response)
        self.end_execution(requests)  # the whole batch counts as failed

    def progress_ns(self, request: InferRequest) -> int:
        """Return the time of a request's last response; 0 for a request without one, or not open."""
        entry = self._open.get(id(request))
        return entry.since_ns if entry is not None and entry.response_count else 0

    def slow_clients(self, now_ns: int) -> list[InferRequest]:
        """Return the requests with clients that pause instances for too long; called periodically."""
        return [entry.request for entry in list(self._open.values()) if entry.paused_s(now_ns) > SLOW_CLIENT_S]

    def is_owner(self, owner: object) -> bool:
        """Return whether any open request belongs to this owner."""
        return any(entry.owner is owner for entry in list(self._open.values()))

    def wait_closed_of(self, owner: object, timeout_s: float) -> bool:
        """Wait until no open request belongs to this owner; return False after `timeout_s`."""
        with self._changed:
            self._awaited_owners.add(owner)
            try:
                return self._changed.wait_for(lambda: not self.is_owner(owner), timeout_s)
            finally:
                self._awaited_owners.discard(owner)

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait until no request is open; return False after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._open:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    return not self._open
        return True

    def abandon(self, response: InferResponse) -> int:
        """Send `response` to all open requests; return their number."""
        left = [entry.request for entry in list(self._open.values())]
        self.fail(left, response)
        return len(left)


def _failed_outcome(request: InferRequest, response: InferResponse) -> int:
    answered = response.error is not None and is_cancelled(response.error)
    return response_statistics.CANCEL if answered or request.cancelled else response_statistics.FAIL

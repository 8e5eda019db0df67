"""The answers of a decoupled model: which of its requests are open, and how each response reaches the loop.

A client that takes no responses stops its model at first: its request is congested, and the instance emits no more.
That has an end: a request that is congested for `SLOW_CLIENT_S` and has had no response meanwhile fails. When the
client has taken what waits for it, responses follow, so this is a least rate: half of what makes a frontend call a
request congested (1 MiB of a gRPC stream) within that time, 17 KiB/s.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from naiad.backend.api import InstanceDiedError
from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, excerpt
from naiad.core.request import InferRequest
from naiad.core.response import RESCHEDULE, InferResponse
from naiad.telemetry.statistics import responses as response_statistics
from naiad.telemetry.statistics.responses import EMPTY, SUCCESS, ResponseStatistics

if TYPE_CHECKING:
    from naiad.engine.serving.suspects import Suspects

_log = logging.getLogger(__name__)

SLOW_CLIENT_S = 30.0
"""How long a model waits for one client."""


class _Deliver(Protocol):
    def __call__(
        self, requests: Sequence[InferRequest], responses: Sequence[InferResponse], *, on_loop: bool = False
    ) -> None: ...


class _Open:
    """A request that has not had its final response."""

    __slots__ = ("owner", "paused_count", "paused_since_ns", "request", "response_count", "since_ns")

    def __init__(self, request: InferRequest, since_ns: int) -> None:
        self.request = request
        self.owner: object = None
        """The instance that has it."""
        self.response_count = 0
        self.since_ns = since_ns
        """When its next response was begun: when the one before was sent."""
        self.paused_since_ns = 0
        """When it was first found congested with `congested_count` responses; 0 for not."""
        self.paused_count = 0

    def paused_s(self, now_ns: int) -> float:
        """Return for how long its client has kept the instance waiting, as far as was seen."""
        if not self.request.waits_for_client:
            self.paused_since_ns = 0
        elif not self.paused_since_ns or self.paused_count != self.response_count:
            self.paused_since_ns, self.paused_count = now_ns, self.response_count
        else:
            return (now_ns - self.paused_since_ns) / 1e9
        return 0.0


class DecoupledResponses:
    """Takes the responses that instances emit, from any thread, until the final one of each request.

    A request is open from the moment its batch is handed to an instance until its final response. Bounded by the
    requests in flight; what is emitted waits in the delivery, then in the frontends, which bound it per peer.
    """

    def __init__(
        self,
        deliver: _Deliver,
        statistics: ResponseStatistics,
        on_final: Callable[[InferRequest], object],
        on_again: Callable[[InferRequest], object] | None = None,
    ) -> None:
        """`deliver` takes requests and their responses, and is told whether it is called on the loop.

        `on_final` is called with each request that has had its final response, `on_again` with those that are to be
        executed again.
        """
        self._on_again = on_again
        self._paused: dict[int, _Open] = {}
        """Requests that wait to be executed again."""
        self._deliver = deliver
        self._statistics = statistics
        self._on_final = on_final
        self._open: dict[int, _Open] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._loop_thread = 0
        self.suspects: Suspects | None = None
        """The requests that workers may have died of."""
        self._awaited_owners: set[object] = set()
        """Of whom somebody waits until they have no open requests."""

    def bind_loop_thread(self) -> None:
        """Note that the calling thread is the event loop's: what is emitted on it is delivered at once."""
        self._loop_thread = threading.get_ident()

    @property
    def open_count(self) -> int:
        """Requests that were handed to an instance and have not had their final response."""
        return len(self._open)

    @property
    def has_requests(self) -> bool:
        """Whether any request is open, or waits to be executed again."""
        return bool(self._open or self._paused)

    def begin(self, batch: Batch, owner: object = None) -> None:
        """Open the requests of a batch that is about to be executed; `owner` is the instance that executes it."""
        self.open(batch.requests, owner)
        batch.emit = self.emit

    def open(self, requests: Sequence[InferRequest], owner: object) -> None:
        """Open requests that `owner` answers."""
        # Without the lock (an insertion is atomic): the caller may hold one that `deliver` takes as well.
        now_ns = time.monotonic_ns()
        for request in requests:
            entry = self._paused.pop(id(request), None) if self._paused else None
            if entry is not None:
                entry.since_ns = now_ns
            entry = entry or _Open(request, now_ns)
            entry.owner = owner
            self._open[id(request)] = entry

    def emit(self, request: InferRequest, response: InferResponse) -> None:
        """Send one response; callable from any thread. A request that is complete takes no more of them."""
        # hot: once a response
        if response is RESCHEDULE:
            self._pause(request)
            return
        key = id(request)
        now_ns = time.monotonic_ns()
        with self._lock:  # twice as fast as by way of the condition
            entry = self._open.get(key)
            # The request itself is compared: an id may be another request's by now.
            if entry is None or entry.request is not request:
                _log.debug("a response for request '%s', which is complete, was dropped", excerpt(request.id))
                return
            # Counted before it is on its way: whoever has the response finds it in the statistics. Its outputs are
            # ready, so putting them together takes no time.
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
                del self._open[key]
                if not self._open or self._awaited_owners:
                    self._changed.notify_all()
            on_loop = threading.get_ident() == self._loop_thread
            if not on_loop:
                # Under the lock, so that responses from several threads keep the order in which they were taken.
                self._deliver((request,), (response,))
        if on_loop:
            self._deliver((request,), (response,), on_loop=True)
        if response.final:
            self._judge(request, response)
            self._on_final(request)

    def _judge(self, request: InferRequest, response: InferResponse) -> None:
        """Note whether a request that is over was executed when its worker died, or was answered."""
        suspects = self.suspects
        if suspects is None:
            return
        if isinstance(response.error, InstanceDiedError):
            suspects.accuse((request,), response.error.message, time.monotonic_ns())
        elif response.error is None and suspects.found:
            suspects.clear((request,))

    def _pause(self, request: InferRequest) -> None:
        with self._lock:
            entry = self._open.get(id(request))
            if entry is None or entry.request is not request:
                return  # it is complete: there is nothing to execute it for
            del self._open[id(request)]
            self._paused[id(request)] = entry
            if not self._open or self._awaited_owners:
                self._changed.notify_all()
        if self._on_again is not None:
            self._on_again(request)

    def resume(self, requests: Sequence[InferRequest]) -> None:
        """Open requests again that were to be executed once more, and are not."""
        with self._lock:
            for request in requests:
                entry = self._paused.pop(id(request), None)
                if entry is not None:
                    self._open[id(request)] = entry

    def withdraw(self, request: InferRequest) -> None:
        """Close a request without a response: its instance has not begun it, and it waits again."""
        with self._lock:
            self._open.pop(id(request), None)
            if not self._open or self._awaited_owners:
                self._changed.notify_all()

    def forget(self, request: InferRequest) -> None:
        """Let go of a request that was answered while it waited."""
        if self._paused:
            self._paused.pop(id(request), None)

    def fail(self, requests: Sequence[InferRequest], response: InferResponse) -> None:
        """Answer with `response` those of `requests` that are open."""
        for request in requests:
            entry = self._open.get(id(request))
            if entry is not None and entry.request is request:
                self.emit(request, response)

    def progress_ns(self, request: InferRequest) -> int:
        """Return when a request has had its last response; 0 for one that has had none, or is not open."""
        entry = self._open.get(id(request))
        return entry.since_ns if entry is not None and entry.response_count else 0

    def slow_clients(self, now_ns: int) -> list[InferRequest]:
        """Return the requests whose clients keep instances waiting for too long; to be called now and then."""
        return [entry.request for entry in list(self._open.values()) if entry.paused_s(now_ns) > SLOW_CLIENT_S]

    def is_owner(self, owner: object) -> bool:
        """Tell whether any open request belongs to this owner."""
        return any(entry.owner is owner for entry in list(self._open.values()))

    def wait_closed_of(self, owner: object, timeout_s: float) -> bool:
        """Wait until no open request belongs to this owner; whether that came true within `timeout_s`."""
        with self._changed:
            self._awaited_owners.add(owner)
            try:
                return self._changed.wait_for(lambda: not self.is_owner(owner), timeout_s)
            finally:
                self._awaited_owners.discard(owner)

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait until no request is open; whether that came true within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._open:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    return not self._open
        return True

    def abandon(self, response: InferResponse) -> int:
        """Answer everything that is open with `response`; return how many requests that were."""
        left = [entry.request for entry in list(self._open.values())]
        self.fail(left, response)
        return len(left)


def _failed_outcome(request: InferRequest, response: InferResponse) -> int:
    is_cancelled = response.error is not None and response.error.code is ErrorCode.CANCELLED
    return response_statistics.CANCEL if is_cancelled or request.cancelled else response_statistics.FAIL

"""Requests that wait for their model to be loaded. Everything here is on the event loop.

A look-up that finds a model on demand not loaded raises `ColdModelError`. The caller, which submits a request,
catches it and has the request held with what to do then: look up again (`resume`), or answer with an error
(`refuse`). Both are called at most once, and none of them after `HeldRequest.cancel`. Held requests of a model are
resumed in their order, a few milliseconds at a time.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from naiad.core.environment.ports import Loop, TimerHandle
from naiad.core.errors import ErrorCode, InferError, Rejection, excerpt, unavailable
from naiad.core.model import ModelKey, name_of
from naiad.repository.control.on_demand.resident import Ask, LoadRefusal
from naiad.telemetry.statistics.model_statistics import ModelStatistics

_log = logging.getLogger(__name__)
_TURN_NS = 5_000_000
"""Resumed requests take at most about this long of one turn of the loop."""


class DemandedModels(Protocol):
    """The models on demand, as the engine asks for them."""

    on_settled: Callable[[str, InferError | None], object]

    def find(self, name: str) -> str | None:
        """Return the key of a model on demand."""

    def ask(self, key: str, *, is_urgent: bool = False) -> Ask | LoadRefusal:
        """Note a request for a model that is not loaded. Raises KeyError for one that is not on demand."""

    def is_answerable(self, key: str) -> bool:
        """Return whether a request for a model is answered or held."""

    def versions_of(self, key: str) -> Sequence[int]:
        """Return the versions that a load of a model brings."""

    def is_decoupled(self, key: str) -> bool:
        """Return whether a model is decoupled, as far as it is known."""

    def release(self, key: str) -> None:
        """Note that the requests that were held for a model are submitted."""


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """The bounds of held requests in this process."""

    count: int = 10_000
    count_of_model: int = 2_000
    size_bytes: int = 1 << 30
    size_bytes_of_model: int = 1 << 29
    hold_s: float = 60.0
    """How long a request waits at most."""


class ColdModelError(InferError):
    """A look-up has found a model on demand that is not loaded: the request is to be held.

    As an answer, where a request cannot be held, it says to send the request again.
    """

    def __init__(self, held: "HeldRequests", key: str) -> None:
        super().__init__(
            ErrorCode.UNAVAILABLE,
            f"model '{excerpt(name_of(key))}' is on demand and not loaded now; send the request again",
            rejection=Rejection.NOT_READY,
        )
        self.held = held
        self.key = key


class HeldRequest:
    """One request that waits."""

    __slots__ = ("_queue", "refuse", "resume", "size_bytes", "timer")

    def __init__(
        self, queue: "_Queue", size_bytes: int, resume: Callable[[], object], refuse: Callable[[InferError], object]
    ) -> None:
        self._queue = queue
        self.size_bytes = size_bytes
        self.resume = resume
        self.refuse = refuse
        self.timer: TimerHandle | None = None

    def cancel(self) -> bool:
        """Hold it no more: its client does not wait any longer. Return whether it was held."""
        return self._queue.remove(self)


class _Queue:
    """The held requests of one model, in order."""

    def __init__(self, held: "HeldRequests", key: str) -> None:
        self._held = held
        self.key = key
        self.requests: dict[HeldRequest, None] = {}
        self.size_bytes = 0

    def add(self, request: HeldRequest) -> None:
        self.requests[request] = None
        self.size_bytes += request.size_bytes
        self._held.count += 1
        self._held.size_bytes += request.size_bytes

    def remove(self, request: HeldRequest) -> bool:
        if request not in self.requests:
            return False
        del self.requests[request]
        self.size_bytes -= request.size_bytes
        self._held.count -= 1
        self._held.size_bytes -= request.size_bytes
        if request.timer is not None:
            request.timer.cancel()
        return True


class HeldRequests:
    """All held requests of this process."""

    def __init__(self, models: DemandedModels, loop: Loop, limits: HoldLimits) -> None:
        self._models = models
        self._loop = loop
        self._limits = limits
        self._queues: dict[str, _Queue] = {}
        self.count = 0
        self.size_bytes = 0
        self.total_count = 0
        """Requests that were held since the start."""
        self.rejected_count = 0
        """Requests that were not held, because there were too many."""
        models.on_settled = self._settle_soon

    def cold(self, name: str) -> ColdModelError | None:
        """Return the error of a look-up that has not found a model in the table; None if it is not on demand."""
        key = self._models.find(name)
        return None if key is None else ColdModelError(self, key)

    def knows(self, name: str) -> bool:
        """Return whether a model is on demand."""
        return self._models.find(name) is not None

    def new_counts(self, name: str) -> list[ModelStatistics]:
        """Return the counts of a model on demand that was never loaded."""
        key = self._models.find(name)
        namespace = key.namespace if isinstance(key, ModelKey) else ""
        versions = () if key is None else self._models.versions_of(key)
        return [ModelStatistics(name, str(version), namespace=namespace) for version in versions]

    def is_decoupled(self, name: str) -> bool:
        """Return whether a model on demand is decoupled, as far as it is known before it is loaded."""
        key = self._models.find(name)
        return key is not None and self._models.is_decoupled(key)

    def is_answerable(self, name: str) -> bool:
        """Return whether a request for a model on demand is answered or held."""
        key = self._models.find(name)
        return key is not None and self._models.is_answerable(key)

    def begin_load(self, cold: ColdModelError) -> None:
        """Begin to load a model, a request for which is about to arrive."""
        try:
            self._models.ask(cold.key)
        except KeyError:
            return  # The request itself gets the error.

    def hold(
        self,
        cold: ColdModelError,
        size_bytes: int,
        resume: Callable[[], object],
        refuse: Callable[[InferError], object],
        *,
        since_ns: int = 0,
        deadline_ns: int = 0,
        is_urgent: bool = False,
    ) -> HeldRequest:
        """Hold a request until its model is loaded.

        `since_ns`: monotonic time of its arrival, `deadline_ns` that of its own timeout; 0 for none. `is_urgent`: a
        running model waits for it. Raises InferError if it is not held: too many wait, or the load has just failed.
        """
        key = cold.key
        try:
            found = self._models.ask(key, is_urgent=is_urgent)
        except KeyError:
            found = Ask.READY  # it was pinned or unloaded between the look-up and now: the next look-up shows which
        if isinstance(found, LoadRefusal):
            following = f"; the next attempt is in {found.retry_in_s:.1f} s" if found.retry_in_s else ""
            raise unavailable((found.reason.rstrip(";") if following else found.reason) + following)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(self, key)
        self._check_room(queue, size_bytes)
        request = HeldRequest(queue, size_bytes, resume, refuse)
        queue.add(request)
        self.total_count += 1
        now_ns = time.monotonic_ns()
        until_ns = (since_ns or now_ns) + int(self._limits.hold_s * 1e9)
        if 0 < deadline_ns < until_ns:
            until_ns = deadline_ns
        wait_s = max(0.0, (until_ns - now_ns) / 1e9)
        request.timer = self._loop.call_later(wait_s, self._expire, request, name_of(key))
        if found is Ask.READY:
            # It was loaded between the look-up and now.
            self._loop.call_soon(self._settle, key, None)
        return request

    def _check_room(self, queue: _Queue, size_bytes: int) -> None:
        limits = self._limits
        name = excerpt(name_of(queue.key))
        if len(queue.requests) >= limits.count_of_model:
            self._reject(f"{limits.count_of_model} requests wait for model '{name}' (--max-held-requests-per-model)")
        if self.count >= limits.count:
            self._reject(f"{limits.count} requests wait for models to be loaded (--max-held-requests)")
        is_first = not queue.requests
        if queue.size_bytes + size_bytes > limits.size_bytes_of_model and not is_first:
            self._reject(f"the requests that wait for model '{name}' have {queue.size_bytes} bytes")
        if self.size_bytes + size_bytes > limits.size_bytes and self.count:
            self._reject(f"the requests that wait for models to be loaded have {self.size_bytes} bytes")

    def _reject(self, reason: str) -> None:
        self.rejected_count += 1
        raise unavailable(f"{reason}, which is the limit; send the request again later", Rejection.QUEUE_FULL)

    def _expire(self, request: HeldRequest, name: str) -> None:
        if request.cancel():
            text = f"the model '{excerpt(name)}' was not loaded within the timeout of the request"
            _call(partial(request.refuse, unavailable(text, Rejection.TIMEOUT)))

    # --- the end of loads -------------------------------------------------------------------------------------------

    def _settle_soon(self, key: str, failure: InferError | None) -> None:
        """Note the end of a load; called on its thread."""
        try:
            self._loop.call_soon_threadsafe(self._settle, key, failure)
        except RuntimeError:
            return  # the loop has ended

    def _settle(self, key: str, failure: InferError | None) -> None:
        """Resume or refuse the requests that are held now, some in this turn of the loop."""
        queue = self._queues.pop(key, None)
        self._continue(key, [] if queue is None else list(queue.requests), failure)

    def _continue(self, key: str, requests: list[HeldRequest], failure: InferError | None, begin: int = 0) -> None:
        until_ns = time.monotonic_ns() + _TURN_NS
        for index in range(begin, len(requests)):
            request = requests[index]
            if request.cancel():
                _call(request.resume if failure is None else partial(request.refuse, failure))
                if time.monotonic_ns() > until_ns:
                    self._loop.call_soon(self._continue, key, requests, failure, index + 1)
                    return
        self._models.release(key)

    def abort(self, reason: str) -> None:
        """Refuse all held requests: the server exits."""
        for queue in list(self._queues.values()):
            for request in list(queue.requests):
                if request.cancel():
                    _call(partial(request.refuse, unavailable(reason)))


def _call(callback: Callable[[], object]) -> None:
    """Call what belongs to one request: a defect fails that one, not those behind it."""
    try:
        callback()
    except Exception:
        _log.exception("a request that was held for its model failed")

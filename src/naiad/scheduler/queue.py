"""Queues of requests: FIFOs with removal, priority levels with their queue policies, and deadlines."""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from naiad.config.model_config_pb2 import ModelQueuePolicy
from naiad.core.errors import FailureReason, InferError, Rejection, request_prefix, unavailable
from naiad.core.request import InferRequest

_COMPACTION_SLACK = 64


class RequestQueue:
    """A FIFO with removal of any request in constant time.

    The `queue` attribute of a request names its queue. Removing a request from the middle only clears that attribute;
    the stale entry is dropped at the front, or when stale entries are the majority.
    """

    __slots__ = ("is_newest_first", "live_count", "overdue", "requests")

    def __init__(self, overdue: "RequestQueue | None" = None) -> None:
        self.requests: deque[InferRequest] = deque()
        """In order of arrival, stale entries included: requests with another `queue`."""
        self.live_count = 0
        self.is_newest_first = False
        """Whether the newest leave first, as under overload."""
        self.overdue = overdue
        """Queue of requests past their timeout; None when they are rejected."""

    def append(self, request: InferRequest) -> None:
        """Add a request at the end."""
        request.queue = self
        self.requests.append(request)
        self.live_count += 1

    def remove(self, request: InferRequest) -> None:
        """Remove a request of this queue, at any position."""
        request.queue = None
        self.live_count -= 1
        self.compact()

    def compact(self) -> None:
        """Drop the stale entries if they are the majority."""
        if not self.live_count:
            self.requests.clear()
        elif len(self.requests) > 2 * self.live_count + _COMPACTION_SLACK:
            self.requests = deque([waiting for waiting in self.requests if waiting.queue is self])

    def in_order(self) -> Iterable[InferRequest]:
        """Return the entries, stale ones included, in the order in which they leave."""
        return reversed(self.requests) if self.is_newest_first else self.requests

    def trim(self) -> None:
        """Drop the stale entries at the front, and at the end when requests leave there."""
        requests = self.requests
        while requests and requests[0].queue is not self:
            requests.popleft()
        if self.is_newest_first:
            while requests and requests[-1].queue is not self:
                requests.pop()

    def oldest_ns(self) -> int:
        """Return the arrival of the oldest queued request; 0 for an empty queue."""
        self.trim()
        return self.requests[0].arrival_ns if self.requests else 0

    def pop_oldest(self) -> InferRequest:
        """Remove and return the oldest request; the queue is not empty."""
        self.trim()
        request = self.requests.popleft()
        request.queue = None
        self.live_count -= 1
        return request

    def drain(self) -> list[InferRequest]:
        """Remove and return all requests, in order."""
        left = [request for request in self.requests if request.queue is self]
        for request in left:
            request.queue = None
        self.requests.clear()
        self.live_count = 0
        return left


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of the length of a level's queue and of the time in it."""

    max_queue_size: int = 0
    """Maximum length of the queue; 0 for any length."""
    timeout_ns: int = 0
    """Maximum time in the queue; 0 for no limit."""
    allows_override: bool = False
    """Whether a request may set a shorter timeout."""
    delays: bool = False
    """DELAY: a request that timed out waits behind the other requests of its level. Otherwise it is rejected."""

    @classmethod
    def from_config(cls, policy: ModelQueuePolicy) -> "QueueLimits":
        """Return the policy in the configuration."""
        return cls(
            max_queue_size=policy.max_queue_size,
            timeout_ns=policy.default_timeout_microseconds * 1000,
            allows_override=policy.allow_timeout_override,
            delays=policy.timeout_action == ModelQueuePolicy.DELAY,
        )

    def deadline_ns(self, request: InferRequest, now_ns: int) -> int:
        """Return the deadline of the request; 0 for none.

        Triton: a request's own timeout can only shorten a timeout in the configuration.
        """
        timeout_ns = self.timeout_ns
        if not timeout_ns:
            return 0
        if self.allows_override:
            own_ns = request.header.timeout_us * 1000
            if 0 < own_ns < timeout_ns:
                timeout_ns = own_ns
        return now_ns + timeout_ns


class PriorityLevel:
    """The queue of one priority level: first requests in time, then requests that timed out and were delayed.

    Under overload it is split: requests of work in progress leave before new requests, the newest of each first.
    Requests that must keep their order have a queue of their own, which alternates with the new ones.
    """

    __slots__ = ("_begun", "_is_split", "_kept", "delayed", "is_watched", "policy", "queues", "waiting")

    def __init__(self, policy: QueueLimits, *, is_watched: bool = False) -> None:
        """`is_watched`: overload changes the order and rejects requests; none of them is delayed."""
        self.policy = policy
        self.is_watched = is_watched
        self.delayed = RequestQueue()
        self.waiting = RequestQueue(overdue=self.delayed if policy.delays else None)
        self.queues: Sequence[RequestQueue] = (self.waiting, self.delayed) if policy.delays else (self.waiting,)
        """In the order in which requests leave."""
        self._begun: RequestQueue | None = None
        self._kept: RequestQueue | None = None
        self._is_split = False

    def check_room(self, request: InferRequest) -> None:
        """Raise InferError(UNAVAILABLE) when the queue is full."""
        limit = self.policy.max_queue_size
        if limit and self.waiting.live_count + self.delayed.live_count >= limit:
            raise full_queue_error(request)

    # --- overload -------------------------------------------------------------------------------------------------

    def split(self) -> None:
        """Let the newest requests leave first."""
        if not self.is_watched or self._is_split:
            return
        self._is_split = True
        self._begun, self._kept = RequestQueue(), RequestQueue()
        self.waiting.is_newest_first = self._begun.is_newest_first = True
        self.queues = (self._begun, self.waiting, self._kept)
        for request in self.waiting.drain():
            self.queue_for(request).append(request)

    def join(self) -> None:
        """Let requests leave in order of arrival again."""
        if not self._is_split:
            return
        left = self.drain()
        left.sort(key=lambda request: request.arrival_ns)
        self._is_split = self.waiting.is_newest_first = False
        self._begun = self._kept = None
        self.queues = (self.waiting,)
        for request in left:
            self.waiting.append(request)

    def queue_for(self, request: InferRequest) -> RequestQueue:
        """Return the queue for a request."""
        if self._begun is None or self._kept is None:
            return self.waiting
        if request.keeps_order:
            return self._kept
        return self._begun if request.has_begun else self.waiting

    def alternate(self) -> None:
        """Alternate between ordered requests and new ones."""
        if self._is_split:
            begun, first, second = self.queues
            self.queues = (begun, second, first)

    def drain(self) -> list[InferRequest]:
        """Remove and return all queued requests."""
        return [request for queue in self.queues for request in queue.drain()]

    def oldest_ns(self) -> int:
        """Return the arrival of the oldest queued request; 0 for empty queues."""
        return min((queue.oldest_ns() for queue in self.queues if queue.live_count), default=0)

    def pop_before(self, arrival_ns: int) -> list[InferRequest]:
        """Remove and return the requests of a watched level that arrived before a time."""
        popped = []
        for queue in self.queues if self.is_watched else ():
            while queue.live_count and queue.oldest_ns() < arrival_ns:
                popped.append(queue.pop_oldest())
        return popped

    def pop_oldest(self, count: int) -> list[InferRequest]:
        """Remove and return the `count` oldest requests of a watched level, new ones before work in progress."""
        popped: list[InferRequest] = []
        for queue in reversed(self.queues) if self.is_watched else ():
            while len(popped) < count and queue.live_count:
                popped.append(queue.pop_oldest())
        return popped


class Deadlines:
    """Deadlines of queued requests, nearest first.

    The heap holds only numbers, so a stale entry does not keep the data of its request alive; stale entries are
    skipped at the top, and swept when they are the majority.
    """

    __slots__ = ("_heap", "_waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._waiting: dict[int, tuple[int, InferRequest]] = {}

    def add(self, request: InferRequest, deadline_ns: int) -> None:
        """Add a request; it must be removed when it leaves its queue."""
        key = id(request)
        self._waiting[key] = (deadline_ns, request)
        heapq.heappush(self._heap, (deadline_ns, key))

    def remove(self, request: InferRequest) -> None:
        """Remove a request; no effect for a request without a deadline."""
        self._waiting.pop(id(request), None)
        if len(self._heap) > 2 * len(self._waiting) + _COMPACTION_SLACK:
            self._heap = [(deadline_ns, key) for key, (deadline_ns, _) in self._waiting.items()]
            heapq.heapify(self._heap)

    def nearest_ns(self) -> int:
        """Return the nearest deadline; 0 when no request has one."""
        heap = self._heap
        while heap:
            deadline_ns, key = heap[0]
            entry = self._waiting.get(key)
            if entry is not None and entry[0] == deadline_ns:
                return deadline_ns
            heapq.heappop(heap)
        return 0

    def pop_expired(self, now_ns: int) -> list[InferRequest]:
        """Remove and return the requests past their deadline, nearest first."""
        expired: list[InferRequest] = []
        while 0 < self.nearest_ns() <= now_ns:
            _, key = heapq.heappop(self._heap)
            expired.append(self._waiting.pop(key)[1])
        return expired

    def clear(self) -> None:
        """Remove all deadlines."""
        self._heap.clear()
        self._waiting.clear()


def oldest_ns(levels: Iterable[PriorityLevel]) -> int:
    """Return the arrival of the oldest request queued in any level; 0 for empty queues."""
    return min((level.oldest_ns() for level in levels if any(queue.live_count for queue in level.queues)), default=0)


def full_queue_error(request: InferRequest) -> InferError:
    """Return Triton's error for a request at a full queue."""
    return unavailable(f"{request_prefix(request.id)}Exceeds maximum queue size", Rejection.QUEUE_FULL)


def overload_error(request: InferRequest) -> InferError:
    """Return the same error for a queued request that must leave the queue."""
    error = full_queue_error(request)
    error.reason = FailureReason.REJECTED
    error.rejection = Rejection.OVERLOAD
    return error

"""Where requests wait: lanes, priority levels with their queue policies, and the deadlines of the waiting."""

import heapq
from collections import deque
from dataclasses import dataclass

from naiad.config.model_config_pb2 import ModelQueuePolicy
from naiad.core.errors import InferError, unavailable
from naiad.core.request import InferRequest

_COMPACTION_SLACK = 64


class Lane:
    """A FIFO of requests out of which any can be removed in constant time.

    A request waits in the lane that its `lane` names. Removing it from the middle only clears that name; the entry it
    leaves behind is stale and goes when it comes to the front, or when stale entries are the majority.
    """

    __slots__ = ("live_count", "overdue", "requests")

    def __init__(self, overdue: "Lane | None" = None) -> None:
        self.requests: deque[InferRequest] = deque()
        """In order of arrival, stale entries included: those whose `lane` is not this one."""
        self.live_count = 0
        self.overdue = overdue
        """Where requests go whose time is over; None when they are rejected."""

    def append(self, request: InferRequest) -> None:
        """Add a request at the end."""
        request.lane = self
        self.requests.append(request)
        self.live_count += 1

    def remove(self, request: InferRequest) -> None:
        """Remove a request that waits here, wherever it stands."""
        request.lane = None
        self.live_count -= 1
        self.compact()

    def compact(self) -> None:
        """Forget the stale entries where they are the majority."""
        if not self.live_count:
            self.requests.clear()
        elif len(self.requests) > 2 * self.live_count + _COMPACTION_SLACK:
            self.requests = deque([waiting for waiting in self.requests if waiting.lane is self])

    def trim(self) -> None:
        """Forget the stale entries at the front."""
        requests = self.requests
        while requests and requests[0].lane is not self:
            requests.popleft()

    def drain(self) -> list[InferRequest]:
        """Remove and return all that wait here, in order."""
        left = [request for request in self.requests if request.lane is self]
        for request in left:
            request.lane = None
        self.requests.clear()
        self.live_count = 0
        return left


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How long the queue of a level may grow and its requests may wait."""

    max_queue_size: int = 0
    """Requests that may wait; 0 for any number."""
    timeout_ns: int = 0
    """How long a request may wait; 0 for ever."""
    allows_override: bool = False
    """Whether a request may ask for a shorter timeout."""
    delays: bool = False
    """DELAY: a request that timed out waits on, behind the others of its level. Otherwise it is rejected."""

    @classmethod
    def from_config(cls, policy: ModelQueuePolicy) -> "QueuePolicy":
        """Return the policy that the configuration describes."""
        return cls(
            max_queue_size=policy.max_queue_size,
            timeout_ns=policy.default_timeout_microseconds * 1000,
            allows_override=policy.allow_timeout_override,
            delays=policy.timeout_action == ModelQueuePolicy.DELAY,
        )

    def deadline_ns(self, request: InferRequest, now_ns: int) -> int:
        """Return until when the request may wait; 0 for ever.

        Triton: a request's own timeout can only shorten a timeout that the configuration sets.
        """
        timeout_ns = self.timeout_ns
        if not timeout_ns:
            return 0
        if self.allows_override:
            own_ns = request.header.timeout_us * 1000
            if 0 < own_ns < timeout_ns:
                timeout_ns = own_ns
        return now_ns + timeout_ns


class Level:
    """The queue of one priority level: first those in time, then those that timed out and were delayed."""

    __slots__ = ("delayed", "policy", "waiting")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.delayed = Lane()
        self.waiting = Lane(overdue=self.delayed if policy.delays else None)

    def check_room(self, request: InferRequest) -> None:
        """Raise InferError(UNAVAILABLE) when the queue is full."""
        limit = self.policy.max_queue_size
        if limit and self.waiting.live_count + self.delayed.live_count >= limit:
            raise queue_full(request)


class Deadlines:
    """Until when requests may wait, nearest first.

    The heap holds numbers only, so that an entry whose request has long left does not keep its data alive; such
    entries are skipped when they surface, and swept when they are the majority.
    """

    __slots__ = ("_heap", "_waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._waiting: dict[int, tuple[int, InferRequest]] = {}

    def add(self, request: InferRequest, deadline_ns: int) -> None:
        """Watch a request; it must be removed when it leaves."""
        key = id(request)
        self._waiting[key] = (deadline_ns, request)
        heapq.heappush(self._heap, (deadline_ns, key))

    def remove(self, request: InferRequest) -> None:
        """Watch a request no longer; harmless for one that is not watched."""
        self._waiting.pop(id(request), None)
        if len(self._heap) > 2 * len(self._waiting) + _COMPACTION_SLACK:
            self._heap = [(deadline_ns, key) for key, (deadline_ns, _) in self._waiting.items()]
            heapq.heapify(self._heap)

    def nearest_ns(self) -> int:
        """Return the nearest deadline, 0 when no request has one."""
        heap = self._heap
        while heap:
            deadline_ns, key = heap[0]
            entry = self._waiting.get(key)
            if entry is not None and entry[0] == deadline_ns:
                return deadline_ns
            heapq.heappop(heap)
        return 0

    def pop_expired(self, now_ns: int) -> list[InferRequest]:
        """Remove and return the requests whose deadline has come, nearest first."""
        expired: list[InferRequest] = []
        while 0 < self.nearest_ns() <= now_ns:
            _, key = heapq.heappop(self._heap)
            expired.append(self._waiting.pop(key)[1])
        return expired

    def clear(self) -> None:
        """Watch nothing any more."""
        self._heap.clear()
        self._waiting.clear()


def queue_full(request: InferRequest) -> InferError:
    """Return Triton's answer to a request that finds its queue full."""
    return unavailable(f"[request id: {request.id or '<id_unknown>'}] Exceeds maximum queue size")

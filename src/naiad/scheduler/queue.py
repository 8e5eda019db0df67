"""Where requests wait: lanes, priority levels with their queue policies, and the deadlines of the waiting."""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from naiad.config.model_config_pb2 import ModelQueuePolicy
from naiad.core.errors import FailureReason, InferError, excerpt, unavailable
from naiad.core.request import InferRequest

_COMPACTION_SLACK = 64


class RequestQueue:
    """A FIFO of requests out of which any can be removed in constant time.

    A request waits in the lane that its `lane` names. Removing it from the middle only clears that name; the entry it
    leaves behind is stale and goes when it comes to the front, or when stale entries are the majority.
    """

    __slots__ = ("is_newest_first", "live_count", "overdue", "requests")

    def __init__(self, overdue: "RequestQueue | None" = None) -> None:
        self.requests: deque[InferRequest] = deque()
        """In order of arrival, stale entries included: those whose `lane` is not this one."""
        self.live_count = 0
        self.is_newest_first = False
        """Whether the newest leave first, as under overload."""
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

    def in_order(self) -> Iterable[InferRequest]:
        """Return the entries, stale ones included, in the order in which they leave."""
        return reversed(self.requests) if self.is_newest_first else self.requests

    def trim(self) -> None:
        """Forget the stale entries at the front, and at the end when requests leave there."""
        requests = self.requests
        while requests and requests[0].lane is not self:
            requests.popleft()
        if self.is_newest_first:
            while requests and requests[-1].lane is not self:
                requests.pop()

    def oldest_ns(self) -> int:
        """Return the arrival of the oldest request that waits here; 0 when none does."""
        self.trim()
        return self.requests[0].arrival_ns if self.requests else 0

    def pop_oldest(self) -> InferRequest:
        """Remove and return the oldest request, of which there is one."""
        self.trim()
        request = self.requests.popleft()
        request.lane = None
        self.live_count -= 1
        return request

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


class PriorityLevel:
    """The queue of one priority level: first those in time, then those that timed out and were delayed.

    Under overload it is split: what belongs to work that has begun leaves before what is new, the newest of each
    first, and requests that must keep their order have a lane of their own, which takes turns with the new ones.
    """

    __slots__ = ("_begun", "_is_split", "_kept", "delayed", "is_watched", "lanes", "policy", "waiting")

    def __init__(self, policy: QueuePolicy, *, is_watched: bool = False) -> None:
        """`is_watched`: overload changes the order of its requests and has some refused; none of them is delayed."""
        self.policy = policy
        self.is_watched = is_watched
        self.delayed = RequestQueue()
        self.waiting = RequestQueue(overdue=self.delayed if policy.delays else None)
        self.lanes: Sequence[RequestQueue] = (self.waiting, self.delayed) if policy.delays else (self.waiting,)
        """In the order in which requests leave."""
        self._begun: RequestQueue | None = None
        self._kept: RequestQueue | None = None
        self._is_split = False

    def check_room(self, request: InferRequest) -> None:
        """Raise InferError(UNAVAILABLE) when the queue is full."""
        limit = self.policy.max_queue_size
        if limit and self.waiting.live_count + self.delayed.live_count >= limit:
            raise queue_full(request)

    # --- overload -------------------------------------------------------------------------------------------------

    def split(self) -> None:
        """Have the newest leave first."""
        if not self.is_watched or self._is_split:
            return
        self._is_split = True
        self._begun, self._kept = RequestQueue(), RequestQueue()
        self.waiting.is_newest_first = self._begun.is_newest_first = True
        self.lanes = (self._begun, self.waiting, self._kept)
        for request in self.waiting.drain():
            self.lane_for(request).append(request)

    def join(self) -> None:
        """Have them leave in order of arrival again."""
        if not self._is_split:
            return
        left = self.drain()
        left.sort(key=lambda request: request.arrival_ns)
        self._is_split = self.waiting.is_newest_first = False
        self._begun = self._kept = None
        self.lanes = (self.waiting,)
        for request in left:
            self.waiting.append(request)

    def lane_for(self, request: InferRequest) -> RequestQueue:
        """Return where a request is to wait."""
        if self._begun is None or self._kept is None:
            return self.waiting
        if request.keeps_order:
            return self._kept
        return self._begun if request.has_begun else self.waiting

    def alternate(self) -> None:
        """Let those that keep their order take turns with the new ones."""
        if self._is_split:
            begun, first, second = self.lanes
            self.lanes = (begun, second, first)

    def drain(self) -> list[InferRequest]:
        """Remove and return all that wait here."""
        return [request for lane in self.lanes for request in lane.drain()]

    def oldest_ns(self) -> int:
        """Return the arrival of the oldest request that waits here; 0 when none does."""
        return min((lane.oldest_ns() for lane in self.lanes if lane.live_count), default=0)

    def pop_before(self, arrival_ns: int) -> list[InferRequest]:
        """Remove and return the requests of a watched level that came before a time."""
        popped = []
        for lane in self.lanes if self.is_watched else ():
            while lane.live_count and lane.oldest_ns() < arrival_ns:
                popped.append(lane.pop_oldest())
        return popped

    def pop_oldest(self, count: int) -> list[InferRequest]:
        """Remove and return so many requests of a watched level, the oldest, new ones before what has begun."""
        popped: list[InferRequest] = []
        for lane in reversed(self.lanes) if self.is_watched else ():
            while len(popped) < count and lane.live_count:
                popped.append(lane.pop_oldest())
        return popped


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


def oldest_ns(levels: Iterable[PriorityLevel]) -> int:
    """Return the arrival of the oldest request that waits in any level; 0 when none does."""
    return min((level.oldest_ns() for level in levels if any(lane.live_count for lane in level.lanes)), default=0)


def queue_full(request: InferRequest) -> InferError:
    """Return Triton's answer to a request that finds its queue full."""
    return unavailable(f"[request id: {excerpt(request.id) or '<id_unknown>'}] Exceeds maximum queue size")


def refused(request: InferRequest) -> InferError:
    """Return the same for a request that has waited and must leave the queue."""
    error = queue_full(request)
    error.reason = FailureReason.REJECTED
    return error

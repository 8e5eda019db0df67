"""A scheduler under overload, simulated: open loops whose clients wait or give up, bursts and closed loops."""

import functools
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from naiad.core.request import InferRequest
from naiad.scheduler.api import Scheduler
from support.scheduling import waiting_request

SECOND = 1_000_000_000


@dataclass
class Outcome:
    """What became of each request, by its arrival."""

    arrived_ns: dict[InferRequest, int] = field(default_factory=dict)
    answered_ns: dict[InferRequest, int] = field(default_factory=dict)
    refused_ns: dict[InferRequest, int] = field(default_factory=dict)
    abandoned_ns: dict[InferRequest, int] = field(default_factory=dict)
    order: list[InferRequest] = field(default_factory=list)
    """In the order in which they executed."""

    def latencies_ns(self, begin_ns: int, end_ns: int) -> list[int]:
        """Return the latencies of the requests that came between two times and were answered, ascending."""
        arrivals = self.arrived_ns
        return sorted(
            answered - arrivals[request]
            for request, answered in self.answered_ns.items()
            if begin_ns <= arrivals[request] < end_ns
        )

    def goodput(self, begin_ns: int, end_ns: int, patience_ns: int = SECOND) -> int:
        """Return how many of the requests that came between two times were answered in time."""
        return sum(latency <= patience_ns for latency in self.latencies_ns(begin_ns, end_ns))


class OverloadSimulation:
    """Instances that execute batches of a scheduler, in `duration_ns(rows)` each."""

    def __init__(
        self,
        scheduler: Scheduler,
        duration_ns: Callable[[int], int],
        *,
        instance_count: int = 1,
        patience_ns: int = 0,
        make_request: Callable[[int], InferRequest] = lambda now_ns: waiting_request(at_ns=now_ns),
    ) -> None:
        """Clients give up after `patience_ns`; with 0 they wait."""
        self.scheduler = scheduler
        self.now_ns = SECOND
        self.outcome = Outcome()
        self._duration_ns = duration_ns
        self._patience_ns = patience_ns
        self._make_request = make_request
        self._free = list(range(instance_count))
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.on_end: Callable[[InferRequest], None] = lambda request: None
        """Called for every request that was answered or refused."""

    def at(self, time_ns: int, action: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._events, (time_ns, next(self._numbers), action))

    def arrive(self, time_ns: int) -> None:
        """Have a request come at a time."""
        self.at(time_ns, self._enqueue)

    def arrive_now(self) -> None:
        """Have a request come at once."""
        self._enqueue()

    def run(self) -> Outcome:
        """Simulate until nothing happens any more."""
        while self._events:
            time_ns, _, action = heapq.heappop(self._events)
            self.now_ns = max(self.now_ns, time_ns)
            action()
            self._take()
        return self.outcome

    def _enqueue(self) -> None:
        request = self._make_request(self.now_ns)
        self.outcome.arrived_ns[request] = self.now_ns
        self.scheduler.enqueue(request, self.now_ns)
        if self._patience_ns:
            self.at(self.now_ns + self._patience_ns, lambda: self._abort(request))

    def _abort(self, request: InferRequest) -> None:
        if self.scheduler.cancel(request):
            self.outcome.abandoned_ns[request] = self.now_ns

    def _take(self) -> None:
        while self._free:
            batch = self.scheduler.take(self.now_ns, self._free[-1])
            for request, error in self.scheduler.pop_dropped():
                assert "Exceeds maximum queue size" in error.message
                self.outcome.refused_ns[request] = self.now_ns
                self.on_end(request)
            if batch is None:
                return
            instance, requests = self._free.pop(), batch.requests
            self.outcome.order.extend(requests)
            self.at(self.now_ns + self._duration_ns(batch.size), functools.partial(self._end, instance, requests))

    def _end(self, instance: int, requests: Sequence[InferRequest]) -> None:
        self._free.append(instance)
        for request in requests:
            assert request not in self.outcome.answered_ns
            self.outcome.answered_ns[request] = self.now_ns
            self.on_end(request)

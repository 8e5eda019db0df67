"""A scheduler under overload, simulated: open loops whose clients wait or give up, bursts and closed loops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from naiad.core.batch import Batch
from naiad.core.request import InferRequest
from naiad.scheduler.api import Dropped, Scheduler
from naiad.tools.analyze.simulation.station import Station
from naiad.tools.analyze.simulation.timeline import Timeline
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
        self.outcome = Outcome()
        self._duration_ns = duration_ns
        self._patience_ns = patience_ns
        self._make_request = make_request
        self._timeline = Timeline(now_ns=SECOND)
        self._station = Station(
            self._timeline,
            scheduler,
            self._begin,
            instance_count=instance_count,
            on_end=self._end,
            on_drop=self._refuse,
        )
        self.on_end: Callable[[InferRequest], None] = lambda request: None
        """Called for every request that was answered or refused."""

    @property
    def now_ns(self) -> int:
        return self._timeline.now_ns

    def at(self, time_ns: int, action: Callable[[], None]) -> None:
        """Do something at a time."""
        self._timeline.at(time_ns, action)

    def arrive(self, time_ns: int) -> None:
        """Have a request come at a time."""
        self.at(time_ns, self.arrive_now)

    def arrive_now(self) -> None:
        """Have a request come at once."""
        request = self._make_request(self.now_ns)
        self.outcome.arrived_ns[request] = self.now_ns
        self._station.enqueue(request)
        if self._patience_ns:
            self.at(self.now_ns + self._patience_ns, lambda: self._abort(request))

    def run(self) -> Outcome:
        """Simulate until nothing happens any more."""
        self._timeline.run()
        return self.outcome

    def _abort(self, request: InferRequest) -> None:
        if self.scheduler.cancel(request):
            self.outcome.abandoned_ns[request] = self.now_ns

    def _begin(self, batch: Batch) -> int:
        self.outcome.order.extend(batch.requests)
        return self._duration_ns(batch.size)

    def _refuse(self, dropped: Sequence[Dropped]) -> None:
        for request, error in dropped:
            assert "Exceeds maximum queue size" in error.message
            self.outcome.refused_ns[request] = self.now_ns
            self.on_end(request)

    def _end(self, batch: Batch) -> None:
        for request in batch.requests:
            assert request not in self.outcome.answered_ns
            self.outcome.answered_ns[request] = self.now_ns
            self.on_end(request)

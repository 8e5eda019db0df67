"""A scheduler under open-loop load, simulated: arrivals, instances and their device, no clock and no thread."""

import functools
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from naiad.core.batch import Batch
from naiad.scheduler.api import Scheduler
from naiad.tools.analyze.simulation.station import Station
from naiad.tools.analyze.simulation.timeline import Timeline
from support.scheduling import waiting_request


class Device(NamedTuple):
    """What executes batches."""

    duration_ns: Callable[[int], int]
    """Rows to nanoseconds, when the batch is alone."""
    instance_count: int = 1
    parallel: int = 1
    """How many batches it executes at full speed at the same time; more of them share it."""


class Outcome(NamedTuple):
    latencies_ns: Sequence[int]
    batches: Sequence[Batch]
    end_ns: int

    def percentile_ns(self, share: float) -> int:
        ascending = sorted(self.latencies_ns)
        return ascending[min(len(ascending) - 1, int(share * len(ascending)))]

    @property
    def mean_ns(self) -> float:
        return sum(self.latencies_ns) / len(self.latencies_ns)

    @property
    def mean_rows(self) -> float:
        return sum(batch.size for batch in self.batches) / len(self.batches)


def poisson(rate_per_s: float, count: int, seed: int = 1) -> list[int]:
    """Return the arrival times of a Poisson process, the same for the same seed."""
    rng = random.Random(seed)
    now, times = 1_000.0, []
    for _ in range(count):
        now += rng.expovariate(rate_per_s) * 1e9
        times.append(int(now))
    return times


class Simulation:
    """Feeds arrivals to a scheduler as a served model would, and reports every execution to it."""

    def __init__(self, scheduler: Scheduler, device: Device, now_ns: int = 0) -> None:
        self.scheduler = scheduler
        self.timeline = Timeline(device.parallel, now_ns)
        self.station = Station(
            self.timeline,
            scheduler,
            lambda batch: device.duration_ns(batch.size),
            instance_count=device.instance_count,
            on_end=self._end,
        )
        self.latencies_ns: list[int] = []
        self.batches: list[Batch] = []
        self.on_done: Callable[[Batch], Sequence[int]] = lambda batch: ()
        """Returns the times at which requests come because a batch was answered."""

    @property
    def now_ns(self) -> int:
        return self.timeline.now_ns

    def run(self, arrivals_ns: Sequence[int]) -> Outcome:
        """Simulate until everything that came has been executed."""
        self._schedule(arrivals_ns)
        self.timeline.run()
        return Outcome(self.latencies_ns, self.batches, self.now_ns)

    def _schedule(self, arrivals_ns: Sequence[int]) -> None:
        for time_ns in arrivals_ns:
            self.timeline.at(time_ns, functools.partial(self._arrive, time_ns))

    def _arrive(self, arrival_ns: int) -> None:
        self.station.enqueue(waiting_request(at_ns=arrival_ns))

    def _end(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.latencies_ns += [self.now_ns - request.arrival_ns for request in batch.requests]
        self._schedule(self.on_done(batch))

"""A scheduler under open-loop load, simulated: arrivals, instances and their device, no clock and no thread."""

import heapq
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from naiad.core.batch import Batch
from naiad.scheduler.api import Scheduler
from support.scheduling import waiting_request

_NEVER = 1 << 62


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
    """Feeds arrivals to a scheduler as a served model would, and tells it of every execution."""

    def __init__(self, scheduler: Scheduler, device: Device) -> None:
        self.scheduler = scheduler
        self.device = device
        self.now_ns = 0
        self._idle: dict[int, int] = {}
        """Free instances and when they look again."""
        self._running: dict[int, tuple[Batch, float]] = {}
        """Busy instances, their batch and the work left of it."""
        self.latencies_ns: list[int] = []
        self.batches: list[Batch] = []
        self.on_done: Callable[[Batch], Sequence[int]] = lambda batch: ()
        """Returns the times at which requests come because a batch was answered."""

    def run(self, arrivals_ns: Sequence[int]) -> Outcome:
        """Simulate until everything that came has been executed."""
        upcoming = list(arrivals_ns)
        heapq.heapify(upcoming)
        for instance in range(self.device.instance_count):
            self._take(instance)
        while True:
            end_ns, ending = self._next_end()
            wake_ns, waking = self._next_wake()
            arrival_ns = upcoming[0] if upcoming else _NEVER
            then_ns = max(self.now_ns, min(end_ns, wake_ns, arrival_ns))
            if then_ns >= _NEVER:
                return Outcome(self.latencies_ns, self.batches, self.now_ns)
            self._pass(then_ns - self.now_ns)
            self.now_ns = then_ns
            if end_ns <= min(wake_ns, arrival_ns):
                for time_ns in self._end(ending):
                    heapq.heappush(upcoming, time_ns)
            elif arrival_ns <= wake_ns:
                self._arrive(heapq.heappop(upcoming))
            else:
                self._take(waking)

    def _pass(self, ns: int) -> None:
        speed = self._speed()
        for instance, (batch, left) in self._running.items():
            self._running[instance] = batch, left - ns * speed

    def _speed(self) -> float:
        return min(1.0, self.device.parallel / max(1, len(self._running)))

    def _next_end(self) -> tuple[int, int]:
        ends = [
            (self.now_ns + max(0, round(left / self._speed())), instance)
            for instance, (_, left) in self._running.items()
        ]
        return min(ends, default=(_NEVER, 0))

    def _next_wake(self) -> tuple[int, int]:
        wakes = [(max(wake_ns, self.now_ns), instance) for instance, wake_ns in self._idle.items() if wake_ns]
        wake_up_ns = self.scheduler.wake_up_ns
        if wake_up_ns and self._idle:
            wakes.append((max(wake_up_ns, self.now_ns), next(reversed(self._idle))))
        return min(wakes, default=(_NEVER, 0))

    def _arrive(self, arrival_ns: int) -> None:
        request = waiting_request(at_ns=arrival_ns)
        if self.scheduler.enqueue(request, self.now_ns) and self._idle:
            self._take(next(reversed(self._idle)))

    def _take(self, instance: int) -> None:
        self._idle.pop(instance, None)
        batch = self.scheduler.take(self.now_ns, instance)
        if batch is None:
            self._idle[instance] = self.scheduler.wake_ns(instance)
            return
        batch.exec_start_ns = self.now_ns
        self._running[instance] = batch, float(self.device.duration_ns(batch.size))
        if self._idle and self.scheduler.pending_count:
            self._take(next(reversed(self._idle)))

    def _end(self, instance: int) -> Sequence[int]:
        batch, _ = self._running.pop(instance)
        batch.exec_end_ns = self.now_ns
        self.batches.append(batch)
        self.latencies_ns += [self.now_ns - request.arrival_ns for request in batch.requests]
        if self.scheduler.learns:
            self.scheduler.record_execution(batch)
        more = self.on_done(batch)
        self._take(instance)
        return more

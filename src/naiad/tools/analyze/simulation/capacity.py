"""How much machine a rate needs: cores, server processes and machines, from fitted costs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from naiad.tools.analyze.simulation.fitted import Fitted
from naiad.tools.analyze.simulation.simulated_system import SimulatedLoad, System, simulate
from naiad.tools.analyze.space import Point

_LOAD_SHARE = 0.95
"""The highest rate, as a share of the throughput of a long queue: beyond it the queue has no steady length."""
_LONGEST_QUEUE = 1000
_MOST_MACHINES = 1024


@dataclass(frozen=True, slots=True)
class Capacity:
    """The smallest system that is expected to serve a rate within the limit."""

    machines: int
    cores: int
    """Of each machine."""
    processes: int
    """Server processes on each machine."""
    instances: Mapping[str, int]
    """By model, in each process."""
    rate_per_s: float
    """Of each machine."""
    expected_us: float
    """The latency at the percentile."""
    cpu_cores: float
    """Busy cores on each machine."""
    doubts: Sequence[str] = ()


def capacity(
    fitted: Fitted,
    point: Point,
    goal_rate: float,
    latency_limit_us: float,
    percentile: int = 99,
    *,
    machine_cores: int = 64,
) -> Capacity | None:
    """Return the least that serves `goal_rate` requests/s of Poisson arrivals within a latency limit.

    The models have the configuration of `point`, with as many instances as the cores carry. None when no number of
    machines is enough, as when a request alone takes longer than the limit. Load generators have cores of their own.
    Raises ValueError as `predict` does, and for a rate or limit that is not positive.
    """
    if goal_rate <= 0 or latency_limit_us <= 0:
        raise ValueError(f"rate {goal_rate:g} and latency limit {latency_limit_us:g} us must be above 0")
    search = _Search(fitted, point, latency_limit_us, percentile)
    if search.best(machine_cores, goal_rate / _MOST_MACHINES) is None:
        return None
    machines = 1
    while search.best(machine_cores, goal_rate / machines) is None:
        machines *= 2
    fewer = _first_of(machines // 2 + 1, machines, lambda count: search.best(machine_cores, goal_rate / count))
    machines = fewer[0] if fewer else machines
    rate_per_s = goal_rate / machines
    found = _first_of(1, machine_cores, lambda cores: search.best(cores, rate_per_s))
    return replace(found[1], machines=machines) if found else None


def _first_of(low: int, high: int, of: Callable[[int], Capacity | None]) -> tuple[int, Capacity] | None:
    """Return the least number with a result, which all larger ones have, too."""
    result = None
    while low <= high:
        middle = (low + high) // 2
        found = of(middle)
        if found is None:
            low = middle + 1
        else:
            result, high = (middle, found), middle - 1
    return result


class _Search:
    def __init__(self, fitted: Fitted, point: Point, limit_us: float, percentile: int) -> None:
        self._fitted, self._limit_us, self._percentile = fitted, limit_us, percentile
        system, self._doubts = fitted.system(point)
        routes = [replace(each, cost=replace(each.cost, client_ns=0.0)) for each in system.routes]
        self._system = replace(system, routes=routes)
        self._throughputs: dict[tuple[int, int], float] = {}
        """Of a long queue, by cores and processes."""

    def best(self, cores: int, rate_per_s: float) -> Capacity | None:
        """Return the fewest processes with which cores serve a rate; None if they do not."""
        processes = 1
        while processes <= cores:
            found = self._try(cores, processes, rate_per_s)
            if found is not None:
                return found
            processes *= 2
        return None

    def _try(self, cores: int, processes: int, rate_per_s: float) -> Capacity | None:
        system = self._scaled(cores, processes)
        if rate_per_s > _LOAD_SHARE * self._saturated(cores, processes):
            return None
        simulated = simulate(system, SimulatedLoad(rate_per_s=rate_per_s, is_poisson=True))
        latency_us = self._fitted.latency_us(simulated, self._percentile)
        if latency_us > self._limit_us:
            return None
        return Capacity(
            machines=1,
            cores=cores,
            processes=processes,
            instances={name: served.instance_count for name, served in system.models.items()},
            rate_per_s=rate_per_s,
            expected_us=latency_us,
            cpu_cores=simulated.cpu_cores * self._fitted.cpu_factor,
            doubts=self._doubts,
        )

    def _scaled(self, cores: int, processes: int) -> System:
        models = {
            name: replace(served, instance_count=math.ceil(cores / processes / served.threads))
            for name, served in self._system.models.items()
        }
        return replace(self._system, models=models, cores=cores, processes=processes)

    def _saturated(self, cores: int, processes: int) -> float:
        """Return the throughput of a long queue."""
        known = self._throughputs.get((cores, processes))
        if known is None:
            system = self._scaled(cores, processes)
            rows = sum(each.instance_count * max(1, each.config.max_batch_size) for each in system.models.values())
            load = SimulatedLoad(concurrency=min(_LONGEST_QUEUE, 2 * processes * rows))
            known = self._throughputs[cores, processes] = simulate(system, load).throughput
        return known

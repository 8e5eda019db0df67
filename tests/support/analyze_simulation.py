"""Searches without a server: an instrument that measures an analytic model with noise, and a biased predictor.

The model is a closed loop of a server whose instances share cores. A batch of n takes (a + b n) ms of an idle core;
batches grow with the load; latency follows from the throughput (Little's law).
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from naiad.tools.analyze.goal import Bound, Goal
from naiad.tools.analyze.point_measurement import Measured, Prediction, Ranking, ServerLostError
from naiad.tools.analyze.search.configurations import number
from naiad.tools.analyze.search.search_settings import SearchSettings
from naiad.tools.analyze.space import Dimension, Point, Space, Variant
from naiad.tools.measure.result import ClientFigures, GeneratorFigures, Interval, Latency, Row, ServerFigures

CONFIGURED: Mapping[str, Any] = {"max_batch_size": 1, "instance_group.count": 1, "dynamic_batching.delay": 0}
DELAY = "dynamic_batching.delay"


@dataclass(frozen=True)
class Costs:
    """What a model costs."""

    fixed_ms: float
    row_ms: float
    cores: float = 2.0
    contention: float = 0.05
    """Slowdown for each other instance, beyond the sharing of cores."""
    overhead_ms: float = 0.3
    """Of a request, outside batches."""
    knee: float = 0.0
    """Growth of the row's cost with the batch, as caches overflow."""
    memory_mb: float = 50.0


MODELS = {
    "convolutional network": Costs(2.0, 6.0, contention=0.1, knee=0.002),
    "language model": Costs(4.0, 1.2, contention=0.15, knee=0.004),
    "trees": Costs(0.4, 0.02, contention=0.3, overhead_ms=0.15),
    "python": Costs(1.5, 0.5, contention=0.02),
    "pipeline": Costs(8.0, 2.5, cores=1.5, contention=0.2),
}


@dataclass(frozen=True)
class Figures:
    """Of a point, without noise."""

    throughput: float
    p50_ms: float
    p99_ms: float
    batch: float
    work_ms: float
    memory_mb: float


def figures(costs: Costs, point: Point) -> Figures:
    """Return what a model gives at a point."""
    settings = SearchSettings(configured={point.variants[0].model: CONFIGURED})
    largest = number(point.variants[0], "max_batch_size", settings)
    instances = number(point.variants[0], "instance_group.count", settings)
    delay_ms = number(point.variants[0], DELAY, settings, 0) / 1e3
    load = max(1, point.concurrency)
    busy = min(instances, load)
    batch = min(float(largest), max(1.0, load / busy))
    if delay_ms and batch < largest:
        batch = min(float(largest), batch * 1.1, float(load))
    work_ms = costs.fixed_ms + costs.row_ms * batch * (1 + costs.knee * batch)
    work_ms *= max(1.0, busy / costs.cores) * (1 + costs.contention * (busy - 1))
    capacity = busy * batch / (work_ms + (delay_ms if batch < largest else 0.0))
    throughput = 1e3 * min(capacity, load / (work_ms + costs.overhead_ms + delay_ms))
    latency_ms = load / throughput * 1e3
    return Figures(
        throughput, latency_ms * 0.97, latency_ms * 1.25, batch, work_ms, costs.memory_mb * instances + largest * 0.5
    )


@dataclass
class SimulatedInstrument:
    """Measures points of an analytic model, with noise from a seed."""

    costs: Costs
    seed: int = 0
    noise: float = 0.015
    """Standard deviation between two measurements, as a share."""
    fails: Callable[[Point], str] = lambda point: ""
    dies_after: int = 0
    cancels_after: int = 0
    drift_per_measurement: float = 0.0
    speed: Callable[[Point, int], float] = lambda point, number: 1.0
    """What the throughput of a measurement is multiplied by; `number` counts the measurements of the point from 1."""
    tail: Callable[[Point, int], float] = lambda point, number: 1.0
    """What its p99 is multiplied by."""
    points: list[Point] = field(default_factory=list)
    restored: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    async def measure(self, point: Point, seconds: float) -> Measured:
        """Return the figures of a point, as if it had been under load."""
        if self.dies_after and len(self.points) >= self.dies_after:
            raise ServerLostError("connection refused")
        if self.cancels_after and len(self.points) >= self.cancels_after:
            raise asyncio.CancelledError
        self.points.append(point)
        error = self.fails(point)
        if error:
            return Measured(point, error=error, duration_s=0.1)
        true = figures(self.costs, point)
        speed = self._random.gauss(1.0, self.noise) * (1 + self.drift_per_measurement) ** len(self.points)
        tail = self._random.gauss(1.0, self.noise)
        number = self.points.count(point)
        speed, tail = speed * self.speed(point, number), tail * self.tail(point, number)
        model = point.variants[0].model
        throughput = self._interval(true.throughput * speed)
        p50, p99 = self._interval(true.p50_ms / speed), self._interval(true.p99_ms / speed * tail)
        metrics = {
            "perf_throughput": throughput,
            "perf_latency_avg": p50,
            "perf_latency_p50": p50,
            "perf_latency_p99": p99,
            "cpu_used_ram": Interval(true.memory_mb, true.memory_mb, true.memory_mb),
        }
        return Measured(point, {model: _row(point, throughput, p50, p99, true)}, {model: metrics}, duration_s=seconds)

    async def restore(self) -> None:
        """Count the call."""
        self.restored += 1

    def _interval(self, value: float) -> Interval:
        half = 1.96 * self.noise * value
        return Interval(value, value - half, value + half)


def _row(point: Point, throughput: Interval, p50: Interval, p99: Interval, true: Figures) -> Row:
    def us(interval: Interval) -> Interval:
        return Interval(interval.value * 1e3, interval.low * 1e3, interval.high * 1e3)

    latency = Latency(us(p50), 1.0, 1.0, p99.value * 1200, {50: us(p50), 99: us(p99)})
    count = round(throughput.value)
    queue_us = max(0.0, (true.p50_ms - true.work_ms) * 1e3)
    model = point.variants[0].model
    server = ServerFigures(
        model, "1", count, round(count / true.batch), count, 0, queue_us, 5.0, true.work_ms * 1e3, 4.0
    )
    return Row(
        "concurrency", float(point.concurrency), model, 1, 1.0, count, throughput, throughput, throughput.value, 0.0,
        latency, latency, None, None, ClientFigures(1.0, 1.0, 10.0), server,
        GeneratorFigures(1, 0.1, 20_000.0, 0.0, 0.0, 0.0, "server"), [], True, "narrow",
    )  # fmt: skip


def searched_count(instrument: SimulatedInstrument, ranking: Ranking) -> int:
    """Return how many measurements looked for candidates, without the turns of the comparison."""
    return len(instrument.points) - ranking.turns * len(ranking.candidates)


class BiasedPredictor:
    """Predicts with the true costs less their contention and knee, scaled to the measurements."""

    def __init__(self, costs: Costs) -> None:
        self._costs = Costs(costs.fixed_ms, costs.row_ms, costs.cores, costs.contention / 2, costs.overhead_ms)
        self._scale = 1.0

    def plan(self, space: Space, budget: int) -> Sequence[Point]:
        """Return points along the diagonal of the grid."""
        variants = space.variants[space.models[0]]
        step = max(1, len(variants) // budget)
        return [Point((each,), concurrency=16) for each in variants[::step]][:budget]

    def fit(self, measured: Sequence[Measured]) -> None:
        """Take the mean ratio of measured to predicted throughput."""
        ratios = [
            row.throughput.value / figures(self._costs, each.point).throughput
            for each in measured
            for row in each.rows.values()
        ]
        self._scale = sum(ratios) / len(ratios)

    async def prepare(self, points: Sequence[Point]) -> None:
        """Predict nothing in advance."""

    def predict(self, point: Point) -> Prediction:
        """Return the scaled figures."""
        expected = figures(self._costs, point)
        latency_us = {50: expected.p50_ms * 1e3 / self._scale, 99: expected.p99_ms * 1e3 / self._scale}
        return Prediction(point, expected.throughput * self._scale, latency_us)


def grid(
    batches: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128),
    instances: Sequence[int] = (1, 2, 3, 4, 5),
    delays_us: Sequence[int] = (0,),
) -> Space:
    """Return a space of one model with all combinations."""
    fields = {"max_batch_size": batches, "instance_group.count": instances, DELAY: delays_us}
    variants = [
        Variant("m", f"m_config_{index}", dict(zip(fields, row, strict=True)))
        for index, row in enumerate(product(*fields.values()))
    ]
    dimensions = tuple(Dimension("m", name, tuple(values)) for name, values in fields.items())
    return Space(("m",), dimensions, variants={"m": [Variant("m", "m_config_default", {}), *variants]})


def settings(**changes: Any) -> SearchSettings:
    """Return settings that know the configuration of the repository."""
    return SearchSettings(configured={"m": CONFIGURED}, **changes)


def within(p99_ms: float) -> dict[str, Goal]:
    """Return the goal of throughput within a latency."""
    return {"m": Goal(constraints={"perf_latency_p99": Bound(maximum=p99_ms)})}

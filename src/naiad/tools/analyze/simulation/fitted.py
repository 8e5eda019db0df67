"""Costs that were fitted to measurements, and what they predict for a point."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.point_measurement import Prediction
from naiad.tools.analyze.simulation.simulated_system import (
    BatchTime,
    RequestCost,
    RouteStep,
    Simulated,
    SimulatedLoad,
    SimulatedModel,
    SimulatedRoute,
    System,
    simulate,
)
from naiad.tools.analyze.simulation.system_configuration import Configured, configured, route_steps
from naiad.tools.analyze.space import Point

PERCENTILES = (50, 90, 95, 99)
_SERIAL_SHARE = 0.15
"""Of a batch, where the gain of threads is unknown."""
_DOUBT_ERROR = 0.1
"""What each doubt adds to the expected error."""
_OVERLOADED = 0.97
"""An open loop is overloaded when fewer of its requests are answered."""


@dataclass(frozen=True, slots=True)
class FittedBatch:
    """The cost of a model with a number of threads, and where it was measured."""

    cost: BatchTime
    largest_rows: float
    most_instances: int


@dataclass(frozen=True, slots=True)
class Fitted:
    """Everything that is known of the models of a server."""

    configs: Mapping[str, ModelConfig]
    """The complete configuration of each model, members of ensembles included."""
    loaded: tuple[str, ...]
    """The models under load."""
    cores: float
    batches: Mapping[tuple[str, int], FittedBatch]
    """By model (the source of a variant) and threads of an instance."""
    requests: Mapping[tuple[str, int], RequestCost]
    """By model under load and batch size of a request."""
    processes: int = 1
    cpu_factor: float = 1.0
    """Measured cores / simulated cores."""
    latency_factors: Mapping[int, float] = field(default_factory=dict)
    """By percentile: measured latency / simulated latency."""
    error_share: float = 0.0
    """Of the throughput at the measured points."""

    def latency_us(self, simulated: Simulated, percentile: int) -> float:
        """Return the expected latency at a percentile."""
        return simulated.percentile_us(percentile) * self.latency_factors.get(percentile, 1.0)

    def system(self, point: Point, processes: int = 0, cores: float = 0.0) -> tuple[System, list[str]]:
        """Return the system of a point, and what had to be assumed.

        Raises ValueError for a model without a measurement, and an ensemble that cannot be resolved.
        """
        doubts: list[str] = []
        models = configured(point, self.configs, cores or self.cores)
        routes = []
        for model in self.loaded:
            steps = route_steps(model, models)
            routes.append(
                SimulatedRoute(model, steps, self._request_cost(model, point.batch_size, doubts), point.batch_size)
            )
        names = {step.model for route in routes for step in route.steps}
        served = {name: self._served(models[name], doubts) for name in sorted(names)}
        return System(served, routes, cores or self.cores, processes or self.processes), doubts

    def _request_cost(self, model: str, rows: int, doubts: list[str]) -> RequestCost:
        known = {batch: cost for (name, batch), cost in self.requests.items() if name == model}
        if not known:
            raise ValueError(f"model '{model}' was not measured under load; measure one point of it")
        if rows not in known:
            nearest = min(known, key=lambda batch: abs(batch - rows))
            doubts.append(f"requests of '{model}' with {rows} rows cost what those with {nearest} do")
            return known[nearest]
        return known[rows]

    def _served(self, model: Configured, doubts: list[str]) -> SimulatedModel:
        source, threads = model.source, model.threads
        known = {count: each for (name, count), each in self.batches.items() if name == source}
        if not known:
            raise ValueError(f"model '{source}' was not measured; measure one point of it")
        nearest = threads if threads in known else min(known, key=lambda count: abs(count - threads))
        fitted = known[nearest]
        cost = fitted.cost
        if nearest != threads:
            doubts.append(f"'{source}' was measured with {nearest} threads and not with {threads}")
            factor = _thread_time(threads) / _thread_time(nearest)
            cost = replace(cost, fixed_ns=cost.fixed_ns * factor, row_ns=cost.row_ns * factor)
        rows = model.config.max_batch_size if model.config.HasField("dynamic_batching") else 1
        if rows > 2 * fitted.largest_rows:
            doubts.append(f"batches of '{source}' were measured up to {fitted.largest_rows:.0f} rows, not {rows}")
        if model.instance_count > 2 * fitted.most_instances:
            doubts.append(
                f"'{source}' was measured with {fitted.most_instances} instances, not {model.instance_count}"
            )
        return SimulatedModel(model.config, cost, model.instance_count, threads)


def _thread_time(threads: int) -> float:
    return _SERIAL_SHARE + (1.0 - _SERIAL_SHARE) / threads


def load_of(point: Point, *, is_poisson: bool = False) -> SimulatedLoad:
    """Return the load of a point."""
    if point.request_rate:
        return SimulatedLoad(rate_per_s=point.request_rate, is_poisson=is_poisson)
    return SimulatedLoad(concurrency=max(1, point.concurrency))


def route_model_steps(steps: list[RouteStep]) -> dict[str, int]:
    """Return how often a request passes each model."""
    counts: dict[str, int] = {}
    for step in steps:
        counts[step.model] = counts.get(step.model, 0) + 1
    return counts


def predict(
    point: Point, fitted: Fitted, *, processes: int = 0, cores: float = 0.0, is_poisson: bool = False, seed: int = 0
) -> Prediction:
    """Return what the fitted costs give at a point; in about 20 ms, the same for the same seed.

    `processes` and `cores` default to the values of the fit. Raises ValueError for a model that was not measured.
    """
    system, doubts = fitted.system(point, processes, cores)
    simulated = simulate(system, load_of(point, is_poisson=is_poisson), seed)
    return prediction_of(point, fitted, simulated, doubts)


def prediction_of(point: Point, fitted: Fitted, simulated: Simulated, doubts: list[str]) -> Prediction:
    """Return a prediction from a simulation."""
    if simulated.throughput < _OVERLOADED * simulated.asked_per_s:
        doubts = [*doubts, "the rate is beyond the capacity: latency grows with the time that it lasts"]
    if simulated.dropped_count:
        doubts = [*doubts, "some requests are rejected by the queue policy"]
    return Prediction(
        point=point,
        throughput=simulated.throughput,
        latency_us={each: fitted.latency_us(simulated, each) for each in PERCENTILES},
        cpu_cores=simulated.cpu_cores * fitted.cpu_factor,
        error_share=fitted.error_share + _DOUBT_ERROR * len(doubts),
        doubts=doubts,
    )

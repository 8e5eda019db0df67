"""Fits costs to measured points.

The server's statistics give mean durations and mean batch sizes, not what batches of one size took alone. So the
measured points are simulated with the costs found so far: the simulation knows how sizes vary and how much batches
slow each other down, and the next costs are fitted to the measured durations without that.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.analyze.simulation.fitted import PERCENTILES, Fitted, FittedBatch, load_of, route_model_steps
from naiad.tools.analyze.simulation.regression import fit_line
from naiad.tools.analyze.simulation.simulated_system import EVEN, BatchTime, RequestCost, Simulated, simulate
from naiad.tools.analyze.simulation.system_configuration import Configured, configured, route_steps
from naiad.tools.measure.result import Latency, Row, ServerFigures

_ROUNDS = 6
_FIRST_PASS_SHARE = 0.25
"""Of the overhead of a lone request: what keeps the event loop busy."""
_PASS_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 1.2, 1.7, 2.4)
"""That are tried; above 1 a request costs more under load than alone, as when other programs compete for cores."""
_REFINEMENTS = {3: (0.8, 1.0, 1.25), 5: (0.9, 1.0, 1.1)}
"""By round, factors of the costs of the event loop that are tried."""
_MOST_CLIENT_SHARE = 0.8
"""Of the overhead of a lone request."""
_MOST_SLOWDOWN = 3.0
_MOST_TRIED = 5
"""Measured points that costs of the event loop are tried with."""
_OVERHEAD_WEIGHT = 0.3
"""Of an error of the time outside models, as a share of the latency; an error of the throughput has 1."""
_MANY_STEPS = 1200
_FEW_STEPS = 400
"""Of simulations that choose between costs."""
_LONE = 1.5
"""Requests outstanding, below which none waits for another."""
_FEW_OTHERS = 0.2
"""Batches beside a batch, up to which they do not slow it down."""
_LEAST_LOOP_NS = 2_000
"""Of CPU time of the main thread for a request, below which the event loop is elsewhere, as in other servers."""
_LOOP_SHARES = (0.4, 0.6, 0.8, 1.0)
"""Of the measured time of the event loop, which also polls, and executes batches of very small models."""
_LEAST_ERROR = 0.02
_QUANTILES = 101
_LONGEST_TAIL = 20.0
"""Times the median: longer ones are pauses of the machine."""


@dataclass(frozen=True, slots=True)
class _Execution:
    """The mean of what a model did at a measured point."""

    measured: int
    key: tuple[str, int]
    model: str
    instances: int
    request_rows: int
    mean_rows: float
    """Over batches."""
    duration_ns: float
    """Over requests."""
    queue_ns: float
    cycle_ns: float
    """From batch to batch of an instance."""
    outstanding: float
    """Requests, on the mean."""

    @property
    def figure_ns(self) -> float:
        """Return what measurements of the same point differ in."""
        return self.duration_ns


@dataclass(frozen=True, slots=True)
class _Requests:
    """The mean request to a model at a measured point."""

    measured: int
    key: tuple[str, int]
    passes: int
    overhead_ns: float
    """Outside queues and executions."""
    inside_ns: float
    outstanding: float
    client_ns: float
    """CPU time of the load generator."""
    batches: float
    """Of all models, for a request."""
    loop_ns: float
    """CPU time of the event loop; 0 where that is not known."""

    @property
    def figure_ns(self) -> float:
        """Return what measurements of the same point differ in."""
        return self.overhead_ns


_Mean = TypeVar("_Mean", _Execution, _Requests)


def fit(
    measured: Sequence[Measured],
    configs: Mapping[str, ModelConfig],
    cores: float,
    *,
    processes: int = 1,
) -> Fitted:
    """Return costs fitted to measured points; failed ones and those without server statistics are left out.

    `configs` are the complete configurations of the models of the repository, members of ensembles included. `cores`
    is what the server has, or shares with a load generator on the same machine. Raises ValueError without a usable
    point.
    """
    usable = [each for each in measured if not each.error and each.rows and _has_figures(each)]
    if not usable:
        raise ValueError("no measured point has server statistics; measure one point")
    models = [configured(each.point, configs, cores) for each in usable]
    executions = [each for index, one in enumerate(usable) for each in _executions(index, one, models[index])]
    requests = [each for index, one in enumerate(usable) for each in _requests(index, one, models[index])]
    executions = _medians(executions, lambda each: (usable[each.measured].point.key, each.model))
    requests = _medians(requests, lambda each: (usable[each.measured].point.key, each.key[0]))
    fitted = _first(usable, configs, cores, processes, executions, requests)
    for number in range(_ROUNDS):
        fitted = replace(fitted, batches=_fit_batches(fitted, executions, _simulate(fitted, usable)))
        if number in (1,) or number in _REFINEMENTS:
            fitted = _fit_requests(fitted, requests, usable, _REFINEMENTS.get(number, ()))
    simulated = _simulate(fitted, usable)
    return replace(
        fitted,
        cpu_factor=_cpu_factor(usable, simulated),
        latency_factors={each: _latency_factor(usable, simulated, each) for each in PERCENTILES},
        error_share=max(_LEAST_ERROR, _throughput_error(usable, simulated)),
    )


def _simulate(fitted: Fitted, usable: Sequence[Measured], steps: int = _MANY_STEPS) -> list[Simulated]:
    """Return what each point gives; points that were measured again are simulated once."""
    points = {each.point.key: each.point for each in usable}
    simulated = {key: simulate(fitted.system(point)[0], load_of(point), steps=steps) for key, point in points.items()}
    return [simulated[each.point.key] for each in usable]


def _has_figures(measured: Measured) -> bool:
    return all(row.server is not None and row.request_count for row in measured.rows.values())


def _medians(seen: Sequence[_Mean], key: Callable[[_Mean], object]) -> list[_Mean]:
    """Return, for each point that was measured several times, the measurement with the median figure."""
    groups: dict[object, list[_Mean]] = {}
    for each in seen:
        groups.setdefault(key(each), []).append(each)
    return [sorted(group, key=lambda each: each.figure_ns)[(len(group) - 1) // 2] for group in groups.values()]


def _leaves(model: str, figures: ServerFigures | None) -> dict[str, ServerFigures]:
    """Return the figures of the models that executed something; `model` may be served from another one's files."""
    if figures is None or not figures.composing:
        return {model: figures} if figures else {}
    return {name: leaf for part in figures.composing for name, leaf in _leaves(part.model, part).items()}


def _duration_us(figures: ServerFigures) -> float:
    return figures.compute_input_us + figures.compute_infer_us + figures.compute_output_us


def _executions(index: int, measured: Measured, models: Mapping[str, Configured]) -> list[_Execution]:
    found = {}
    for loaded, row in measured.rows.items():
        for name, figures in _leaves(loaded, row.server).items():
            if figures.execution_count and name in models:
                model = models[name]
                found[name] = _Execution(
                    measured=index,
                    key=(model.source, model.threads),
                    model=name,
                    instances=model.instance_count,
                    request_rows=row.batch_size,
                    mean_rows=figures.inference_count / figures.execution_count,
                    duration_ns=_duration_us(figures) * 1e3,
                    queue_ns=figures.queue_us * 1e3,
                    cycle_ns=_cycle_ns(row, figures) * model.instance_count,
                    outstanding=row.throughput.value * row.latency.mean.value / 1e6,
                )
    return list(found.values())


def _cycle_ns(row: Row, figures: ServerFigures) -> float:
    """Return the mean time from batch to batch of a model."""
    assert row.server is not None, "points without server statistics are left out"
    return 1e9 * row.server.success_count / max(1.0, row.throughput.value * figures.execution_count)


def _requests(index: int, measured: Measured, models: Mapping[str, Configured]) -> list[_Requests]:
    found = []
    total = sum(row.throughput.value for row in measured.rows.values())
    for name, row in measured.rows.items():
        leaves, steps = _leaves(name, row.server), route_steps(name, models)
        inside_us = sum(
            count * (leaves[model].queue_us + _duration_us(leaves[model]))
            for model, count in route_model_steps(steps).items()
            if model in leaves
        )
        latency_us = row.latency.mean.value
        overhead_ns, inside_ns = (latency_us - inside_us) * 1e3, inside_us * 1e3
        outstanding = row.throughput.value * latency_us / 1e6
        client_ns = row.generator.cpu_share / max(1.0, row.throughput.value) * 1e9
        batches = sum(each.execution_count for each in leaves.values())
        found.append(
            _Requests(
                measured=index,
                key=(name, row.batch_size),
                passes=len(steps) + 1,
                overhead_ns=overhead_ns,
                inside_ns=inside_ns,
                outstanding=outstanding,
                client_ns=client_ns,
                batches=batches / max(1, row.server.success_count if row.server else 1),
                loop_ns=measured.loop_cores * 1e9 / max(1.0, total),
            )
        )
    return found


def _first(
    usable: Sequence[Measured],
    configs: Mapping[str, ModelConfig],
    cores: float,
    processes: int,
    executions: Sequence[_Execution],
    requests: Sequence[_Requests],
) -> Fitted:
    """Return costs that take every duration for that of a batch alone."""
    batches = {}
    spreads = _spreads(usable, requests)
    for key in dict.fromkeys(each.key for each in executions):
        seen = [each for each in executions if each.key == key]
        fixed_ns, row_ns = fit_line([each.mean_rows for each in seen], [each.duration_ns for each in seen])
        spread = spreads.get(seen[0].model, next(iter(spreads.values())))
        wake_up_ns = min((each.queue_ns for each in seen if each.outstanding < _LONE), default=0.0)
        batches[key] = FittedBatch(
            BatchTime(fixed_ns, row_ns, 0.0, spread, wake_up_ns, _gap_ns(seen)),
            largest_rows=max(each.mean_rows for each in seen),
            most_instances=max(each.instances for each in seen),
        )
    costs = {}
    for key in dict.fromkeys(each.key for each in requests):
        light = _lightest(requests, key)
        client_ns = min(each.client_ns for each in requests if each.key == key)
        most_ns = _MOST_CLIENT_SHARE * max(0.0, light.overhead_ns)
        cost = RequestCost(
            spread=spreads[key[0]],
            client_ns=min(client_ns, most_ns),
            client_turn_ns=max(0.0, min(light.client_ns, most_ns) - client_ns),
        )
        first_ns = (_FIRST_PASS_SHARE * _share_ns(light, cost), 0.0)
        costs[key] = _request_cost(light, cost, *(_loop_costs(requests, key) or first_ns))
    loaded = tuple(dict.fromkeys(name for each in usable for name in each.rows))
    return Fitted(configs, loaded, cores, batches, costs, processes)


def _gap_ns(seen: Sequence[_Execution]) -> float:
    """Return the pause between the batches of a single instance that always finds a next one; 0 without such a point.

    Where the pause is longer than a batch, the event loop limits the instance.
    """
    busy = [each for each in seen if each.instances == 1 and each.queue_ns >= each.duration_ns]
    pauses_ns = [each.cycle_ns - each.duration_ns for each in busy if each.cycle_ns <= 2 * each.duration_ns]
    return max(0.0, min(pauses_ns, default=0.0))


def _lightest(requests: Sequence[_Requests], key: tuple[str, int]) -> _Requests:
    return min((each for each in requests if each.key == key), key=lambda each: each.outstanding)


def _share_ns(light: _Requests, known: RequestCost) -> float:
    """Return what a pass takes of the overhead of a lone request."""
    return max(0.0, light.overhead_ns - known.client_ns - known.client_turn_ns) / light.passes


def _request_cost(light: _Requests, known: RequestCost, pass_ns: float, batch_ns: float) -> RequestCost:
    """Return a cost whose parts make the overhead of a lone request."""
    left_ns = light.passes * (_share_ns(light, known) - pass_ns) - light.batches * batch_ns
    return replace(known, pass_ns=pass_ns, batch_ns=batch_ns, delay_ns=max(0.0, left_ns))


def _loop_costs(requests: Sequence[_Requests], key: tuple[str, int]) -> tuple[float, float] | None:
    """Return the work of the event loop for a pass and for a batch; None where its CPU time was not measured.

    For a lone client the event loop polls, which is no work of the request.
    """
    seen = [each for each in requests if each.key == key and each.batches and each.loop_ns >= _LEAST_LOOP_NS]
    seen = [each for each in seen if each.outstanding >= _LONE] or seen
    if not seen:
        return None
    batch_ns, request_ns = fit_line(
        [1 / each.batches for each in seen], [each.loop_ns / each.batches for each in seen]
    )
    return request_ns / seen[0].passes, batch_ns


def _spreads(usable: Sequence[Measured], requests: Sequence[_Requests]) -> dict[str, Sequence[float]]:
    """Return, by model under load, how latencies vary where the least is queued."""
    spreads = {}
    for name in {name for each in usable for name in each.rows}:
        light = min((each for each in requests if each.key[0] == name), key=lambda each: each.outstanding)
        spreads[name] = _spread(usable[light.measured].rows[name])
    return spreads


def _spread(row: Row) -> Sequence[float]:
    latency: Latency = row.latency
    known = {0.0: latency.min_us, **{float(rank): each.value for rank, each in latency.percentiles.items()}}
    known[100.0] = min(latency.max_us, 2 * known.get(99.0, latency.max_us))
    if row.histogram:
        counts = np.cumsum([count for _, count in row.histogram])
        known |= {
            100.0 * count / counts[-1]: upper_us
            for (upper_us, _), count in zip(row.histogram, counts, strict=True)
            if 0 < count < 0.99 * counts[-1]
        }
    ranks = sorted(known)
    # Bins are wide, and an upper bound may exceed the percentile beside it.
    times_us = np.maximum.accumulate([known[rank] for rank in ranks])
    quantiles = np.interp(np.linspace(0, 100, _QUANTILES), ranks, times_us)
    median = float(np.median(quantiles))
    if median <= 0:
        return EVEN
    quantiles = np.minimum(quantiles, _LONGEST_TAIL * median)
    return tuple((quantiles / quantiles.mean()).tolist())


def _clear(seen: Sequence[_Execution], others: np.ndarray) -> np.ndarray:
    """Return which points show what a batch takes alone under load, all if their sizes are not enough for a line.

    For a lone client the server stays awake, and batches of other instances slow a batch down.
    """
    sizes = np.array([each.mean_rows for each in seen])
    clear = np.array([each.outstanding >= _LONE for each in seen]) & (others <= _FEW_OTHERS)
    if clear.any() and sizes[clear].max() > _LONE * sizes[clear].min():
        return clear
    return np.ones(len(seen), bool)


def _lone_share(cost: BatchTime, key: tuple[str, int], executions: Sequence[_Execution]) -> float:
    """Return how long the batches of a lone request take, as a share of the line through the other batches."""
    lone = [each for each in executions if each.key == key and each.outstanding <= 1.0]
    expected_ns = [cost.work_ns(each.mean_rows) for each in lone]
    return min([1.0, *(each.duration_ns / max(ns, 1.0) for each, ns in zip(lone, expected_ns, strict=True))])


def _size_ratio(key: tuple[str, int], executions: Sequence[_Execution]) -> float:
    """Return the largest batch / the smallest, of a model with a number of threads."""
    sizes = [each.mean_rows for each in executions if each.key == key]
    return max(sizes) / min(sizes)


def _row_share(source: str, rows: float, batches: Mapping[tuple[str, int], FittedBatch]) -> float:
    """Return the share of a batch that grows with its rows, known from the model with another number of threads."""
    for (model, _), known in batches.items():
        if model == source:
            return known.cost.row_ns * rows / max(1.0, known.cost.work_ns(rows))
    return 0.5


def _fit_batches(
    fitted: Fitted, executions: Sequence[_Execution], simulated: Sequence[Simulated]
) -> dict[tuple[str, int], FittedBatch]:
    batches: dict[tuple[str, int], FittedBatch] = {}
    for key in sorted(fitted.batches, key=lambda each: _size_ratio(each, executions), reverse=True):
        known = fitted.batches[key]
        seen = [each for each in executions if each.key == key]
        ran = [simulated[each.measured].executions[each.model] for each in seen]
        # The statistics count batches, and the duration counts requests: a large batch counts often.
        rows = np.array(
            [
                each.mean_rows * max(1.0, run.mean_rows * run.batches / max(1, run.requests * each.request_rows))
                for each, run in zip(seen, ran, strict=True)
            ]
        )
        alone_ns = np.array([each.duration_ns / run.stretch for each, run in zip(seen, ran, strict=True)])
        others = np.array([run.mean_others for run in ran])
        slowdown = known.cost.slowdown
        clear = _clear(seen, others)
        fixed_ns, row_ns = fit_line(
            rows[clear].tolist(),
            (alone_ns / (1.0 + slowdown * others))[clear].tolist(),
            _row_share(key[0], float(rows[clear].mean()), batches),
        )
        excess = alone_ns / np.maximum(fixed_ns + row_ns * rows, 1.0) - 1.0
        if others.max(initial=0.0) > _FEW_OTHERS:
            found = float(np.clip(excess @ others / (others @ others), 0.0, _MOST_SLOWDOWN))
            slowdown = (slowdown + found) / 2  # Slower batches meet more others: without the mean it oscillates.
        cost = replace(known.cost, fixed_ns=fixed_ns, row_ns=row_ns, slowdown=slowdown)
        batches[key] = replace(known, cost=replace(cost, lone_share=_lone_share(cost, key, executions)))
    return batches


def _spread_out(requests: Sequence[_Requests]) -> list[_Requests]:
    """Return a few, from the least to the most outstanding: simulations of all points would take long."""
    ordered = sorted(requests, key=lambda each: each.outstanding)
    indices = np.linspace(0, len(ordered) - 1, min(len(ordered), _MOST_TRIED)).round()
    return [ordered[int(each)] for each in indices]


def _fit_requests(
    fitted: Fitted, requests: Sequence[_Requests], usable: Sequence[Measured], factors: Sequence[float]
) -> Fitted:
    """Choose for each model under load the work of the event loop with which its measured points fit best.

    `factors` of the present costs are tried; shares of the overhead of a lone request without them.
    """
    for key, cost in fitted.requests.items():
        light = _lightest(requests, key)
        seen = [each for each in requests if each.key == key]
        few = _spread_out(seen)
        points = [usable[each.measured] for each in few]
        share_ns = _share_ns(light, cost)
        costs_ns = [(each * cost.pass_ns, each * cost.batch_ns) for each in factors]
        if not costs_ns and (loop := _loop_costs(requests, key)):
            costs_ns = [(each * loop[0], each * loop[1]) for each in _LOOP_SHARES]
        elif not costs_ns:
            costs_ns = [(each * share_ns, 0.0) for each in _PASS_SHARES]
        tried = [
            replace(fitted, requests={**fitted.requests, key: _request_cost(light, cost, *each)}) for each in costs_ns
        ]
        fitted = min(tried, key=lambda each: _misfit(points, few, _simulate(each, points, _FEW_STEPS)))
    return fitted


def _misfit(points: Sequence[Measured], requests: Sequence[_Requests], simulated: Sequence[Simulated]) -> float:
    """Return the typical error of the throughput and of the time outside models, as a share of the latency."""
    errors = [
        (run.overhead_ns - each.overhead_ns) / (each.overhead_ns + each.inside_ns)
        for each, run in zip(requests, simulated, strict=True)
    ]
    return math.hypot(
        _throughput_error(points, simulated), _OVERHEAD_WEIGHT * float(np.sqrt(np.mean(np.square(errors))))
    )


def _cpu_factor(usable: Sequence[Measured], simulated: Sequence[Simulated]) -> float:
    ratios = []
    for each, run in zip(usable, simulated, strict=True):
        shown = [
            figures["cpu_utilization"].value for figures in each.metrics.values() if "cpu_utilization" in figures
        ]
        cores = max(shown, default=0.0)
        if cores and run.cpu_cores:
            ratios.append(cores / run.cpu_cores)
    return float(np.median(ratios)) if ratios else 1.0


def _latency_factor(usable: Sequence[Measured], simulated: Sequence[Simulated], percentile: int) -> float:
    """Return how much longer latencies at a percentile are than simulated: other programs make pauses."""
    ratios = [
        row.latency.percentiles[percentile].value / run.percentile_us(percentile)
        for each, run in zip(usable, simulated, strict=True)
        for row in each.rows.values()
        if len(each.rows) == 1 and percentile in row.latency.percentiles and run.throughput
    ]
    return float(np.exp(np.median(np.log(ratios)))) if ratios and min(ratios) > 0 else 1.0


def _throughput_error(usable: Sequence[Measured], simulated: Sequence[Simulated]) -> float:
    """Return the typical relative error of the throughput at the measured points."""
    errors = [
        math.log(run.throughput / sum(row.throughput.value for row in each.rows.values()))
        for each, run in zip(usable, simulated, strict=True)
        if run.throughput
    ]
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else 1.0

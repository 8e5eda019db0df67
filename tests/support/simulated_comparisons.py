"""Pairs of simulated runs, of which the second may be slower, compared as `naiad perf --baseline` does it.

Each run has a speed of its own, with the standard deviation given as drift.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from naiad.tools.measure.comparison import Change, compare
from naiad.tools.measure.result import Result, Row
from naiad.tools.perf.perf_plan import Concurrency, Measuring, ModelLoad, Plan, Protocol, ServerTarget
from naiad.tools.perf.records import GeneratorFacts, Measurement
from naiad.tools.perf.statistics.row import row
from naiad.tools.perf.statistics.stability import verdict
from support.simulated_measurements import Arrays, Random, columns_of, queue_closed

_PLAN = Plan(ServerTarget("http://localhost:8000", Protocol.HTTP), [ModelLoad("model")], Concurrency(8))
_LIMIT_PERCENT = 5.0


def run_once(random: Random, simulate: Callable[[Random], Arrays], slowdown: float, measuring: Measuring) -> Row:
    ends, latencies = simulate(random)
    columns = columns_of(ends * slowdown, latencies * slowdown)
    now_ns = 0
    while True:
        now_ns += 250_000_000
        if verdict(measuring, columns, [0], 0, now_ns, Concurrency(8)).is_done:
            break
    facts = GeneratorFacts(1, now_ns / 1e9, 0.1, 0.1, np.zeros(0, np.int64), 1e6)
    return row(_PLAN, 0, Concurrency(8), Measurement(0, now_ns, [0, now_ns], columns, facts))


@dataclass(frozen=True)
class Case:
    name: str
    simulate: Callable[[Random], Arrays]
    drift: float
    repeat: int
    stability_percent: float = 10.0


def steady_eight(random: Random) -> Arrays:
    """Steady, with 5 % of jitter."""
    latencies = 0.001 * random.normal(1, 0.05, 20_000)
    return np.cumsum(latencies), latencies


CASES = [
    Case("steady, drift 1 %, single", steady_eight, 0.01, 1),
    Case("steady, drift 1.5 %, single", steady_eight, 0.015, 1),
    Case("steady, drift 3 %, single", steady_eight, 0.03, 1),
    Case("steady, drift 3 %, 5 repetitions", steady_eight, 0.03, 5),
    Case("queue, drift 1.5 %, single", queue_closed, 0.015, 1),
    Case("queue, drift 1.5 %, single, stability 4 %", queue_closed, 0.015, 1, 4.0),
    Case("queue, drift 1.5 %, 3 repetitions", queue_closed, 0.015, 3),
    Case("queue, drift 1.5 %, 5 repetitions", queue_closed, 0.015, 5),
    Case("queue, drift 3 %, 5 repetitions", queue_closed, 0.03, 5),
]


def changes(case: Case, seed: int, slowdown: float) -> set[Change]:
    """Verdicts on a pair of runs of which the second is slower."""
    random = np.random.default_rng(seed)
    measuring = Measuring(stability_percent=case.stability_percent)
    results = []
    for factor in (1.0, slowdown):
        rows = [
            run_once(random, case.simulate, factor * float(np.exp(random.normal(0, case.drift))), measuring)
            for _ in range(case.repeat)
        ]
        results.append(Result([], "", {}, None, rows))
    return {figure.change for figure in compare(results[0], results[1], _LIMIT_PERCENT).figures}

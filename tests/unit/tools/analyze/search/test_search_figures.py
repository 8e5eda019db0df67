"""How good and how cheap the default mode is, over repeated searches of several analytic models.

`python -m bench.analyze_simulation` repeats more searches.
"""

import asyncio
import math
from dataclasses import replace

import pytest
from tests.support.analyze_simulation import (
    DELAY,
    MODELS,
    BiasedPredictor,
    SimulatedInstrument,
    figures,
    grid,
    searched_count,
    settings,
    within,
)

from naiad.tools.analyze.goal import Goal
from naiad.tools.analyze.point_measurement import Prediction, Ranking
from naiad.tools.analyze.search import search
from naiad.tools.analyze.space import Point, Space, Variant

LIMITS_MS = {"convolutional network": 60.0, "language model": 60.0, "trees": 20.0, "python": 30.0, "pipeline": 150.0}


def searched(mode: str, space: Space, instrument: SimulatedInstrument, limit_ms: float) -> Ranking:
    predictor = BiasedPredictor(instrument.costs)
    return asyncio.run(search(mode, space, within(limit_ms), instrument, settings(), predictor=predictor))


@pytest.mark.parametrize("name", MODELS)
def test_prediction_comes_close_to_brute_force(name: str) -> None:
    costs, limit_ms, space = MODELS[name], LIMITS_MS[name], grid()
    exact = SimulatedInstrument(costs, noise=0.0)
    best = searched("brute", space, exact, limit_ms).winner
    assert best is not None
    optimum = figures(costs, best.measured.point).throughput
    good = 0
    for seed in range(4):
        instrument = SimulatedInstrument(costs, seed)
        ranking = searched("predict", space, instrument, limit_ms)
        winner = ranking.winner
        assert winner is not None
        assert searched_count(instrument, ranking) <= len(exact.points) / 10
        good += figures(costs, winner.measured.point).throughput >= 0.95 * optimum
    assert good >= 3


@pytest.mark.parametrize("mode", ["predict", "brute"])
def test_identical_configurations_are_tied(mode: str) -> None:
    # The delay has no effect on batches that are full.
    variants = [
        Variant("m", f"m_config_{index}", {"max_batch_size": 8, "instance_group.count": 2, "parameters.label": label})
        for index, label in enumerate("ab")
    ]
    space = Space(("m",), (), variants={"m": [Variant("m", "m_config_default", {}), *variants]})
    tied = 0
    for seed in range(8):
        ranking = searched(mode, space, SimulatedInstrument(MODELS["python"], seed), 1000.0)
        assert ranking.winner is not None
        names = {each.measured.point.variants[0].name for each in ranking.candidates if each.is_tie}
        tied += {*names, ranking.winner.measured.point.variants[0].name} == {"m_config_0", "m_config_1"}
    assert tied >= 7


def test_better_configuration_is_not_a_tie() -> None:
    costs, apart = MODELS["python"], 0
    space = grid((8, 16), (2,))
    better = figures(costs, Point(space.variants["m"][2:3], 64))
    worse = figures(costs, Point(space.variants["m"][1:2], 64))
    assert better.throughput > 1.1 * worse.throughput
    for seed in range(8):
        ranking = searched("brute", space, SimulatedInstrument(costs, seed), 1000.0)
        apart += not any(each.is_tie for each in ranking.candidates)
    assert apart >= 7


def test_simpler_configuration_wins_a_tie() -> None:
    space = grid((8, 16), (2,), (0, 400))
    costs = MODELS["python"]
    for seed in range(5):
        ranking = searched("brute", space, SimulatedInstrument(costs, seed), 1000.0)
        assert ranking.winner is not None
        assert ranking.winner.measured.point.variants[0].settings[DELAY] == 0


def test_large_space_is_predicted_in_part() -> None:
    space = grid(instances=range(1, 9), delays_us=range(0, 3200, 200))
    instrument = SimulatedInstrument(MODELS["trees"], 1)
    ranking = searched("predict", space, instrument, 20.0)
    assert ranking.winner is not None
    assert len(space.variants["m"]) == 1025
    assert len({each.point.variants[0].name for each in ranking.predictions}) < 600
    assert searched_count(instrument, ranking) <= 40
    best = max(
        (
            figures(instrument.costs, Point((each,), load))
            for each in space.variants["m"]
            for load in (256, 512, 1024)
        ),
        key=lambda each: (each.p99_ms <= 20.0, each.throughput),
    )
    assert figures(instrument.costs, ranking.winner.measured.point).throughput >= 0.95 * best.throughput


def test_overload_is_compared_with_numbers() -> None:
    class Overloaded(BiasedPredictor):
        def predict(self, point: Point) -> Prediction:
            found = super().predict(point)
            return (
                replace(found, latency_us=dict.fromkeys(found.latency_us, math.inf))
                if point.concurrency > 8
                else found
            )

    goals = {"m": Goal({"perf_latency_p99": 1.0})}
    instrument = SimulatedInstrument(MODELS["trees"], 1)
    predictor = Overloaded(instrument.costs)
    ranking = asyncio.run(search("predict", grid(), goals, instrument, settings(), predictor=predictor))
    assert ranking.winner is not None
    assert ranking.winner.measured.point.concurrency == 1

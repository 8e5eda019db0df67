"""The default mode with the real fit and simulation, on an analytic model."""

import asyncio
from dataclasses import replace

import pytest
from tests.support.analyze_simulation import MODELS, SimulatedInstrument, figures, searched_count, settings, within

from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.tools.analyze.point_measurement import Measured, Ranking
from naiad.tools.analyze.search import SearchSettings, search
from naiad.tools.analyze.simulation import LearnedPredictor
from naiad.tools.analyze.space import Dimension, Point, Space
from naiad.tools.analyze.variants.combinations import combinations

COSTS = MODELS["language model"]
LIMIT_MS = 60.0


def served() -> tuple[ModelConfig, Space]:
    config = ModelConfig(name="m", backend="onnxruntime", max_batch_size=1)
    config.instance_group.add(count=1, kind=ModelInstanceGroup.KIND_CPU)
    config.parameters["intra_op_thread_count"].string_value = "1"
    config.input.add(name="x", data_type="TYPE_FP32", dims=[4])
    config.output.add(name="y", data_type="TYPE_FP32", dims=[4])
    config.dynamic_batching.SetInParent()
    dimensions = (
        Dimension("m", "max_batch_size", (1, 8, 32)),
        Dimension("m", "instance_group.count", (1, 2)),
    )
    return config, Space(("m",), dimensions, variants={"m": combinations(config, dimensions).all})


def searched(mode: str, instrument: SimulatedInstrument, chosen: SearchSettings) -> Ranking:
    config, space = served()
    predictor = LearnedPredictor({"m": config}, COSTS.cores)
    return asyncio.run(search(mode, space, within(LIMIT_MS), instrument, chosen, predictor=predictor))


@pytest.mark.long
def test_simulation_finds_the_optimum() -> None:
    exact, instrument = SimulatedInstrument(COSTS, noise=0.0), SimulatedInstrument(COSTS, 4)
    best = searched("brute", exact, settings()).winner
    ranking = searched("predict", instrument, settings())
    assert best is not None
    assert ranking.winner is not None
    optimum = figures(COSTS, best.measured.point).throughput
    assert figures(COSTS, ranking.winner.measured.point).throughput > 0.8 * optimum
    assert searched_count(instrument, ranking) < len(exact.points) / 4
    assert len(ranking.predictions) >= 7


def test_unfitted_costs_predict_nothing() -> None:
    config, space = served()
    predictor = LearnedPredictor({"m": config}, 2.0)
    point = Point((space.variants["m"][0],), 1)
    predictor.fit([Measured(point)])
    assert predictor.predict(point) is None


def test_server_without_statistics_is_climbed() -> None:
    instrument = SimulatedInstrument(COSTS, 4)

    class Silent(SimulatedInstrument):
        async def measure(self, point: Point, seconds: float) -> Measured:
            measured = await instrument.measure(point, seconds)
            rows = {name: replace(row, server=None) for name, row in measured.rows.items()}
            return replace(measured, rows=rows)

    ranking = searched("predict", Silent(COSTS), settings())
    assert ranking.winner is not None
    assert ranking.winner.gain_percent is not None
    assert ranking.winner.gain_percent.value > 200
    assert not ranking.predictions

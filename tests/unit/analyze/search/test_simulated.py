"""The default mode with the real fit and simulation, on an analytic model."""

import asyncio

import pytest
from tests.support.analyze_simulation import MODELS, SimulatedInstrument, figures, settings, within

from naiad.analyze.measurement import Measured, Ranking
from naiad.analyze.search import SearchSettings, search
from naiad.analyze.search.modes.simulated import SimulatedPredictor
from naiad.analyze.space import Dimension, Point, Space
from naiad.analyze.variants.combinations import combinations
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup

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
        Dimension("m", "max_batch_size", (1, 2, 8, 32)),
        Dimension("m", "instance_group.count", (1, 2, 4)),
    )
    return config, Space(("m",), dimensions, variants={"m": combinations(config, dimensions).all})


def searched(mode: str, instrument: SimulatedInstrument, chosen: SearchSettings) -> Ranking:
    config, space = served()
    predictor = SimulatedPredictor({"m": config}, COSTS.cores, chosen)
    return asyncio.run(search(mode, space, within(LIMIT_MS), instrument, chosen, predictor=predictor))


def test_simulation_finds_the_optimum() -> None:
    exact, instrument = SimulatedInstrument(COSTS, noise=0.0), SimulatedInstrument(COSTS, 4)
    best = searched("brute", exact, settings()).winner
    ranking = searched("predict", instrument, settings())
    assert best is not None
    assert ranking.winner is not None
    optimum = figures(COSTS, best.measured.point).throughput
    assert figures(COSTS, ranking.winner.measured.point).throughput > 0.9 * optimum
    assert len(instrument.points) < len(exact.points) / 5
    assert len(ranking.predictions) >= 13


def test_plan_has_lone_requests_and_large_batches() -> None:
    config, space = served()
    points = SimulatedPredictor({"m": config}, 2.0, settings()).plan(space, 4)
    shapes = [
        (each.variants[0].settings["max_batch_size"], each.variants[0].settings["instance_group.count"])
        for each in points
    ]
    assert shapes == [(32, 1), (32, 4), (32, 1), (8, 1)]
    assert [each.concurrency for each in points] == [64, 256, 1, 4]


def test_nothing_is_predicted_before_a_fit() -> None:
    config, space = served()
    assert SimulatedPredictor({"m": config}, 2.0, settings()).predict(Point((space.variants["m"][0],), 1)) is None


def test_measurement_without_server_statistics_is_refused() -> None:
    config, space = served()
    bare = Measured(Point((space.variants["m"][0],), 1))
    with pytest.raises(ValueError, match="no measured point has server statistics"):
        SimulatedPredictor({"m": config}, 2.0, settings()).fit([bare])

"""Simulations in worker processes give what simulations in this process give."""

import asyncio

from tests.support.analyze_simulation import MODELS, SimulatedInstrument

from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.simulation.fit import fit
from naiad.tools.analyze.simulation.predictor import simulated
from naiad.tools.analyze.simulations import Simulations
from naiad.tools.analyze.space import Point, Variant


def test_worker_processes_predict_the_same() -> None:
    config = ModelConfig(name="m", backend="onnxruntime", max_batch_size=8)
    config.instance_group.add(count=1)
    config.dynamic_batching.SetInParent()
    variant = Variant("m", "m_config_default", {})
    instrument = SimulatedInstrument(MODELS["language model"], 3)
    points = [Point((variant,), concurrency) for concurrency in (1, 16)]
    fitted = fit([asyncio.run(instrument.measure(point, 1.0)) for point in points], {"m": config}, 2.0)
    wanted = [*(Point((variant,), concurrency) for concurrency in range(1, 10)), Point((Variant("other", "x", {}),))]

    async def predicted() -> list[object]:
        with Simulations(2) as simulations:
            return [*await simulations(wanted, fitted)]

    expected = [simulated(point, fitted) for point in wanted]
    assert asyncio.run(predicted()) == expected
    assert len([each for each in expected if each is not None]) >= 9

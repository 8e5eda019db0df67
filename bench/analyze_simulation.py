"""The choice of `naiad analyze` against the whole grid, on simulated machines.

    python -m bench.analyze_simulation [--models trees,python] [--searches 20] [--noise 0.03] [--concurrency 8]

The costs of a batch are formulas (tests/support/analyze_simulation.py), so the optimum is known. The search sees
noisy measurements: `--noise` is the standard deviation between two of them, as a share. Fit, prediction and search
are the real ones. The grid has the default dimensions of a Python model with batches of up to 16, on two cores.
"""

import argparse
import asyncio
import sys
from dataclasses import replace

from tests.support.analyze_simulation import DELAY, MODELS, Costs, Figures, SimulatedInstrument, figures, within

from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.tools.analyze.measurement import Measured
from naiad.tools.analyze.search import search
from naiad.tools.analyze.simulation import LearnedPredictor
from naiad.tools.analyze.space import Point, Space
from naiad.tools.analyze.variants import Machine, combinations, default_dimensions
from naiad.tools.analyze.variants.dimensions import ADAPTIVE, INSTANCE_COUNT, MAX_BATCH_SIZE
from naiad.tools.analyze.variants.dimensions import DELAY as REAL_DELAY

_LIMITS_MS = {
    "convolutional network": 150.0,
    "language model": 60.0,
    "trees": 20.0,
    "python": 30.0,
    "pipeline": 150.0,
}
_CORES = 2
_LARGEST_BATCH = 16


class _Instrument(SimulatedInstrument):
    """Measures configurations as a server has them: without the dynamic batcher, batches have one row."""

    async def measure(self, point: Point, seconds: float) -> Measured:
        """Return the figures of a point with noise."""
        return replace(await super().measure(_simulated(point), seconds), point=point)


def _simulated(point: Point) -> Point:
    (variant,) = point.variants
    given = variant.settings
    delay_us = given.get(REAL_DELAY)
    settings = {
        MAX_BATCH_SIZE: given.get(MAX_BATCH_SIZE, _LARGEST_BATCH) if delay_us is not None else 1,
        INSTANCE_COUNT: given.get(INSTANCE_COUNT, 1),
        DELAY: 0 if delay_us is None or given.get(ADAPTIVE) == "true" else delay_us,
    }
    return replace(point, variants=(replace(variant, settings=settings, config_json=""),))


def _config() -> ModelConfig:
    config = ModelConfig(name="m", backend="python", max_batch_size=_LARGEST_BATCH)
    config.instance_group.add(count=1, kind=ModelInstanceGroup.KIND_CPU)
    config.input.add(name="x", data_type="TYPE_FP32", dims=[4])
    config.output.add(name="y", data_type="TYPE_FP32", dims=[4])
    return config


def compare(name: str, arguments: argparse.Namespace) -> str:
    """Search several times; return a row of the table."""
    config, costs = _config(), MODELS[name]
    dimensions = default_dimensions(config, Machine(_CORES), batch_sizes=(1, _LARGEST_BATCH))
    variants = combinations(config, dimensions).all
    space = Space(("m",), dimensions, (arguments.concurrency,), variants={"m": variants})
    exact = {each.name: _exact(costs, Point((each,), arguments.concurrency)) for each in variants}
    optimum = max(each.throughput for each in exact.values() if each.p99_ms <= _LIMITS_MS[name])
    shares, counts = [], []
    for seed in range(arguments.searches):
        instrument = _Instrument(costs, seed, arguments.noise)
        predictor = LearnedPredictor({"m": config}, _CORES)
        ranking = asyncio.run(search("predict", space, within(_LIMITS_MS[name]), instrument, predictor=predictor))
        winner = ranking.winner
        shares.append(exact[winner.measured.point.variants[0].name].throughput / optimum if winner else 0.0)
        counts.append(len(instrument.points))
    return (
        f"{name:22} grid {len(variants)}, measurements {min(counts)} to {max(counts)}, at least 95% of the optimum "
        f"in {sum(share >= 0.95 for share in shares)} of {len(shares)} searches, least {min(shares):.0%}"
    )


def _exact(costs: Costs, point: Point) -> Figures:
    return figures(costs, _simulated(point))


def main() -> int:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--searches", type=int, default=20)
    parser.add_argument("--noise", type=float, default=0.03)
    parser.add_argument("--concurrency", type=int, default=8)
    arguments = parser.parse_args()
    for name in arguments.models.split(","):
        print(compare(name, arguments), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

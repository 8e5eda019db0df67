"""The choice of the default mode against the optimum of the whole grid, and the gain over the old configuration.

    python -m bench.analyze_choice [--model busy] [--searches 5] [--seconds 0.4] [--concurrency 16] [--p99-ms 60]

The configuration starts as many services do: one instance, no dynamic batching. Every variant of the grid is measured
once; then the mode `predict` searches the grid several times, without knowledge of these measurements. The first five
of the grid, all choices and the configuration as it was are measured again in interleaved rounds, whose medians are
compared. One server process serves everything.
"""

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
from pathlib import Path

from bench.models import write_repository
from naiad.backend.cores import usable_cores
from naiad.tools.analyze.goal import Bound, Goal
from naiad.tools.analyze.live import LiveInstrument, OwnServer
from naiad.tools.analyze.measurement import Measured
from naiad.tools.analyze.search import SearchSettings, search
from naiad.tools.analyze.simulation import LearnedPredictor
from naiad.tools.analyze.space import Point, Space, Variant
from naiad.tools.analyze.variants import Machine, combinations, default_dimensions
from naiad.tools.perf.plan import ModelLoad

_FINALISTS = 5
_ROUNDS = 5


def write_single_instance(repository: Path, model: str) -> None:
    """Write a model of the benchmarks without its dynamic batching."""
    write_repository(repository, [model])
    path = repository / model / "config.pbtxt"
    path.write_text(re.sub(r"dynamic_batching \{.*\}", "", path.read_text()))


class Comparison:
    """Grid and searches on one instrument."""

    def __init__(self, instrument: LiveInstrument, arguments: argparse.Namespace) -> None:
        self._instrument = instrument
        self._arguments = arguments
        self._model = arguments.model
        config = instrument.configs[self._model]
        dimensions = default_dimensions(config, Machine(usable_cores()), batch_sizes=(1, config.max_batch_size))
        self._variants = combinations(config, dimensions).all
        self._space = Space(
            (self._model,), dimensions, (arguments.concurrency,), variants={self._model: self._variants}
        )
        self._goals = {self._model: Goal(constraints={"perf_latency_p99": Bound(maximum=arguments.p99_ms)})}

    async def run(self) -> int:
        """Measure and print; return the exit status."""
        grid = [each for each in [await self._measure(variant) for variant in self._variants] if not each.error]
        best = sorted(grid, key=self._throughput, reverse=True)[:_FINALISTS]
        choices, counts = [], []
        for _ in range(self._arguments.searches):
            variant, count = await self._search()
            choices.append(variant)
            counts.append(count)
        known = {each.name: each for each in (self._variants[0], *(one.point.variants[0] for one in best), *choices)}
        medians = await self._medians(list(known.values()))
        optimum = max(medians.values())
        for name, value in sorted(medians.items(), key=lambda entry: -entry[1]):
            print(f"{name:26} {value:8.0f}/s {value / optimum:6.0%}  {known[name].summary}")
        shares = [medians[each.name] / optimum for each in choices]
        print(
            f"{self._model}: grid of {len(self._variants)} measurements, searches of {sorted(counts)}; choices "
            f"{', '.join(f'{share:.0%}' for share in shares)} of the optimum; median choice "
            f"{statistics.median(shares) * optimum / medians[self._variants[0].name]:.2f} times the configuration "
            "as it was"
        )
        return 0

    async def _measure(self, variant: Variant) -> Measured:
        point = Point((variant,), self._arguments.concurrency)
        return await self._instrument.measure(point, self._arguments.seconds)

    def _throughput(self, measured: Measured) -> float:
        metrics = measured.metrics[self._model]
        if metrics["perf_latency_p99"].value > self._arguments.p99_ms:
            return 0.0
        return metrics["perf_throughput"].value

    async def _search(self) -> tuple[Variant, int]:
        configs = self._instrument.configs
        ranking = await search(
            "predict",
            self._space,
            self._goals,
            self._instrument,
            SearchSettings(seconds=self._arguments.seconds),
            predictor=LearnedPredictor(configs, usable_cores()),
        )
        count = sum(each.repeats for each in ranking.measurements)
        if ranking.winner is None:
            print(f"no winner: {ranking.reason}")
            return self._variants[0], count
        return ranking.winner.measured.point.variants[0], count

    async def _medians(self, variants: list[Variant]) -> dict[str, float]:
        found: dict[str, list[float]] = {each.name: [] for each in variants}
        for turn in range(_ROUNDS):
            for variant in variants if turn % 2 else reversed(variants):
                measured = await self._measure(variant)
                if not measured.error:
                    found[variant.name].append(measured.metrics[self._model]["perf_throughput"].value)
        return {name: statistics.median(values) for name, values in found.items() if values}


async def compare(arguments: argparse.Namespace) -> int:
    """Start the server and compare."""
    with tempfile.TemporaryDirectory() as directory:
        write_single_instance(Path(directory), arguments.model)
        async with LiveInstrument(OwnServer([Path(directory)]), [ModelLoad(arguments.model)]) as instrument:
            return await Comparison(instrument, arguments).run()


def main() -> int:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="busy")
    parser.add_argument("--searches", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--p99-ms", type=float, default=60.0)
    return asyncio.run(compare(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())

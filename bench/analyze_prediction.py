"""Predictions of `naiad analyze` against measurements.

    python -m bench.analyze_prediction [MODEL ...] [--turns 5] [--seconds 0.5]

For each model four points are measured to fit the costs, and three points that the fit has not seen, to compare with:
another load, another configuration, and an open loop. All points are measured in turns, and the turn that the machine
disturbed least counts: the one of most throughput, for the open loop that of the least median latency.
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.models import write_repository
from naiad.analyze.live import LiveInstrument, OwnServer
from naiad.analyze.measurement import Measured, Prediction
from naiad.analyze.prediction.fit import fit
from naiad.analyze.prediction.fitted import predict
from naiad.analyze.space import Point, Variant
from naiad.analyze.variants.settings import make_variant
from naiad.config.model_config_pb2 import ModelConfig
from naiad.perf.plan import ModelPlan
from naiad.perf.result import Row

_RATE_SHARE = 0.5
"""Of the throughput of a long queue: the rate of the open loop."""
_WARM_UP_S = 0.3
_THREADS = "parameters.intra_op_thread_count"


@dataclass(frozen=True)
class Case:
    """A model, the model whose configuration varies, and its largest batch."""

    model: str
    varied: str
    rows: int = 16
    """0 for a model without batches."""
    threads: int = 1
    """Of an instance; 0 for a backend without the parameter."""

    def points(self, configs: Mapping[str, ModelConfig], rate: float) -> list[Point]:
        """Return four points for the fit and three others."""
        rows = self.rows or 8
        fits = [(1, rows, 1), (1, rows, 2 * rows), (1, 4, 16), (2, rows, 2 * rows)]
        others = [(1, rows, 4), (2, rows // 2, rows)]
        points = [Point((self._variant(configs, *each),), concurrency=load) for *each, load in fits + others]
        return [*points, Point(points[0].variants, request_rate=round(rate))]

    def _variant(self, configs: Mapping[str, ModelConfig], instances: int, rows: int) -> Variant:
        settings: dict[str, Any] = {"instance_group.count": instances}
        if self.rows:
            settings["max_batch_size"] = rows
        if self.threads:
            settings[_THREADS] = str(self.threads)
        return make_variant(configs[self.varied], settings, f"{self.varied}_{instances}x{rows}")


_FITTED = 4
CASES = [
    Case("add_sub", "add_sub"),
    Case("busy", "busy", rows=0),
    Case("deep_1_0", "deep_1_0"),
    Case("add_sub_py", "add_sub_py", threads=0),
    Case("chain", "add_sub"),
]


async def measure(
    case: Case, repository: Path, turns: int, seconds: float
) -> tuple[dict[str, ModelConfig], list[Measured]]:
    """Return the configurations, and the best turn of each point."""
    async with LiveInstrument(OwnServer([repository]), [ModelPlan(case.model)]) as instrument:
        configs = dict(instrument.configs)
        saturated = case.points(configs, 1.0)[1]
        await instrument.measure(saturated, _WARM_UP_S)
        highest = (await instrument.measure(saturated, seconds)).rows[case.model].throughput.value
        points = case.points(configs, _RATE_SHARE * highest)
        found: list[list[Measured]] = [[] for _ in points]
        for _ in range(turns):
            for index, point in enumerate(points):
                found[index].append(await instrument.measure(point, seconds))
    return configs, [_least_disturbed(case.model, each) for each in found]


def _least_disturbed(model: str, turns: Sequence[Measured]) -> Measured:
    usable = [each for each in turns if not each.error]
    if not usable:
        raise RuntimeError(f"{turns[0].point.key}: {turns[0].error}")
    if usable[0].point.request_rate:
        return min(usable, key=lambda each: each.rows[model].latency.percentiles[50].value)
    return max(usable, key=lambda each: each.rows[model].throughput.value)


def report(case: Case, configs: Mapping[str, ModelConfig], measured: Sequence[Measured]) -> None:
    """Print what was predicted and measured at the points that the fit has not seen."""
    fitted = fit(measured[:_FITTED], configs, len(os.sched_getaffinity(0)))
    for each in measured[_FITTED:]:
        row, predicted, point = each.rows[case.model], predict(each.point, fitted), each.point
        load = f"concurrency {point.concurrency}" if point.concurrency else f"{point.request_rate:g}/s"
        print(f"| {point.variants[0].name} of {case.model}, {load} {_compared(row, predicted)}", flush=True)


def _compared(row: Row, predicted: Prediction) -> str:
    throughput, p50_us = row.throughput.value, row.latency.percentiles[50].value
    return (
        f"| {throughput:.0f} | {predicted.throughput:.0f} | {predicted.throughput / throughput - 1:+.0%} "
        f"| {p50_us:.0f} | {predicted.latency_us[50]:.0f} | {predicted.latency_us[50] / p50_us - 1:+.0%} |"
    )


def main() -> None:
    """Run the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[each.model for each in CASES])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    arguments = parser.parse_args()
    print("| point | measured /s | predicted /s | | p50 us | predicted us | |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        repository = Path(directory)
        write_repository(repository, ["add_sub", "busy", "deep", "add_sub_py", "chain"])
        for case in CASES:
            if case.model in arguments.models:
                report(case, *asyncio.run(measure(case, repository, arguments.turns, arguments.seconds)))


if __name__ == "__main__":
    main()

"""Predictions of `naiad analyze` against measurements.

    python -m bench.analyze_prediction [MODEL ...] [--turns 5] [--seconds 0.5] [--save FILE]
    python -m bench.analyze_prediction [MODEL ...] --replay FILE

The models are the reference models of `bench.analyze_reference`, and small ones whose requests cost more than their
models. For each model four points are measured to fit the costs, and three points that the fit has not seen, to
compare with: another load, another configuration, and an open loop. All points are measured in turns, and the turn
that the machine disturbed least counts: the one of most throughput, for the open loop that of the least median
latency. An open loop that the load generator limited is marked and does not count: its latencies say little about
the server. `--save` keeps the measurements, and `--replay` predicts them again without a server, as after a change of
the fit.
"""

import argparse
import asyncio
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.analyze_reference import REFERENCES
from bench.models import write_repository
from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.live import LiveInstrument, OwnServer
from naiad.tools.analyze.measurement import Measured, Prediction
from naiad.tools.analyze.simulation.fit import fit
from naiad.tools.analyze.simulation.fitted import predict
from naiad.tools.analyze.space import Point, Variant
from naiad.tools.analyze.variants.settings import make_variant
from naiad.tools.measure.result import Row
from naiad.tools.perf.plan import ModelLoad

_RATE_SHARE = 0.5
"""Of the throughput of a long queue: the rate of the open loop."""
_WARM_UP_S = 0.3
_LEAST_REQUESTS = 200
"""Of a measurement, in a closed loop of one request: slow models are measured for longer, up to `_MOST_S`."""
_MOST_S = 4.0
_MOST_THROUGHPUT_ERROR = 0.10
_MOST_P50_ERROR = 0.15
_THREADS = "parameters.intra_op_thread_count"


def _write_small(root: Path) -> None:
    write_repository(root, ["add_sub", "busy", "deep", "add_sub_py", "chain"])


@dataclass(frozen=True)
class Case:
    """A model, the model whose configuration varies, and its largest batch."""

    model: str
    varied: str
    rows: int = 16
    """0 for a model without batches."""
    threads: int = 1
    """Of an instance; 0 for a backend without the parameter."""
    write: Callable[[Path], ModelLoad | None] = _write_small
    """Writes the repository; returns what is under load, the model with generated inputs by default."""

    def points(self, configs: Mapping[str, ModelConfig], rate: float) -> list[Point]:
        """Return four points for the fit and three others."""
        rows = self.rows or 8
        fits = [(1, rows, 1), (1, rows, 2 * rows), (1, 4, 16), (2, rows, 2 * rows)]
        others = [(1, rows, 4), (2, rows // 2, rows)]
        points = [Point((self._variant(configs, *each),), concurrency=load) for *each, load in fits + others]
        return [*points, Point(points[0].variants, request_rate=round(rate, 1))]

    def _variant(self, configs: Mapping[str, ModelConfig], instances: int, rows: int) -> Variant:
        settings: dict[str, Any] = {"instance_group.count": instances}
        if self.rows:
            settings["max_batch_size"] = rows
        if self.threads:
            settings[_THREADS] = str(self.threads)
        return make_variant(configs[self.varied], settings, f"{self.varied}_{instances}x{rows}")


_FITTED = 4
CASES = [
    Case("resnet50", "resnet50", rows=4, write=REFERENCES["resnet50"].write),
    Case("minilm", "minilm", write=REFERENCES["minilm"].write),
    Case("trees", "trees", threads=0, write=REFERENCES["trees"].write),
    Case("ocr", "ocr_read", rows=0, write=REFERENCES["ocr"].write),
    Case("add_sub", "add_sub"),
    Case("busy", "busy", rows=0),
    Case("deep_1_0", "deep_1_0"),
    Case("add_sub_py", "add_sub_py", threads=0),
    Case("chain", "add_sub"),
]


@dataclass(frozen=True)
class Run:
    """What was measured for a case."""

    model: str
    cores: int
    configs: Mapping[str, ModelConfig]
    turns: Sequence[Sequence[Measured]]
    """Of each point; the points of the fit come first."""


@dataclass(frozen=True)
class Comparison:
    """A point that the fit has not seen."""

    model: str
    row: Row
    predicted: Prediction

    @property
    def is_judged(self) -> bool:
        """Whether the server and not the load generator made the latencies of an open loop."""
        return not self.predicted.point.request_rate or self.row.generator.limited_by != "generator"

    @property
    def throughput_error(self) -> float:
        """Relative to the measured value."""
        return self.predicted.throughput / self.row.throughput.value - 1

    @property
    def p50_error(self) -> float:
        """Relative to the measured value."""
        return self.predicted.latency_us[50] / self.row.latency.percentiles[50].value - 1

    def __str__(self) -> str:
        """Return a row of the table."""
        point, row, p50_us = self.predicted.point, self.row, self.row.latency.percentiles[50].value
        load = f"concurrency {point.concurrency}" if point.concurrency else f"{point.request_rate:g}/s"
        note = "" if self.is_judged else "; limited by the load generator"
        return (
            f"| {point.variants[0].name} of {self.model}, {load}{note} "
            f"| {row.throughput.value:.0f} | {self.predicted.throughput:.0f} | {self.throughput_error:+.0%} "
            f"| {p50_us:.0f} | {self.predicted.latency_us[50]:.0f} | {self.p50_error:+.0%} |"
        )


async def measure(case: Case, repository: Path, turns: int, seconds: float) -> Run:
    """Return all turns of each point."""
    plan = case.write(repository) or ModelLoad(case.model)
    async with LiveInstrument(OwnServer([repository]), [plan]) as instrument:
        configs = dict(instrument.configs)
        lone, saturated, *_ = case.points(configs, 1.0)
        await instrument.measure(saturated, _WARM_UP_S)
        alone_s = 1.0 / (await instrument.measure(lone, _MOST_S)).rows[case.model].throughput.value
        seconds = min(max(seconds, _LEAST_REQUESTS * alone_s), max(seconds, _MOST_S))
        highest = (await instrument.measure(saturated, seconds)).rows[case.model].throughput.value
        points = case.points(configs, _RATE_SHARE * highest)
        found: list[list[Measured]] = [[] for _ in points]
        for _ in range(turns):
            for index, point in enumerate(points):
                found[index].append(await instrument.measure(point, seconds))
    return Run(case.model, len(os.sched_getaffinity(0)), configs, found)


def _least_disturbed(model: str, turns: Sequence[Measured]) -> Measured:
    usable = [each for each in turns if not each.error]
    if not usable:
        raise RuntimeError(f"{turns[0].point.key}: {turns[0].error}")
    if usable[0].point.request_rate:
        return min(usable, key=lambda each: each.rows[model].latency.percentiles[50].value)
    return max(usable, key=lambda each: each.rows[model].throughput.value)


def compare(run: Run) -> list[Comparison]:
    """Return the points that the fit has not seen, with what it predicts."""
    measured = [_least_disturbed(run.model, each) for each in run.turns]
    fitted = fit(measured[:_FITTED], run.configs, run.cores)
    return [Comparison(run.model, each.rows[run.model], predict(each.point, fitted)) for each in measured[_FITTED:]]


def _measured(models: Sequence[str], turns: int, seconds: float) -> Iterator[Run]:
    for case in CASES:
        if case.model in models:
            with tempfile.TemporaryDirectory() as directory:
                repository = Path(directory, "models")
                repository.mkdir()
                yield asyncio.run(measure(case, repository, turns, seconds))


def _report(runs: Iterable[Run]) -> list[Run]:
    """Print what was predicted and measured; return the runs."""
    print("| point | measured /s | predicted /s | | p50 us | predicted us | |")
    print("|---|---|---|---|---|---|---|")
    kept, judged = [], []
    for run in runs:
        kept.append(run)
        for each in compare(run):
            print(each, flush=True)
            if each.is_judged:
                judged.append(each)
    throughputs = sum(abs(each.throughput_error) <= _MOST_THROUGHPUT_ERROR for each in judged)
    p50s = sum(abs(each.p50_error) <= _MOST_P50_ERROR for each in judged)
    print(f"of {len(judged)} points the throughput of {throughputs} is within 10 %, the p50 of {p50s} within 15 %")
    return kept


def main() -> int:
    """Run the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[each.model for each in CASES])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--replay", type=Path)
    arguments = parser.parse_args()
    if arguments.replay:
        _report(run for run in pickle.loads(arguments.replay.read_bytes()) if run.model in arguments.models)
        return 0
    runs = _report(_measured(arguments.models, arguments.turns, arguments.seconds))
    if arguments.save:
        arguments.save.write_bytes(pickle.dumps(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Predictions of `naiad analyze` against measurements: `python -m bench.analyze_prediction [MODEL ...]`.

For each model a few points are measured to fit the costs, and three other points, which the fit has not seen, to
compare with: another load, another configuration, an open loop. All points are measured in turns, and the comparison
is with the median of the turns. With `--save FILE` the measurements are kept, for `--replay FILE` to predict again.
"""

import argparse
import asyncio
import os
import pickle
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from bench import models as bench_models
from naiad.analyze.live.instrument import LiveInstrument
from naiad.analyze.live.server import OwnServer
from naiad.analyze.measurement import Measured
from naiad.analyze.prediction.fit import fit
from naiad.analyze.prediction.fitted import predict
from naiad.analyze.space import Point, Variant
from naiad.analyze.variants.settings import make_variant
from naiad.config.model_config_pb2 import ModelConfig
from naiad.perf.plan import ModelPlan

_TURNS = 3
_RATE_SHARE = 0.6
"""Of the highest throughput measured for the fit: the rate of the open loop."""
_THREADS = "parameters.intra_op_thread_count"
_CNN_CONFIG = """
name: "cnn"
backend: "onnxruntime"
max_batch_size: 8
dynamic_batching { }
input [ { name: "image" data_type: TYPE_FP32 dims: [ 3, 64, 64 ] } ]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 10 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


@dataclass(frozen=True)
class Case:
    """A model, the points for the fit, and the others: settings of the varied model and a concurrency."""

    model: str
    varied: str
    fits: Sequence[tuple[Mapping[str, Any], int]]
    checks: Sequence[tuple[Mapping[str, Any], int]]
    """A concurrency of 0 is the open loop."""


def _settings(instances: int, rows: int, **more: Any) -> dict[str, Any]:
    return {"instance_group.count": instances, "max_batch_size": rows, **more}


def _case(model: str, varied: str = "", *, rows: int = 16, threads: bool = True) -> Case:
    more = {_THREADS: "1"} if threads else {}
    return Case(
        model,
        varied or model,
        [
            (_settings(1, rows, **more), 1),
            (_settings(1, rows, **more), 2 * rows),
            (_settings(1, 4, **more), 16),
            (_settings(2, rows, **more), 2 * rows),
        ],
        [
            (_settings(1, rows, **more), 4),
            (_settings(2, rows // 2, **more), rows),
            (_settings(1, rows, **more), 0),
        ],
    )


CASES = [
    _case("add_sub"),
    _case("cnn", rows=8),
    _case("deep_1_0"),
    _case("add_sub_py", threads=False),
    _case("chain", "add_sub"),
]


def cnn() -> onnx.ModelProto:
    """Return a residual network of three blocks for small pictures; some milliseconds each on one core."""
    net = bench_models._ResNet()
    last, channels = net.relu(net.conv("image", "stem", (3, 32), 3, 2)), 32
    for number, inner in enumerate((16, 32, 64)):
        last = net.bottleneck(last, f"block{number}", (channels, inner, 4 * inner), 2, project=True)
        channels = 4 * inner
    net.classify(last, channels, 10)
    inputs = [bench_models._tensor("image", ["batch", 3, 64, 64])]
    outputs = [bench_models._tensor("logits", ["batch", 10])]
    return bench_models._model(onnx.helper.make_graph(net.nodes, "cnn", inputs, outputs, net.weights))


def write_repository(repository: Path) -> None:
    """Write the models of all cases."""
    bench_models.write_repository(repository, ["add_sub", "add_sub_py", "chain"])
    bench_models.write_deep(repository)
    bench_models._write(repository, "cnn", _CNN_CONFIG, "model.onnx", cnn().SerializeToString())


async def measure(
    case: Case, repository: Path, seconds: float
) -> tuple[dict[str, ModelConfig], list[list[Measured]]]:
    """Return the configurations, and the turns of each point, first those for the fit."""
    async with LiveInstrument(OwnServer([repository]), [ModelPlan(case.model)]) as instrument:
        configs = dict(instrument.configs)
        fits = [_point(configs, case.varied, *each) for each in case.fits]
        turns: list[list[Measured]] = [[] for _ in (*case.fits, *case.checks)]
        for index, point in enumerate(fits):
            await instrument.measure(point, 0.3)
            turns[index].append(await instrument.measure(point, seconds))
        best = max(turn[0].rows[case.model].throughput.value for turn in turns[:2])
        checks = [_point(configs, case.varied, *each, rate=_RATE_SHARE * best) for each in case.checks]
        points = [*fits, *checks]
        for _ in range(_TURNS):
            for index, point in enumerate(points):
                if len(turns[index]) < _TURNS:
                    turns[index].append(await instrument.measure(point, seconds))
    return configs, turns


def _point(
    configs: Mapping[str, ModelConfig], model: str, settings: Mapping[str, Any], concurrency: int, rate: float = 0.0
) -> Point:
    name = f"{model}_{settings['instance_group.count']}x{settings['max_batch_size']}"
    variant: Variant = make_variant(configs[model], settings, name)
    if concurrency:
        return Point((variant,), concurrency=concurrency)
    return Point((variant,), request_rate=round(rate))


def report(case: Case, configs: Mapping[str, ModelConfig], turns: Sequence[Sequence[Measured]], cores: int) -> None:
    """Print predicted and measured figures of each point; those of the fit, too, in brackets."""
    count, began_s = len(case.fits), time.process_time()
    fitted = fit([each for turn in turns[:count] for each in turn], configs, cores)
    print(f"fit in {time.process_time() - began_s:.1f} s: error {fitted.error_share:.1%}", end="")
    for (model, threads), each in fitted.batches.items():
        cost = each.cost
        print(f"; {model}, {threads} threads: {cost.fixed_ns / 1e3:.0f} + {cost.row_ns / 1e3:.1f} n us", end="")
        print(f", slowdown {cost.slowdown:.2f}, wake-up {cost.wake_up_ns / 1e3:.0f} us", end="")
    for request in fitted.requests.values():
        parts = (request.wake_ns, request.pass_ns, request.batch_ns, request.delay_ns)
        print("; wake, pass, batch, delay " + ", ".join(f"{part / 1e3:.0f}" for part in parts), "us")
    for index, turn in enumerate(turns):
        point = turn[0].point
        rows = [each.rows[case.model] for each in turn if not each.error]
        throughputs = [row.throughput.value for row in rows]
        medians_us = [row.latency.percentiles[50].value for row in rows]
        measured, p50_us = statistics.median(throughputs), statistics.median(medians_us)
        began_s = time.process_time()
        predicted = predict(point, fitted)
        took_ms = (time.process_time() - began_s) * 1e3
        label = f"{point.variants[0].name} " + (
            f"c={point.concurrency}" if point.concurrency else f"{point.request_rate:g}/s"
        )
        print(
            f"| {'(' + label + ')' if index < count else label} | {measured:.0f} "
            f"| {predicted.throughput:.0f} | {predicted.throughput / measured - 1:+.1%} "
            f"| {p50_us:.0f} | {predicted.latency_us[50]:.0f} | {predicted.latency_us[50] / p50_us - 1:+.1%} "
            f"| {max(throughputs) / min(throughputs) - 1:.0%} | {took_ms:.0f} |",
            flush=True,
        )


def main() -> None:
    """Run the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=[each.model for each in CASES])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--save", type=Path, help="keep the measurements, as FILE.MODEL")
    parser.add_argument("--replay", type=Path, help="predict from measurements that were kept")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print("| point | measured /s | predicted /s | | p50 us | predicted us | | between turns | ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        write_repository(Path(directory))
        for case in CASES:
            if case.model not in arguments.models:
                continue
            if arguments.replay:
                configs, turns = pickle.loads(Path(f"{arguments.replay}.{case.model}").read_bytes())
            else:
                configs, turns = asyncio.run(measure(case, Path(directory), arguments.seconds))
            if arguments.save:
                Path(f"{arguments.save}.{case.model}").write_bytes(pickle.dumps((configs, turns)))
            report(case, configs, turns, cores)


if __name__ == "__main__":
    main()

"""A brute grid of 41 variants of a small model, measured on one server process.

    python -m bench.analyze_grid [--model add_sub] [--seconds 1.5] [--concurrency 16]

The grid is Model Analyzer's: the configuration of the repository, and max_batch_size 1 to 128 with 1 to 5 instances.
Prints a line per variant, the wall time, the share of it that is not measurement, and the server's process ids: the
process ends with 1 when there was more than one, when a variant was not measured, or after 300 s.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from bench.models import write_repository
from naiad.tools.analyze.live import LiveInstrument, OwnServer
from naiad.tools.analyze.measurement import Measured
from naiad.tools.analyze.space import Dimension, Point
from naiad.tools.analyze.variants import combinations
from naiad.tools.perf.plan import ModelLoad

LIMIT_S = 300.0


async def measure_grid(repository: Path, arguments: argparse.Namespace) -> tuple[list[Measured], set[int]]:
    """Measure all variants in turn; return the measurements and the server's process ids."""
    model, pids = arguments.model, set()
    measurements = []
    async with LiveInstrument(OwnServer([repository]), [ModelLoad(model)]) as instrument:
        dimensions = [
            Dimension(model, "max_batch_size", tuple(2**power for power in range(8))),
            Dimension(model, "instance_group.count", tuple(range(1, 6))),
        ]
        for variant in combinations(instrument.configs[model], dimensions).all:
            point = Point((variant,), concurrency=arguments.concurrency)
            measured = await instrument.measure(point, arguments.seconds)
            pids.add(instrument.server.pid)
            measurements.append(measured)
            print(_line(model, measured), flush=True)
    return measurements, pids


def _line(model: str, measured: Measured) -> str:
    variant = measured.point.variants[0]
    if measured.error:
        return f"{variant.name:28} {variant.summary:44} {measured.error}"
    metrics = measured.metrics[model]
    return (
        f"{variant.name:28} {variant.summary:44} {metrics['perf_throughput'].value:9.0f}/s  "
        f"p99 {metrics['perf_latency_p99'].value:7.2f} ms  {metrics['cpu_utilization'].value:5.2f} cores  "
        f"{metrics['cpu_used_ram'].value:6.0f} MB  took {measured.duration_s:.2f} s"
    )


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="add_sub")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--concurrency", type=int, default=16)
    arguments = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        write_repository(Path(directory), [arguments.model])
        measurements, pids = asyncio.run(measure_grid(Path(directory), arguments))
    wall_s = time.monotonic() - began_s
    failed = [each for each in measurements if each.error]
    measuring_s = sum(row.duration_s for each in measurements for row in each.rows.values())
    print(
        f"{len(measurements)} variants in {wall_s:.0f} s, {measuring_s:.0f} s of it measured load; "
        f"server process ids: {sorted(pids)}; {len(failed)} not measured"
    )
    return 1 if failed or len(pids) != 1 or wall_s > LIMIT_S else 0


if __name__ == "__main__":
    sys.exit(main())

"""What an open page costs the server, and how soon it is there.

    python -m bench.live_page                            50 models under load, one page, about three minutes
    python -m bench.live_page --models 1000 --pages 4
    python -m bench.live_page --flags=--processes=2 --detail
    python -m bench.live_page --rounds 0 --paint 10      how soon Chromium shows it; needs `npm ci` in dashboard/

Clients send requests at a fixed rate, to all models in turn. Many short phases with and without pages alternate, in
pairs of random order, so that other work of the machine meets both. The latencies of all phases of a kind are pooled,
and so is the CPU time of all processes of the server. The 95 % intervals are of a bootstrap that draws pairs: the
latencies of one phase depend on each other, and latencies of different pairs hardly. The pages are read by a process
of their own, so that the generator of the requests does not pay for them. A ratio whose interval has 1.0
in it, or a difference with 0.0 in it, is no finding. The rate is met in all phases, or the figures are not valid.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from bench.live_reader import LiveReader
from bench.process_tree import CpuMeter
from naiad.client import Client
from naiad.tools.process.own_server import LOOPBACK, ServeProcess

_START_S = 300.0
_SETTLE_S = 0.7
"""From the connections of the pages to the beginning of a phase."""
_DRAWS = 1000
_DASHBOARD = Path(__file__).resolve().parents[1] / "dashboard"
_CONFIG = """
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
_ROW = {"INPUT0": np.ones((1, 16), np.float32)}


class Phase(NamedTuple):
    """What was measured in one phase."""

    cpu_s: float
    """CPU seconds of the server."""
    seconds: float
    latencies_ms: "np.ndarray[Any, np.dtype[np.float64]]"


class Pair(NamedTuple):
    """Two phases that follow each other, in either order."""

    without: Phase
    with_pages: Phase


def write_models(repository: Path, count: int) -> list[str]:
    """Write identity models and return their names."""
    names = [f"identity_{number:04}" for number in range(count)]
    for name in names:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(_CONFIG)
    return names


async def load(client: Client, names: Sequence[str], rate: float, seconds: float) -> list[float]:
    """Send requests at a rate for some seconds; return their latencies in ms, from the moment each was due."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    began = loop.time()

    async def send(number: int) -> None:
        due = began + number / rate
        await client.infer(names[number % len(names)], _ROW)
        latencies.append((loop.time() - due) * 1e3)

    tasks = set()
    for number in range(int(rate * seconds)):
        pause = began + number / rate - loop.time()
        if pause > 0:
            await asyncio.sleep(pause)
        tasks.add(asyncio.ensure_future(send(number)))
    await asyncio.gather(*tasks)
    return latencies


async def measure_phase(
    client: Client, pid: int, reader: LiveReader, names: Sequence[str], options: Any, pages: int
) -> Phase:
    """Measure with some pages open."""
    await reader.open(pages)
    await asyncio.sleep(_SETTLE_S)
    meter, began = CpuMeter(pid), time.monotonic()
    latencies = await load(client, names, options.rate, options.seconds)
    return Phase(meter.seconds(), time.monotonic() - began, np.asarray(latencies))


async def measure(server: ServeProcess, urls: dict[str, str], names: Sequence[str], options: Any) -> list[Pair]:
    """Return pairs of phases."""
    order, pairs = random.Random(0), []
    model = names[0] if options.detail else ""
    async with (
        Client(f"grpc://{urls['grpc']}") as client,
        LiveReader(urls["http"], model, options.interval_ms) as reader,
    ):
        await load(client, names, options.rate, 3.0)
        for number in range(options.rounds):
            found = {}
            for pages in order.sample((0, options.pages), 2):
                found[pages] = await measure_phase(client, server.pid, reader, names, options, pages)
            pair = Pair(found[0], found[options.pages])
            pairs.append(pair)
            p99s = " and ".join(f"{np.percentile(phase.latencies_ms, 99):.2f}" for phase in pair)
            print(f"pair {number + 1}: p99 {p99s} ms without and with", flush=True)
    return pairs


def pooled_p99_ms(phases: Sequence[Phase]) -> float:
    """Return the p99 of the latencies of all phases."""
    return float(np.percentile(np.concatenate([phase.latencies_ms for phase in phases]), 99))


def p99_ratio(pairs: Sequence[Pair]) -> float:
    """Return the pooled p99 with pages by that without; 1.0 is no difference."""
    return pooled_p99_ms([pair.with_pages for pair in pairs]) / pooled_p99_ms([pair.without for pair in pairs])


def cores(phases: Sequence[Phase]) -> float:
    """Return CPU seconds of the server per second."""
    return sum(phase.cpu_s for phase in phases) / sum(phase.seconds for phase in phases)


def page_cores(pairs: Sequence[Pair]) -> float:
    """Return what the pages add to the cores in use; 0.0 is no difference."""
    return cores([pair.with_pages for pair in pairs]) - cores([pair.without for pair in pairs])


def interval(pairs: Sequence[Pair], figure: Callable[[Sequence[Pair]], float]) -> list[float]:
    """Return the 95 % interval of a figure, by a bootstrap of the pairs."""
    draws = np.random.default_rng(0).integers(0, len(pairs), (_DRAWS, len(pairs)))
    values = [figure([pairs[number] for number in draw]) for draw in draws]
    return [round(float(bound), 4) for bound in np.percentile(values, [2.5, 97.5])]


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the figures of all pairs."""
    without = [pair.without for pair in pairs]
    return {
        "pairs": len(pairs),
        "cores_without": round(cores(without), 4),
        "page_cores": round(page_cores(pairs), 4),
        "page_cores_95": interval(pairs, page_cores),
        "p99_ms_without": round(pooled_p99_ms(without), 3),
        "p99_ratio": round(p99_ratio(pairs), 4),
        "p99_ratio_95": interval(pairs, p99_ratio),
        "least_rate": round(min(len(phase.latencies_ms) / phase.seconds for pair in pairs for phase in pair), 1),
    }


def measure_paint(url: str, count: int) -> dict[str, Any]:
    """Open the page in new profiles of Chromium; return medians in ms since the address was entered."""
    node = shutil.which("node")
    if node is None:
        raise SystemExit("--paint needs Node.js")
    command = [node, "tests/first_paint.mjs", url, str(count)]
    done = subprocess.run(command, cwd=_DASHBOARD, env=os.environ, stdout=subprocess.PIPE, check=True, timeout=600)
    rows = json.loads(done.stdout)
    return {f"{name}_ms": round(median(row[name] for row in rows), 1) for name in rows[0]}


def main() -> None:
    """Measure and print a JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--pages", type=int, default=1)
    parser.add_argument("--interval-ms", type=int, default=1000, help="250 makes a small cost visible, times four")
    parser.add_argument("--detail", action="store_true", help="the pages show one of the models in detail")
    parser.add_argument("--rate", type=float, default=500.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a phase")
    parser.add_argument("--rounds", type=int, default=20, help="pairs of phases; 0 for none")
    parser.add_argument("--paint", type=int, default=0, metavar="COUNT", help="times that Chromium opens the page")
    parser.add_argument("--flags", action="append", default=[], help="of the server")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        names = write_models(Path(directory), options.models)
        server = ServeProcess([f"--model-repository={directory}", "--log-info=false", *LOOPBACK, *options.flags])
        try:
            urls = dict(server.wait_ready(_START_S).urls)
            if options.paint:
                found |= measure_paint(f"{urls['http']}/", options.paint)
            if options.rounds:
                found |= summary(asyncio.run(measure(server, urls, names, options)))
        finally:
            server.close()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

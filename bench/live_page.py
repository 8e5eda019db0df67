"""What an open page costs the server: its CPU time and the p99 of requests, with and without live streams.

    python -m bench.live_page                            50 models under load, one page, about two minutes
    python -m bench.live_page --models 1000 --pages 4
    python -m bench.live_page --flags=--processes=2 --detail

Clients send requests at a fixed rate, to all models in turn. Phases with and without pages alternate, so that other
work of the machine meets both. CPU is of all processes of the server, in shares of a core; the cost of a page is the
median of the differences between neighbouring phases. The rate is met in all phases, or the figures are not valid.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from bench.process_tree import CpuMeter
from naiad.client import Client
from naiad.tools.process.own_server import LOOPBACK, ServeProcess

_START_S = 300.0
_CONFIG = """
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
_ROW = {"INPUT0": np.ones((1, 16), np.float32)}


class Phase(NamedTuple):
    """What was measured in one phase."""

    cores: float
    """CPU seconds of the server per second."""
    p99_ms: float
    rate: float
    """Responses per second."""


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


async def read_page(url: str, model: str, interval_ms: int) -> None:
    """Read a live stream until it is cancelled."""
    async for _ in Client(url).live(model, interval_ms=interval_ms):
        continue


async def measure(server: ServeProcess, urls: dict[str, str], names: Sequence[str], options: Any) -> list[Any]:
    """Return the phases without and with pages, in pairs."""
    pairs = []
    async with Client(f"grpc://{urls['grpc']}") as client:
        await load(client, names, options.rate, 3.0)
        for _ in range(options.rounds):
            pair = []
            for page_count in (0, options.pages):
                model = names[0] if options.detail else ""
                pages = [
                    asyncio.ensure_future(read_page(urls["http"], model, options.interval_ms))
                    for _ in range(page_count)
                ]
                await asyncio.sleep(1.5)
                meter, began = CpuMeter(server.pid), time.monotonic()
                latencies = await load(client, names, options.rate, options.seconds)
                seconds = time.monotonic() - began
                cores = meter.seconds() / seconds
                pair.append(Phase(cores, float(np.percentile(latencies, 99)), len(latencies) / seconds))
                for page in pages:
                    page.cancel()
            pairs.append(pair)
            print(f"without {pair[0]}, with {pair[1]}", flush=True)
    return pairs


def main() -> None:
    """Measure and print a JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--pages", type=int, default=1)
    parser.add_argument("--interval-ms", type=int, default=1000, help="250 makes a small cost visible, times four")
    parser.add_argument("--detail", action="store_true", help="the pages show one of the models in detail")
    parser.add_argument("--rate", type=float, default=500.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a phase")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flags", action="append", default=[], help="of the server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        names = write_models(Path(directory), options.models)
        server = ServeProcess([f"--model-repository={directory}", "--log-info=false", *LOOPBACK, *options.flags])
        try:
            urls = dict(server.wait_ready(_START_S).urls)
            pairs = asyncio.run(measure(server, urls, names, options))
        finally:
            server.close()
    summary = {
        "cores_without": median(without.cores for without, _ in pairs),
        "cores_with": median(with_.cores for _, with_ in pairs),
        "page_cores": median(with_.cores - without.cores for without, with_ in pairs),
        "p99_ratio": median(with_.p99_ms / without.p99_ms for without, with_ in pairs),
        "least_rate": min(phase.rate for pair in pairs for phase in pair),
    }
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()

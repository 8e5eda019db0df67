"""What formats, instances and batches bring to a PyTorch model behind FastAPI, as `naiad analyze` finds them.

    python -m bench.analyze_formats [--concurrency 16] [--p99-ms 250] [--seconds 0.6] [--rounds 5]

The classifier (`bench.text_classifier`) begins as many services do: FP32 in PyTorch, called in a handler of FastAPI,
one instance, one thread, no batches. Formats: TorchScript, ONNX, OpenVINO, ONNX with dynamic int8. The mode
`predict` searches threads, instances, batches and delays of each format under the limit. Then FastAPI and the steps
to the winner are measured in turns, with the same JSON from the same clients; the parts are ratios of medians.
It needs torch, onnx, onnxruntime, openvino, fastapi and uvicorn.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from socket import socket
from typing import Any

from bench.text_classifier import FORMATS, VOCABULARY, token_ids, write_formats
from naiad.backend.cores import usable_cores
from naiad.tools.analyze.goal import Bound, Goal
from naiad.tools.analyze.live import Configurations, LiveInstrument, OwnServer
from naiad.tools.analyze.live.server import make_client
from naiad.tools.analyze.measurement import Ranked
from naiad.tools.analyze.search import SearchSettings, search
from naiad.tools.analyze.simulation import LearnedPredictor
from naiad.tools.analyze.space import Space, Variant
from naiad.tools.analyze.variants import Machine, combinations, default_dimensions, make_variant
from naiad.tools.perf.plan import InputSettings, ModelLoad, Protocol

_APPLICATION = """
import numpy as np
import torch
from fastapi import FastAPI, Request
from bench.text_classifier import TextClassifier

torch.set_num_threads(1)
app, model = FastAPI(), TextClassifier().eval()


@app.post("/v2/models/fastapi/infer")
async def infer(request: Request) -> dict:
    (ids,) = (await request.json())["inputs"]
    with torch.inference_mode():
        scores = model(torch.tensor(ids["data"]).reshape(ids["shape"]))
    return {"outputs": [{"name": "scores", "datatype": "FP32", "shape": list(scores.shape),
                         "data": scores.flatten().tolist()}]}
"""
_BATCHING = ("max_batch_size", "dynamic_batching", "parameters.adaptive_batching")
_START_TIMEOUT_S = 60.0


@contextmanager
def fastapi_service(folder: Path) -> Any:
    """Run the application with uvicorn; give its address."""
    (folder / "application.py").write_text(_APPLICATION)
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "uvicorn", "application:app", "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "error", "--app-dir", str(folder)])
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/docs").close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def throughput(address: str, model: str, concurrency: int, seconds: float) -> float:
    """Return the answers/s of a closed loop of JSON requests of one row."""
    ids = token_ids(1)
    tensor = {"name": "ids", "datatype": "INT64", "shape": list(ids.shape), "data": ids.ravel().tolist()}
    body = json.dumps({"inputs": [tensor]})

    def ask(end_s: float) -> int:
        connection, count = HTTPConnection(address), 0
        while time.monotonic() < end_s:
            connection.request("POST", f"/v2/models/{model}/infer", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                raise RuntimeError(f"{model}: {answer.decode()[:500]}")
            count += 1
        connection.close()
        return count

    with ThreadPoolExecutor(concurrency) as clients:
        list(clients.map(ask, [time.monotonic() + 0.3] * concurrency))  # Warm up.
        began_s = time.monotonic()
        counts = list(clients.map(ask, [began_s + seconds] * concurrency))
    return sum(counts) / (time.monotonic() - began_s)


async def best_of(name: str, instrument: LiveInstrument, arguments: argparse.Namespace) -> Ranked | None:
    """Search the configurations of a format."""
    config = instrument.configs[name]
    dimensions = default_dimensions(config, Machine(usable_cores()), batch_sizes=(1, config.max_batch_size))
    space = Space(
        (name,), dimensions, (arguments.concurrency,), variants={name: combinations(config, dimensions).all}
    )
    goals = {name: Goal(constraints={"perf_latency_p99": Bound(maximum=arguments.p99_ms)})}
    predictor = LearnedPredictor(instrument.configs, usable_cores())
    settings = SearchSettings(seconds=arguments.seconds)
    ranking = await search("predict", space, goals, instrument, settings, predictor=predictor)
    count = sum(each.repeats for each in ranking.measurements)
    if ranking.winner is None:
        print(f"{name:12} none of {count} measurements meets the limit: {ranking.reason}", flush=True)
        return None
    metrics = ranking.winner.measured.metrics[name]
    print(
        f"{name:12} {metrics['perf_throughput'].value:7.1f}/s p99 {metrics['perf_latency_p99'].value:6.1f} ms, "
        f"{count} measurements of {len(space.variants[name])} variants: "
        f"{ranking.winner.measured.point.variants[0].summary}",
        flush=True,
    )
    return ranking.winner


def without_batches(variant: Variant) -> dict[str, Any]:
    """Return the settings of a variant that concern instances and threads."""
    return {field: value for field, value in variant.settings.items() if not field.startswith(_BATCHING)}


async def steps_to(winner: Variant, instrument: LiveInstrument) -> Mapping[str, Variant]:
    """Return the steps from the converted model as it is to the winner, by what each adds."""
    first, config = instrument.configs["torchscript"], instrument.configs[winner.model]
    return {
        "naiad, TorchScript": make_variant(first, {}, "torchscript"),
        f"format {winner.model}": make_variant(config, {}, "format"),
        "instances and threads": make_variant(config, without_batches(winner), "instances"),
        "batches": winner,
    }


async def compare(arguments: argparse.Namespace) -> int:
    """Search and compare; return the exit status."""
    with tempfile.TemporaryDirectory() as directory:
        repository = Path(directory, "models")
        difference = write_formats(repository)
        print(f"int8 differs by at most {difference:.1%} of the largest score")
        plans = [ModelLoad(name, inputs=InputSettings(integer_bounds={"ids": VOCABULARY})) for name in FORMATS]
        winners: list[tuple[float, Variant]] = []
        for plan in plans:
            async with LiveInstrument(OwnServer([repository]), [plan]) as instrument:
                found = await best_of(plan.name, instrument, arguments)
            if found is not None:
                value = found.measured.metrics[plan.name]["perf_throughput"].value
                winners.append((value, found.measured.point.variants[0]))
        if not winners:
            return 1
        winner = max(winners, key=lambda entry: entry[0])[1]
        chosen = [plan for plan in plans if plan.name in ("torchscript", winner.model)]
        with fastapi_service(Path(directory)) as fastapi:
            async with LiveInstrument(OwnServer([repository], [], Protocol.HTTP), chosen) as instrument:
                report(await measure_steps(fastapi, instrument, winner, arguments))
    return 0


async def measure_steps(
    fastapi: str, instrument: LiveInstrument, winner: Variant, arguments: argparse.Namespace
) -> dict[str, list[float]]:
    """Measure FastAPI and each step in turns."""
    steps = await steps_to(winner, instrument)
    found: dict[str, list[float]] = {name: [] for name in ("FastAPI, PyTorch", *steps)}
    address = instrument.server.service.url.split("//")[1]
    async with make_client(instrument.server.service, 60.0) as client:
        configurations = Configurations(client, instrument.server.service.url, None)
        await configurations.read(list(instrument.configs))
        for _ in range(arguments.rounds):
            load = arguments.concurrency, 2 * arguments.seconds
            found["FastAPI, PyTorch"].append(await asyncio.to_thread(throughput, fastapi, "fastapi", *load))
            for name, variant in steps.items():
                await configurations.apply([variant])
                found[name].append(await asyncio.to_thread(throughput, address, variant.model, *load))
    return found


def report(found: Mapping[str, list[float]]) -> None:
    """Print medians, and what each step brings."""
    medians = {name: statistics.median(values) for name, values in found.items()}
    first = before = next(iter(medians.values()))
    for name, value in medians.items():
        print(f"{name:24} {value:8.1f}/s  step {value / before:5.2f}  together {value / first:5.2f}")
        before = value


def main() -> int:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--p99-ms", type=float, default=250.0)
    parser.add_argument("--seconds", type=float, default=0.6)
    parser.add_argument("--rounds", type=int, default=5)
    return asyncio.run(compare(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())

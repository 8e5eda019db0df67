"""Many models, memory for some of them, requests with Zipf popularity: what models on demand cost.

    python -m bench.on_demand                                1,000 models of 10 MB, 1 GB, ten minutes
    python -m bench.on_demand --models 200 --megabytes 4 --budget 200MB --seconds 60

Clients send one request after the other, each to a model that they draw. The command prints failed requests, loads,
the hit rate (requests without a load of their own) beside that of an ideal LRU, which has the same order of requests
and room for as many models as the budget has of the measured size, the growth of the server against the budget, and
the p99 of the most popular models. These are loaded before the clock starts and stay, so that it shows what loads of
others cost them. Then a server that has only these, loaded at start, gets requests for them. The CPU of the server
for each load, with the requests that wait for it, says more than times do on a machine that has other work.

With `--flags=--backend-config=onnxruntime,prepared-models-bytes=20GB --own-files` each model has a prepared form of
its own, in $NAIAD_CACHE.

    python -m bench.on_demand --first-answer --models 40 --megabytes 0.05

measures instead the first answer of each cold model beside a bare `onnxruntime.InferenceSession` of the same file.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import tempfile
import time
import urllib.request
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from bench.process_tree import CpuMeter, memory
from naiad.client import Client
from naiad.core.errors import InferError
from naiad.options.on_demand_options import budget_bytes
from naiad.tools.process.own_server import LOOPBACK, ServeProcess

_START_S = 600.0
_POPULAR = 8
"""Models that stay loaded, whose p99 is compared."""
_STAYS = 'parameters { key: "min_residence_s" value { string_value: "86400" } }'
_ROW = {"X": np.ones((1, 4), np.float32)}


def write_models(
    root: Path, count: int, megabytes: float, popular: int = _POPULAR, *, are_one_file: bool = True
) -> list[str]:
    """Write models with weights of this size, and return their names; the `popular` ones stay.

    `are_one_file`: they are links to one file, which also have one prepared form.
    """
    size = max(1, int((megabytes * 1e6 / 4) ** 0.5))
    nodes = [helper.make_node("MatMul", ["X", "first"], ["H"]), helper.make_node("MatMul", ["H", "second"], ["Y"])]
    rng = np.random.default_rng(0)
    weights = {
        "first": rng.standard_normal((4, size)).astype(np.float32),
        "second": rng.standard_normal((size, size)).astype(np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "weights",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["N", size])],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    proto.ir_version = 8
    names = [f"m{number:04}" for number in range(count)]
    for name in names:
        target = root / name / "1" / "model.onnx"
        target.parent.mkdir(parents=True)
        if name in names[:popular]:
            (root / name / "config.pbtxt").write_text(_STAYS)
        if name == names[0] or not are_one_file:
            proto.doc_string = name
            onnx.save(proto, target)
        else:
            os.link(root / names[0] / "1" / "model.onnx", target)
    return names


@dataclass
class Traffic:
    """What the clients have sent and seen."""

    order: list[str] = field(default_factory=list)
    latencies_ms: list[tuple[str, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)

    def p99_ms(self, names: Sequence[str]) -> float:
        """Return the p99 of these models."""
        return float(np.percentile([ms for name, ms in self.latencies_ms if name in names], 99))


async def send(url: str, pid: int, names: Sequence[str], clients: int, seconds: float, exponent: float) -> Traffic:
    """Send requests for some seconds; the first name is the most popular one."""
    traffic = Traffic()
    totals = list(itertools.accumulate(1 / (rank + 1) ** exponent for rank in range(len(names))))
    draws = random.Random(7)
    end_s = time.monotonic() + seconds

    async def run(client: Client) -> None:
        while time.monotonic() < end_s:
            (name,) = draws.choices(names, cum_weights=totals)
            traffic.order.append(name)
            began_s = time.monotonic()
            try:
                await client.infer(name, _ROW)
            except InferError as error:
                traffic.failures.append(error.message)
            traffic.latencies_ms.append((name, (time.monotonic() - began_s) * 1e3))

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.5)
            traffic.resident_bytes.append(memory(pid).rss)

    async with Client(url, timeout_s=120.0) as client:
        watching = asyncio.ensure_future(watch())
        await asyncio.gather(*(run(client) for _ in range(clients)))
        watching.cancel()
    return traffic


async def warm_up(url: str, names: Sequence[str]) -> None:
    """Have models loaded."""
    async with Client(url, timeout_s=120.0) as client:
        for name in names:
            await client.infer(name, _ROW)


def ideal_hit_rate(order: Sequence[str], room: int) -> float:
    """Return the hit rate of an LRU with room for a number of models."""
    kept: OrderedDict[str, None] = OrderedDict()
    hits = 0
    for name in order:
        if name in kept:
            hits += 1
            kept.move_to_end(name)
            continue
        kept[name] = None
        if len(kept) > room:
            kept.popitem(last=False)
    return hits / len(order)


def metrics(url: str) -> dict[str, float]:
    """Return the metrics about models on demand."""
    with urllib.request.urlopen(url.removesuffix("/metrics") + "/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = [line.rpartition(" ") for line in lines if line.startswith("naiad_on_demand_")]
    return {name: float(value) for name, _, value in found}


def measure_on_demand(root: Path, names: Sequence[str], options: argparse.Namespace) -> dict[str, object]:
    """Measure the server with all models."""
    flags = ["--model-load-policy=on-demand", f"--model-memory-budget={options.budget}", *options.flags]
    began_s = time.monotonic()
    server = ServeProcess([f"--model-repository={root}", "--log-info=false", *LOOPBACK, *flags])
    try:
        urls = dict(server.wait_ready(_START_S).urls)
        start_s = time.monotonic() - began_s
        url = f"grpc://{urls['grpc']}"
        # The library of the backend is in memory before the growth counts.
        asyncio.run(warm_up(url, names[:1]))
        base_bytes = memory(server.pid).rss
        asyncio.run(warm_up(url, names[:_POPULAR]))
        before = metrics(urls["metrics"])
        meter = CpuMeter(server.pid)
        traffic = asyncio.run(send(url, server.pid, names, options.clients, options.seconds, options.zipf))
        cpu_s = meter.seconds()
        found = metrics(urls["metrics"])
    finally:
        server.close()
    budget = budget_bytes(options.budget, 0)
    sizes = [value for name, value in found.items() if name.startswith("naiad_on_demand_model_bytes")]
    room = int(budget // (sum(sizes) / len(sizes)))
    load_count = found["naiad_on_demand_loads_total"] - before["naiad_on_demand_loads_total"]
    return {
        "start_s": round(start_s, 2),
        "requests": len(traffic.order),
        "failed": len(traffic.failures),
        "reasons": sorted(set(traffic.failures))[:5],
        "loads": load_count,
        "cpu_ms_per_load": round(cpu_s / load_count * 1e3, 1),
        "evictions": found["naiad_on_demand_evictions_total"],
        "hit_rate": round(1 - load_count / len(traffic.order), 4),
        "ideal_hit_rate": round(ideal_hit_rate(traffic.order, room), 4),
        "room": room,
        "used_share": round(found["naiad_on_demand_used_bytes"] / budget, 3),
        "grown_share": round((float(np.median(traffic.resident_bytes[-20:])) - base_bytes) / budget, 3),
        "p99_popular_ms": round(traffic.p99_ms(names[:_POPULAR]), 2),
        "p99_all_ms": round(traffic.p99_ms(names), 2),
    }


def measure_at_start(root: Path, names: Sequence[str], options: argparse.Namespace) -> float:
    """Return the p99 of the popular models in a server that has only these."""
    flags = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in names)]
    server = ServeProcess([f"--model-repository={root}", "--log-info=false", *LOOPBACK, *flags, *options.flags])
    try:
        url = f"grpc://{dict(server.wait_ready(_START_S).urls)['grpc']}"
        traffic = asyncio.run(send(url, server.pid, names, options.clients, options.seconds / 4, options.zipf))
    finally:
        server.close()
    return traffic.p99_ms(names)


async def answer_first(url: str, root: Path, names: Sequence[str]) -> dict[str, object]:
    """Measure the first answers of cold models, each after a bare session of its file."""
    bare_ms: list[float] = []
    first_ms: list[float] = []
    async with Client(url, timeout_s=120.0) as client:
        await client.infer(names[0], _ROW)
        for name in names[1:]:
            began_s = time.perf_counter()
            onnxruntime.InferenceSession(root / name / "1" / "model.onnx", providers=["CPUExecutionProvider"])
            bare_ms.append((time.perf_counter() - began_s) * 1e3)
            began_s = time.perf_counter()
            await client.infer(name, _ROW)
            first_ms.append((time.perf_counter() - began_s) * 1e3)
    bare, first = statistics.median(bare_ms), statistics.median(first_ms)
    return {
        "bare_load_ms": round(bare, 2),
        "first_answer_ms": round(first, 2),
        "most_ms": round(1.5 * bare + 20, 2),
        "bare_load_p10_ms": round(float(np.percentile(bare_ms, 10)), 2),
        "first_answer_p10_ms": round(float(np.percentile(first_ms, 10)), 2),
    }


def measure_cold(root: Path, names: Sequence[str], options: argparse.Namespace) -> dict[str, object]:
    """Measure first answers."""
    flags = ["--model-load-policy=on-demand", *options.flags]
    server = ServeProcess([f"--model-repository={root}", "--log-info=false", *LOOPBACK, *flags])
    try:
        urls = dict(server.wait_ready(_START_S).urls)
        url = f"grpc://{urls['grpc']}"
        meter = CpuMeter(server.pid)
        found = asyncio.run(answer_first(url, root, names))
        load_count = metrics(urls["metrics"])["naiad_on_demand_loads_total"]
        return {**found, "loads": load_count, "cpu_ms_per_load": round(meter.seconds() / load_count * 1e3, 1)}
    finally:
        server.close()


def main() -> None:
    """Measure and print a JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--megabytes", type=float, default=10.0, help="of the weights of a model")
    parser.add_argument("--budget", default="1GB")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--zipf", type=float, default=1.0, help="exponent of the popularity")
    parser.add_argument("--flags", action="append", default=[], help="of the servers")
    parser.add_argument("--own-files", action="store_true", help="of all models, instead of links to one file")
    parser.add_argument("--first-answer", action="store_true", help="measure first answers of cold models instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        if options.first_answer:
            names = write_models(
                root, options.models, options.megabytes, popular=0, are_one_file=not options.own_files
            )
            print(json.dumps(measure_cold(root, names, options), indent=2))
            return
        names = write_models(root, options.models, options.megabytes, are_one_file=not options.own_files)
        found = measure_on_demand(root, names, options)
        found["p99_popular_at_start_ms"] = round(measure_at_start(root, names[:_POPULAR], options), 2)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

"""A thousand small models in one repository: how soon they are ready, and what a request costs beside them.

python -m bench.many [MODELS]
"""

import http.client
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench import models
from bench.peers import Naiad, Running
from bench.process_tree import MIB, CpuMeter, memory

MODELS = 1000
_INDEX_COUNT = 20
_PAYLOAD = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16} for name in ("INPUT0", "INPUT1")
        ]
    }
).encode()


def write_repository(root: Path, count: int) -> Path:
    """Write `count` models that add and subtract, without configurations."""
    content = models.add_sub().SerializeToString()
    for number in range(count):
        directory = root / f"model_{number:04d}" / "1"
        directory.mkdir(parents=True)
        (directory / "model.onnx").write_bytes(content)
    return root


def ask(server: Running, model: str, seconds: float) -> tuple[int, float]:
    """Ask a model over one connection; return how often, and the CPU time of the server for each in us."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    count, end = 0, time.perf_counter() + seconds
    meter = CpuMeter(server.process.pid)
    while time.perf_counter() < end:
        connection.request("POST", f"/v2/models/{model}/infer", _PAYLOAD)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{model}: {answer.status} {body!r}")
        count += 1
    connection.close()
    return count, meter.seconds() / count * 1e6


def index_ms(server: Running) -> float:
    """Return how long the repository index takes, the median of some."""
    durations = []
    for _ in range(_INDEX_COUNT):
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
        connection.request("POST", "/v2/repository/index", b"")
        connection.getresponse().read()
        connection.close()
        durations.append((time.perf_counter() - began) * 1e3)
    return median(durations)


def measure(work: Path, count: int = MODELS, rounds: int = 3, seconds: float = 3.0) -> Iterator[dict[str, float]]:
    """Start a server with one model and one with all; yield what each round finds."""
    one = write_repository(work / "one", 1)
    all_of_them = write_repository(work / "many", count)
    with ExitStack() as stack:
        alone = Naiad().start(one, work / "naiad-one")
        stack.callback(alone.stop)
        crowded = Naiad().start(all_of_them, work / "naiad-many")
        stack.callback(crowded.stop)
        start_cpu_s = CpuMeter(crowded.process.pid).seconds_before()
        middle = f"model_{count // 2:04d}"
        for server, name in ((alone, "model_0000"), (crowded, middle)):
            ask(server, name, min(1.0, seconds))
        for _ in range(rounds):
            _, alone_us = ask(alone, "model_0000", seconds)
            _, crowded_us = ask(crowded, middle, seconds)
            yield {
                "ready_s": crowded.startup_s,
                "start_cpu_s": start_cpu_s,
                "index_ms": index_ms(crowded),
                "rss_mib": memory(crowded.process.pid).rss / MIB,
                "cpu_us": crowded_us,
                "alone_cpu_us": alone_us,
            }


def main(count: int = MODELS) -> None:
    """Measure alone, without the rest of the benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        for found in measure(Path(folder), count):
            print(*(f"{name} {value:.5g}" for name, value in found.items()))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

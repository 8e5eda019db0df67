"""A bound function, the same code as model.py of naiad, and PyTriton: CPU time and throughput, in turns.

    python -m bench.bind [--pytriton PYTHON] [--seconds 3] [--rounds 3]

The function adds and subtracts two FP32[16] with `@batch` (`max_batch_size: 64`). PYTHON is the interpreter of an
environment with `nvidia-pytriton==0.7.0` and numpy below 2. Every round measures all servers, over HTTP and gRPC with
1, 8 and 32 requests in flight, from one asyncio client; the first response of each server is checked. CPU time is
that of the server and all its child processes. The table has the medians of the rounds.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.peers import free_ports
from bench.process_tree import CpuMeter
from naiad.client import Client, InferError

CONCURRENCIES = (1, 8, 32)
_READY_S = 120.0
_WARM_UP_S = 0.5
_ROOT = Path(__file__).resolve().parents[1]

_BOUND = """
import numpy as np
from PACKAGE.decorators import batch
from PACKAGE.model_config import ModelConfig, Tensor
from PACKAGE.triton import Triton, TritonConfig, TritonSecurityConfig

@batch
def add_sub(INPUT0, INPUT1):
    return {"OUTPUT0": INPUT0 + INPUT1, "OUTPUT1": INPUT0 - INPUT1}

def tensors(prefix):
    return [Tensor(name=f"{prefix}{number}", shape=(16,), dtype=np.float32) for number in (0, 1)]

config = TritonConfig(http_port=HTTP, grpc_port=GRPC, metrics_port=METRICS)
open_to_all = TritonSecurityConfig(restricted_endpoints=[])
with Triton(config=config, security_config=open_to_all) as triton:
    triton.bind("add_sub", add_sub, tensors("INPUT"), tensors("OUTPUT"), config=ModelConfig(max_batch_size=64))
    triton.serve()
"""
_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        pairs = [[pb_utils.get_input_tensor_by_name(r, f"INPUT{n}").as_numpy() for n in (0, 1)] for r in requests]
        first, second = (np.concatenate([pair[n] for pair in pairs]) for n in (0, 1))
        total, difference = first + second, first - second
        responses, start = [], 0
        for pair in pairs:
            rows = slice(start, start + len(pair[0]))
            start = rows.stop
            outputs = [pb_utils.Tensor("OUTPUT0", total[rows]), pb_utils.Tensor("OUTPUT1", difference[rows])]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
_CONFIG = 'backend: "python"\nmax_batch_size: 64\ndynamic_batching {{ }}\ninput [{}]\noutput [{}]\n'


def _tensors(prefix: str) -> str:
    return ", ".join(f'{{ name: "{prefix}{number}" data_type: TYPE_FP32 dims: 16 }}' for number in (0, 1))


def _bound(package: str) -> Callable[[Path, Sequence[int]], list[str]]:
    def arguments(work: Path, ports: Sequence[int]) -> list[str]:
        text = _BOUND.replace("PACKAGE", package)
        for name, port in zip(("HTTP", "GRPC", "METRICS"), ports, strict=True):
            text = text.replace(f"={name}", f"={port}")
        (work / "server.py").write_text(text)
        return [str(work / "server.py")]

    return arguments


def _model_file(work: Path, ports: Sequence[int]) -> list[str]:
    version = work / "models" / "add_sub" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_MODEL)
    (version.parent / "config.pbtxt").write_text(_CONFIG.format(_tensors("INPUT"), _tensors("OUTPUT")))
    flags = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)]
    return ["-m", "naiad", "serve", str(work / "models"), *flags]


@contextmanager
def _serving(python: str, make: Callable[[Path, Sequence[int]], list[str]]) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield the process id and the ports of a ready server."""
    ports = free_ports(3)
    with tempfile.TemporaryDirectory() as folder:
        command = [python, *make(Path(folder), ports)]
        log = open(Path(folder) / "log", "w")  # noqa: SIM115 - closed with the process
        environment = {"PYTHONPATH": str(_ROOT / "src")} if python == sys.executable else {}

        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        try:
            asyncio.run(_wait_ready(ports[0], process, Path(log.name)))
            yield process.pid, ports
        finally:
            process.terminate()
            process.wait(60)
            log.close()


async def _wait_ready(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline_s = time.monotonic() + _READY_S
    async with Client(f"http://127.0.0.1:{port}") as client:
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                break
            try:
                if await client.is_model_ready("add_sub", timeout_s=1):
                    return
            except InferError:
                pass  # the port is not open yet
            await asyncio.sleep(0.1)
    raise RuntimeError(f"the server did not become ready:\n{log.read_text()[-3000:]}")


async def _measure(url: str, pid: int, concurrency: int, seconds: float) -> tuple[float, float]:
    """Return responses per second, and CPU microseconds of the server for each."""
    inputs = {"INPUT0": np.arange(16, dtype=np.float32)[None], "INPUT1": np.full((1, 16), 0.5, np.float32)}
    count = 0
    end_s = time.monotonic() + _WARM_UP_S
    async with Client(url) as client:

        async def load() -> None:
            nonlocal count
            while time.monotonic() < end_s:
                await client.infer("add_sub", inputs)
                count += 1

        result = await client.infer("add_sub", inputs)
        if not np.array_equal(result["OUTPUT1"], inputs["INPUT0"] - inputs["INPUT1"]):
            raise RuntimeError(f"{url}: wrong response {result['OUTPUT1']}")
        await asyncio.gather(*[load() for _ in range(concurrency)])
        count, began_s = 0, time.monotonic()
        end_s = began_s + seconds
        meter = CpuMeter(pid)
        await asyncio.gather(*[load() for _ in range(concurrency)])
        return count / (time.monotonic() - began_s), meter.seconds() / count * 1e6


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.bind", description="Bound functions.")
    parser.add_argument("--pytriton", default="", help="interpreter with nvidia-pytriton; without it, naiad alone")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    servers = {
        "naiad.bind": (sys.executable, _bound("naiad.bind")),
        "naiad, model.py": (sys.executable, _model_file),
    }
    if options.pytriton:
        servers["PyTriton"] = (options.pytriton, _bound("pytriton"))
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for number in range(options.rounds):
        for name, (python, make) in servers.items():
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
            with _serving(python, make) as (pid, ports):
                for protocol, port in (("http", ports[0]), ("grpc", ports[1])):
                    for concurrency in CONCURRENCIES:
                        url = f"{protocol}://127.0.0.1:{port}"
                        row = asyncio.run(_measure(url, pid, concurrency, options.seconds))
                        found.setdefault((name, protocol, concurrency), []).append(row)
    print(
        f"| server | protocol | requests/s with {CONCURRENCIES} in flight | CPU us per request |\n|---|---|---|---|"
    )
    for name in servers:
        for protocol in ("http", "grpc"):
            rows = [found[name, protocol, concurrency] for concurrency in CONCURRENCIES]
            rates = ", ".join(f"{statistics.median(rate for rate, _ in row):,.0f}" for row in rows)
            costs = ", ".join(f"{statistics.median(cost for _, cost in row):.0f}" for row in rows)
            print(f"| {name} | {protocol} | {rates} | {costs} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

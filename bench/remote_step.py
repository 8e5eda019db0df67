"""A step of an ensemble on another server beside the same step on this one: latency and CPU.

    python -m bench.remote_step [--rounds 5] [--requests 2000]

Two servers on this machine, one client, one request at a time over gRPC, a tiny ONNX model. `direct` calls the model
on the server that has it: the CPU of one gRPC call. `local` and `remote` are ensembles of one step. The rounds
alternate; each figure is the median of its rounds. CPU is user and system time of both servers.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.models import ensemble_config, write_add_sub
from bench.process_tree import CpuMeter
from naiad.client import Client
from naiad.tools.process.own_server import LOOPBACK, ServeProcess

_START_S = 120.0

_REMOTE = """
name: "far" backend: "remote"
parameters {{ key: "server" value {{ string_value: "grpc://{url}" }} }}
parameters {{ key: "model" value {{ string_value: "add_sub" }} }}
"""


@contextlib.contextmanager
def server(repository: Path) -> Iterator[tuple[int, str]]:
    """A server that is ready; its process id and its gRPC address."""
    running = ServeProcess([str(repository), "--log-info=false", *LOOPBACK])
    try:
        yield running.pid, running.wait_ready(_START_S).urls["grpc"]
    finally:
        running.close()


def write_models(root: Path, far: str) -> None:
    """Write the ensembles, the local model, and the remote one."""
    write_add_sub(root)
    for name, text in (
        ("far", _REMOTE.format(url=far)),
        ("local", ensemble_config("local", ["add_sub"])),
        ("remote", ensemble_config("remote", ["far"])),
    ):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)


async def measure(near: str, far: str, pids: Sequence[int], rounds: int, requests: int) -> dict[str, list[float]]:
    """Return the median latency and the CPU per request of each case, in microseconds."""
    vector = np.ones((1, 16), np.float32)
    inputs = {"INPUT0": vector, "INPUT1": vector}
    found: dict[str, list[list[float]]] = {}
    async with Client(f"grpc://{near}") as here, Client(f"grpc://{far}") as there:
        cases = {"direct": (there, "add_sub"), "local": (here, "local"), "remote": (here, "remote")}
        for number in range(rounds + 1):
            for case, (client, model) in cases.items():
                meters = [CpuMeter(pid) for pid in pids]
                times = []
                for _ in range(requests):
                    begin_ns = time.perf_counter_ns()
                    await client.infer(model, inputs)
                    times.append((time.perf_counter_ns() - begin_ns) / 1000)
                cpu_us = sum(meter.seconds() for meter in meters) * 1e6 / requests
                if number:  # the first round warms up
                    found.setdefault(case, []).append([statistics.median(times), cpu_us])
    return {case: [statistics.median(column) for column in zip(*rows, strict=True)] for case, rows in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=2000)
    flags = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write_add_sub(folder / "far")
        with server(folder / "far") as (far_pid, far):
            write_models(folder / "near", far)
            with server(folder / "near") as (near_pid, near):
                pids = (near_pid, far_pid)
                found = asyncio.run(measure(near, far, pids, flags.rounds, flags.requests))
    for case, (latency_us, cpu_us) in found.items():
        print(f"{case:8} {latency_us:7.0f} us latency {cpu_us:7.0f} us CPU")
    more_us, more_cpu = (found["remote"][index] - found["local"][index] for index in range(2))
    calls = more_cpu / found["direct"][1]
    print(f"remote - local: {more_us:+.0f} us latency, {more_cpu:+.0f} us CPU, that of {calls:.2f} calls")
    return 0


if __name__ == "__main__":
    sys.exit(main())

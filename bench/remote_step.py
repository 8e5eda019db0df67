"""A step of an ensemble on another server beside the same step on this one: latency and CPU.

    python -m bench.remote_step [--rounds 5] [--requests 2000]

Two servers on this machine, one client, one request at a time over gRPC, a tiny ONNX model. `direct` calls the model
on the server that has it: the CPU of one gRPC call. `local` and `remote` are ensembles of one step. The rounds
alternate; each figure is the median of its rounds. CPU is user and system time of both servers.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.models import write_add_sub
from bench.process_tree import CpuMeter
from naiad.client import Client

_STEP = """
name: "{name}" platform: "ensemble" max_batch_size: 32
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }},
        {{ name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }},
         {{ name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] }} ]
ensemble_scheduling {{ step [ {{ model_name: "{step}" model_version: -1
  input_map [ {{ key: "INPUT0" value: "INPUT0" }}, {{ key: "INPUT1" value: "INPUT1" }} ]
  output_map [ {{ key: "OUTPUT0" value: "OUTPUT0" }}, {{ key: "OUTPUT1" value: "OUTPUT1" }} ] }} ] }}
"""
_REMOTE = """
name: "far" backend: "remote"
parameters {{ key: "server" value {{ string_value: "grpc://{url}" }} }}
parameters {{ key: "model" value {{ string_value: "add_sub" }} }}
"""


@contextlib.contextmanager
def server(repository: Path, folder: Path, name: str) -> Iterator[tuple[int, str]]:
    """A server that is ready; its process id and its gRPC address."""
    ready = folder / f"{name}.ready"
    flags = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", f"--ready-file={ready}"]
    with (folder / f"{name}.log").open("wb") as log:
        command = [sys.executable, "-m", "naiad", "serve", str(repository), *flags]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise SystemExit((folder / f"{name}.log").read_text())
                time.sleep(0.05)
            yield process.pid, f"127.0.0.1:{json.loads(ready.read_text())['grpc']['port']}"
        finally:
            process.terminate()
            process.wait()


def write_models(root: Path, far: str) -> None:
    """Write the ensembles, the local model, and the remote one."""
    write_add_sub(root)
    for name, text in (
        ("far", _REMOTE.format(url=far)),
        ("local", _STEP.format(name="local", step="add_sub")),
        ("remote", _STEP.format(name="remote", step="far")),
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
        with server(folder / "far", folder, "far") as (far_pid, far):
            write_models(folder / "near", far)
            with server(folder / "near", folder, "near") as (near_pid, near):
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

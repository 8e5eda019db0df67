"""Agreement of naiad perf with wrk, h2load and NVIDIA's perf_analyzer.

    python -m bench.perf_agreement [--seconds 2] [--rounds 3] [--delay-ms 4] [--concurrency 1,8,32]

Throughput and p50 of an identity model of naiad, in turns, one tool after another; medians over the rounds, also of
the differences. The model
takes a fixed time, so that no tool is the limit; with `--delay-ms 0` the tools differ by their own cost. A tool that
is not there is left out (apt-get install wrk nghttp2-client libb64-0d; perf_analyzer is fetched from PyPI).
"""

import argparse
import csv
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import analyzer
from bench.perf_figures import DATA, HEADER, measured
from naiad.protocol.grpc import client as grpc_messages
from naiad.protocol.json import client as json_bodies
from naiad.tools.perf.plan import Concurrency, Measuring, Protocol, ServerTarget, Stop

Figures = tuple[float, float]
"""Requests/s and p50 in us."""
Tool = Callable[[str, int, float, Path], Figures]

_LIMIT = 0.05
_INSTANCES = 32


@contextmanager
def naiad_server(directory: Path, delay_ms: int) -> Iterator[tuple[str, str]]:
    """Run naiad with an identity model that takes a fixed time; yield its addresses for HTTP and gRPC."""
    model = directory / "models" / "identity"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(
        'backend: "identity" max_batch_size: 8\n'
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        f"instance_group [ {{ count: {_INSTANCES} kind: KIND_CPU }} ]\n"
        f'parameters [ {{ key: "execute_delay_ms" value: {{ string_value: "{delay_ms}" }} }} ]\n'
    )
    command = [sys.executable, "-m", "naiad", "serve", f"--model-repository={model.parent}", "--allow-metrics=false"]
    command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--http-port=0", "--grpc-port=0"]
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        while (found := re.search(r"ready: http://(\S+), grpc ([^\s,;]+)", log.read_text())) is None:
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.1)
        yield found[1], found[2]
    finally:
        process.terminate()
        process.wait()


def wrk(address: str, concurrency: int, seconds: float, directory: Path) -> tuple[float, float]:
    parts, length = json_bodies.encode_request(HEADER, "", DATA)
    body = "".join(f"\\{byte:03d}" for byte in b"".join(parts))
    script = directory / "post.lua"
    script.write_text(
        f'wrk.method = "POST"\nwrk.body = "{body}"\nwrk.headers["Inference-Header-Content-Length"] = "{length}"\n'
    )
    url = f"http://{address}/v2/models/identity/infer"
    command = ["wrk", "-t1", f"-c{concurrency}", f"-d{seconds:g}s", "--latency", "-s", str(script), url]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"50%\s+([\d.]+)(us|ms|s)", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    if found is None or rate is None or "Non-2xx" in text:
        raise RuntimeError(text)
    return float(rate[1]), float(found[1]) * {"us": 1, "ms": 1e3, "s": 1e6}[found[2]]


def h2load(address: str, concurrency: int, seconds: float, directory: Path) -> tuple[float, float]:
    message = b"".join(grpc_messages.encode_request(HEADER, "", DATA))
    body, log = directory / "message", directory / "h2load.log"
    body.write_bytes(struct.pack(">BI", 0, len(message)) + message)
    log.unlink(missing_ok=True)
    command = ["h2load", f"-c{concurrency}", "-m1", "-t1", f"-D{seconds:g}", "-d", str(body), f"--log-file={log}"]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    url = f"http://{address}/inference.GRPCInferenceService/ModelInfer"
    text = subprocess.run([*command, url], check=True, capture_output=True, text=True).stdout
    rate = re.search(r"finished in [^,]+, ([\d.]+) req/s", text)
    rows = [line.split("\t") for line in log.read_text().splitlines()]
    if rate is None or any(row[1] != "200" for row in rows):
        raise RuntimeError(text)
    return float(rate[1]), statistics.median(float(row[2]) for row in rows)


def perf_analyzer(protocol: str) -> Tool:
    """Return a call of the real perf_analyzer."""

    def call(address: str, concurrency: int, seconds: float, directory: Path) -> Figures:
        report = directory / "perf_analyzer.csv"
        report.unlink(missing_ok=True)
        command = [analyzer.program(), "-m", "identity", "-i", protocol, "-u", address, "--shape", "INPUT0:4"]
        # Three windows, all kept: medians are taken here, so nothing is repeated until it looks stable.
        command += ["--concurrency-range", str(concurrency), "-r", "3", "-s", "999", "-f", str(report)]
        command += ["-p", str(round(seconds * 1000 / 3))]
        done = subprocess.run(command, env=analyzer.environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        with report.open(newline="") as file:
            row = next(csv.DictReader(file))
        return float(row["Inferences/Second"]), float(row["p50 latency"])

    return call


def naiad_perf(protocol: str) -> Tool:
    """Return a run of naiad perf."""

    def call(address: str, concurrency: int, seconds: float, directory: Path) -> Figures:
        measuring = Measuring(Stop.CONFIDENCE, int(seconds * 1000), stability_percent=0.01, max_trials=1)
        row = measured(
            ServerTarget(f"{protocol}://{address}", Protocol(protocol)), Concurrency(concurrency), measuring
        )
        limits.append(row.generator.limited_by)
        return row.throughput.value, row.latency.percentiles[50].value

    return call


limits: list[str] = []
"""What naiad perf says was the limit, of its runs at one concurrency."""


def tools(protocol: str) -> dict[str, Tool]:
    """Return the tools that are there."""
    other, call = ("wrk", wrk) if protocol == "http" else ("h2load", h2load)
    found: dict[str, Tool] = {"naiad perf": naiad_perf(protocol)}
    if shutil.which(other):
        found[other] = call
    if analyzer.unavailable() is None:
        found["perf_analyzer"] = perf_analyzer(protocol)
    return found


def compare(protocol: str, address: str, concurrency: int, arguments: argparse.Namespace, directory: Path) -> None:
    """Print the figures of all tools at one concurrency."""
    figures: dict[str, list[Figures]] = defaultdict(list)
    limits.clear()
    for _ in range(arguments.rounds):
        for name, call in tools(protocol).items():
            figures[name].append(call(address, concurrency, arguments.seconds, directory))
    medians = {name: _medians(runs) for name, runs in figures.items()}
    for name, (rate, p50_us) in medians.items():
        text = f"{protocol} {concurrency:3} {name:13}: {rate:9.1f} requests/s, p50 {p50_us:7.0f} us"
        if name == "naiad perf":
            print(f"{text}; limited by {', '.join(sorted(set(limits)))}; load {os.getloadavg()[0]:.1f}")
            continue
        differences = _differences(figures["naiad perf"], figures[name])
        verdict = "agrees" if max(map(abs, differences)) <= _LIMIT else "DIFFERS"
        print(f"{text}; naiad perf has {differences[0]:+.1%} and {differences[1]:+.1%}: {verdict}", flush=True)


def _medians(runs: list[Figures]) -> Figures:
    rates, p50s_us = zip(*runs, strict=True)
    return statistics.median(rates), statistics.median(p50s_us)


def _differences(ours: list[Figures], theirs: list[Figures]) -> Figures:
    """Return the medians of the differences in each round, which other load on the machine disturbs least."""
    return _medians([(our[0] / other[0] - 1, our[1] / other[1] - 1) for our, other in zip(ours, theirs, strict=True)])


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-ms", type=int, default=4)
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--protocols", default="http,grpc")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, naiad_server(Path(name), arguments.delay_ms) as addresses:
        for protocol, address in zip(("http", "grpc"), addresses, strict=True):
            if protocol in arguments.protocols:
                for concurrency in map(int, arguments.concurrency.split(",")):
                    compare(protocol, address, concurrency, arguments, Path(name))


if __name__ == "__main__":
    main()

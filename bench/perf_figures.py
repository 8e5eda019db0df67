"""Figures of naiad perf itself: its ceiling, an honest open loop, and agreement with wrk and h2load.

    python -m bench.perf_figures [ceiling] [stall] [agreement] [--seconds 5] [--rounds 3]

ceiling: requests/s over HTTP and gRPC against scripted servers in other processes, by wall clock and by CPU second.
stall: a server with a stall of 2 s in a run of 20 s at 100 requests/s; p99 must be at least 1.7 s.
agreement: throughput and p50 of an identity model of naiad with a fixed delay, in turns with wrk and h2load (apt-get
install wrk nghttp2-client). Needs nothing else; a busy machine shows in all of them.
"""

import argparse
import asyncio
import json
import multiprocessing
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import uvloop

from bench.micro_perf import GrpcScript, HttpScript, listen, serve
from naiad.core.datatype import DataType
from naiad.core.request import RequestHeader
from naiad.core.tensor import TensorSpec, to_buffer
from naiad.perf.exchange import RequestTemplate
from naiad.perf.generator.local import LocalGenerator
from naiad.perf.generator.setup import ModelSetup, Setup
from naiad.perf.inputs import TemplateSet
from naiad.perf.plan import (
    Concurrency,
    InputSettings,
    Load,
    Measuring,
    ModelPlan,
    Phase,
    Plan,
    Protocol,
    Ramp,
    Service,
)
from naiad.perf.result import Row
from naiad.perf.session import run
from naiad.perf.targets import make_target
from naiad.protocol.grpc import client as grpc_messages
from naiad.protocol.json import client as json_bodies

CONCURRENCIES = (1, 8, 32)
DELAY_MS = 10
HEADER = RequestHeader(model_name="identity", inputs=[TensorSpec("INPUT0", DataType.FP32, (1, 4))])
DATA = [to_buffer(np.ones(4, np.float32))]
METADATA = {
    "name": "identity",
    "versions": ["1"],
    "platform": "script",
    "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4]}],
    "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [4]}],
}


class StallingScript(HttpScript):
    """Answers metadata and requests; 9 s after the first request it stalls for 2 s."""

    first_s = 0.0
    stalls = True

    def data_received(self, data: bytes) -> None:
        if b"/infer " in data:
            StallingScript.first_s = StallingScript.first_s or time.monotonic()
            if StallingScript.stalls and time.monotonic() - StallingScript.first_s > 9:
                StallingScript.stalls = False
                time.sleep(2)
            super().data_received(data)
        elif data.startswith(b"GET /v2/models/identity HTTP"):
            self._respond(b"200 OK", json.dumps(METADATA).encode())
        elif data.startswith(b"GET /v2 HTTP"):
            self._respond(b"200 OK", b'{"name":"script","version":"1","extensions":[]}')
        else:
            self._respond(b"404 Not Found", b'{"error":"not here"}')

    def _respond(self, status: bytes, body: bytes) -> None:
        self.transport.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))


@contextmanager
def scripted(script: type[asyncio.Protocol], count: int = 1) -> Iterator[int]:
    """Run processes with scripted servers and yield their port."""
    listeners = [listen(0)]
    listeners += [listen(listeners[0].getsockname()[1]) for _ in range(count - 1)]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=serve, args=(each, script), daemon=True) for each in listeners]
    for process in processes:
        process.start()
    port = listeners[0].getsockname()[1]
    for listener in listeners:
        listener.close()
    try:
        yield cast("int", port)
    finally:
        for process in processes:
            process.terminate()
            process.join()


async def measure_ceiling(service: Service, seconds: float) -> None:
    inputs = TemplateSet([RequestTemplate(HEADER, DATA)], [range(1)])
    generator = LocalGenerator(Setup(service, [ModelSetup(inputs)], timing_share=0.02), make_target(service))
    await generator.open(32)
    await generator.start(Concurrency(32))
    await asyncio.sleep(0.5)
    (first,) = await generator.take()
    count, failures, last = 0, 0, first
    while last.at_ns - first.at_ns < seconds * 1e9:
        await asyncio.sleep(0.25)
        (last,) = await generator.take()
        count += len(last.records)
        failures += sum(each.count for each in last.records.failures)
    await generator.stop(1)
    await generator.close()
    cpu_s, wall_s = (last.cpu_ns - first.cpu_ns) / 1e9, (last.at_ns - first.at_ns) / 1e9
    print(
        f"ceiling {service.protocol.value}: {count / wall_s:.0f} requests/s here with {cpu_s / wall_s:.2f} "
        f"of a core; {count / cpu_s:.0f} requests/s a core, {cpu_s / count * 1e6:.1f} us each; {failures} failures"
    )


def ceiling(seconds: float) -> None:
    for protocol, script in ((Protocol.HTTP, HttpScript), (Protocol.GRPC, GrpcScript)):
        with scripted(script, 2) as port:
            uvloop.run(measure_ceiling(Service(f"{protocol.value}://127.0.0.1:{port}", protocol), seconds))


def measured(service: Service, load: Load, measuring: Measuring) -> Row:
    model = ModelPlan("identity", inputs=InputSettings(shapes={"INPUT0": (4,)}))
    return uvloop.run(run(Plan(service, [model], load, measuring=measuring))).rows[0]


def stall() -> None:
    with scripted(StallingScript) as port:
        service = Service(f"http://127.0.0.1:{port}", Protocol.HTTP)
        row = measured(service, Ramp((Phase(20, 100, 100),)), Measuring())
    p50, p99 = (row.latency.percentiles[each].value / 1e6 for each in (50, 99))
    print(
        f"stall: {row.request_count} requests in {row.duration_s:.1f} s, p50 {p50:.4f} s, p99 {p99:.2f} s, "
        f"of service time {row.service.percentiles[99].value / 1e6:.2f} s; "
        f"late p99 {row.generator.late_p99_us:.0f} us"
    )


@contextmanager
def naiad_server(directory: Path) -> Iterator[tuple[str, str]]:
    """Run naiad with an identity model that takes a fixed time; yield its addresses for HTTP and gRPC."""
    model = directory / "models" / "identity"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(
        'backend: "identity" max_batch_size: 8\n'
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        f"instance_group [ {{ count: {max(CONCURRENCIES)} kind: KIND_CPU }} ]\n"
        f'parameters [ {{ key: "execute_delay_ms" value: {{ string_value: "{DELAY_MS}" }} }} ]\n'
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


def agreement(seconds: float, rounds: int) -> None:
    measuring = Measuring(window_ms=int(seconds * 1000), max_trials=1, stability_percent=0.01)
    with tempfile.TemporaryDirectory() as name, naiad_server(Path(name)) as (http, grpc):
        cases = (
            ("wrk", wrk, http, Service(f"http://{http}", Protocol.HTTP)),
            ("h2load", h2load, grpc, Service(f"grpc://{grpc}", Protocol.GRPC)),
        )
        for tool, call, address, service in cases:
            if shutil.which(tool) is None:
                print(f"agreement: {tool} is not installed")
                continue
            for concurrency in CONCURRENCIES:
                theirs, ours = [], []
                for _ in range(rounds):
                    theirs.append(call(address, concurrency, seconds, Path(name)))
                    row = measured(service, Concurrency(concurrency), measuring)
                    ours.append((row.throughput.value, row.latency.percentiles[50].value))
                _print_agreement(tool, concurrency, theirs, ours)


def _print_agreement(
    tool: str, concurrency: int, theirs: list[tuple[float, float]], ours: list[tuple[float, float]]
) -> None:
    values = [[statistics.median(each[index] for each in runs) for index in (0, 1)] for runs in (theirs, ours)]
    (rate, p50), (our_rate, our_p50) = values
    print(
        f"agreement {tool} {concurrency:3}: {rate:.1f} requests/s, p50 {p50:.0f} us; naiad perf {our_rate:.1f} "
        f"({our_rate / rate - 1:+.1%}), p50 {our_p50:.0f} us ({our_p50 / p50 - 1:+.1%})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["ceiling", "stall", "agreement"])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if "ceiling" in options.cases:
        ceiling(options.seconds)
    if "stall" in options.cases:
        stall()
    if "agreement" in options.cases:
        agreement(options.seconds, options.rounds)


if __name__ == "__main__":
    main()

"""Figures of naiad perf itself: its ceiling, and an honest open loop; `bench.perf_agreement` compares it with others.

    python -m bench.perf_figures [ceiling] [stall] [--seconds 5]

ceiling: requests/s over HTTP and gRPC against scripted servers in other processes, by wall clock and by CPU second.
stall: a server with a stall of 2 s in a run of 20 s at 100 requests/s; p99 must be at least 1.7 s.
A busy machine shows in both.
"""

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import numpy as np
import uvloop

from bench.micro_perf import GrpcScript, HttpScript, listen, serve
from naiad.core.datatype import DataType
from naiad.core.request import RequestHeader
from naiad.core.tensor import TensorSpec, to_buffer
from naiad.tools.measure.result import Row
from naiad.tools.perf.exchange import RequestTemplate
from naiad.tools.perf.generator.local import LocalGenerator
from naiad.tools.perf.generator.setup import ModelSetup, Setup
from naiad.tools.perf.inputs.templates import TemplateSet
from naiad.tools.perf.plan import (
    Concurrency,
    InputSettings,
    Load,
    Measuring,
    ModelLoad,
    Phase,
    Plan,
    Protocol,
    Ramp,
    ServerTarget,
)
from naiad.tools.perf.session import run
from naiad.tools.perf.targets import make_target

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


async def measure_ceiling(service: ServerTarget, seconds: float) -> None:
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
            uvloop.run(measure_ceiling(ServerTarget(f"{protocol.value}://127.0.0.1:{port}", protocol), seconds))


def measured(service: ServerTarget, load: Load, measuring: Measuring) -> Row:
    model = ModelLoad("identity", inputs=InputSettings(shapes={"INPUT0": (4,)}))
    return uvloop.run(run(Plan(service, [model], load, measuring=measuring))).rows[0]


def stall() -> None:
    with scripted(StallingScript) as port:
        service = ServerTarget(f"http://127.0.0.1:{port}", Protocol.HTTP)
        row = measured(service, Ramp((Phase(20, 100, 100),)), Measuring())
    p50, p99 = (row.latency.percentiles[each].value / 1e6 for each in (50, 99))
    print(
        f"stall: {row.request_count} requests in {row.duration_s:.1f} s, p50 {p50:.4f} s, p99 {p99:.2f} s, "
        f"of service time {row.service.percentiles[99].value / 1e6:.2f} s; "
        f"late p99 {row.generator.late_p99_us:.0f} us"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["ceiling", "stall"])
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    if "ceiling" in options.cases:
        ceiling(options.seconds)
    if "stall" in options.cases:
        stall()


if __name__ == "__main__":
    main()

"""The demonstration from end to end: repository, server, requests, and a burst of them that the server batches."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from naiad.tools.demo import clients, demo_repository, ocr
from naiad.tools.demo.clients import Array
from naiad.tools.demo.demo_progress import waiting
from naiad.tools.demo.demo_server import DemoSettings, Running, serving
from naiad.tools.demo.packages import fetch_all

BURST_MODEL = "file_type"
_COUNT = 200
"""Requests of the burst."""


def run(settings: DemoSettings, console: Console) -> int:
    """Run the demonstration; return the exit code. With `keep_running` it ends when the server is stopped.

    The server that keeps running has the models of `naiad demo ocr` as well.
    """
    fetch_all(demo_repository.PACKAGES, console)
    root = demo_repository.build(settings.repository)
    if settings.keep_running:
        ocr.build(root)  # a pipeline to try in the browser, with pictures of the user
    with serving(root, settings, console, BURST_MODEL) as running, waiting(console, "sending requests"):
        console.print(_query(root, running))
        client = clients.DemoClient("gRPC", running.grpc_url)
        rows = clients.file_features(client)
        client.close()
        _show(_send(running.grpc_url, "bytes", rows), console)
    return 0


def _query(root: Path, running: Running) -> Table:
    table = Table(title="Responses of the models", title_justify="left")
    for heading in ("model", "protocol"):
        table.add_column(heading, no_wrap=True)
    for heading in ("given", "answer"):
        table.add_column(heading, overflow="fold")
    table.add_column("ms", justify="right")
    for protocol, url in (("HTTP", running.http_url), ("gRPC", running.grpc_url)):
        client = clients.DemoClient(protocol, url)
        findings = clients.file_types(client, demo_repository.labels(root, "file_type"))
        findings += clients.sentences(client)
        findings += clients.text_lines(client, demo_repository.labels(root, "text_line"))
        client.close()
        for found in findings:
            table.add_row(found.model, found.protocol, found.given, found.answer, f"{found.latency_ms:.1f}")
        table.add_section()
    return table


@dataclass(frozen=True, slots=True)
class Burst:
    """What a burst measured."""

    latencies_ms: Sequence[float]
    duration_s: float
    rows: int
    batches: int
    """Executions of the model, from the server's statistics."""


def _send(grpc_url: str, input_name: str, rows: Sequence[Array]) -> Burst:
    """Send _COUNT requests at once over one gRPC connection, each with one of `rows` (INT32[1,n])."""
    return asyncio.run(_send_all(grpc_url, input_name, rows))


async def _send_all(grpc_url: str, input_name: str, rows: Sequence[Array]) -> Burst:
    import tritonclient.grpc.aio as api

    async with api.InferenceServerClient(grpc_url) as client:

        async def request(row: Array) -> float:
            tensor = api.InferInput(input_name, list(row.shape), "INT32")
            tensor.set_data_from_numpy(row)
            began = time.perf_counter()
            await client.infer(BURST_MODEL, [tensor])
            return (time.perf_counter() - began) * 1e3

        await request(rows[0])  # opens the connection
        before = await _statistics(client)
        began = time.perf_counter()
        latencies_ms = await asyncio.gather(*(request(rows[number % len(rows)]) for number in range(_COUNT)))
        duration_s = time.perf_counter() - began
        after = await _statistics(client)
    return Burst(
        latencies_ms,
        duration_s,
        rows=after.inference_count - before.inference_count,
        batches=after.execution_count - before.execution_count,
    )


async def _statistics(client: Any) -> Any:
    (statistics,) = (await client.get_inference_statistics(BURST_MODEL)).model_stats
    return statistics


def _show(burst: Burst, console: Console) -> None:
    """Print the rate, the mean batch size and the percentiles of the latency."""
    table = Table(title=f"{_COUNT} concurrent requests to {BURST_MODEL} (gRPC)", title_justify="left")
    p50, p90, p99 = np.percentile(burst.latencies_ms, [50, 90, 99])
    values = {
        "requests/s": f"{_COUNT / burst.duration_s:.0f}",
        "executions": f"{burst.batches}",
        "mean batch size": f"{burst.rows / burst.batches:.1f}",
        "p50 ms": f"{p50:.0f}",
        "p90 ms": f"{p90:.0f}",
        "p99 ms": f"{p99:.0f}",
    }
    for heading in values:
        table.add_column(heading, justify="right")
    table.add_row(*values.values())
    console.print(table)

"""A burst of concurrent requests to one model: how the server batched them, and how long each took."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from naiad.demo.clients import Array

COUNT = 200


@dataclass(frozen=True, slots=True)
class Burst:
    """What a burst measured."""

    latencies_ms: Sequence[float]
    duration_s: float
    rows: int
    batches: int
    """Executions of the model, from the server's statistics."""


def send(grpc_url: str, model: str, input_name: str, rows: Sequence[Array]) -> Burst:
    """Send COUNT requests at once over one gRPC connection, each with one of `rows` (INT32[1,n]).

    Raises InferenceServerException if the server rejects a request.
    """
    return asyncio.run(_send(grpc_url, model, input_name, rows))


async def _send(grpc_url: str, model: str, input_name: str, rows: Sequence[Array]) -> Burst:
    import tritonclient.grpc.aio as api

    async with api.InferenceServerClient(grpc_url) as client:

        async def request(row: Array) -> float:
            tensor = api.InferInput(input_name, list(row.shape), "INT32")
            tensor.set_data_from_numpy(row)
            began = time.perf_counter()
            await client.infer(model, [tensor])
            return (time.perf_counter() - began) * 1e3

        await request(rows[0])  # opens the connection
        before = await _statistics(client, model)
        began = time.perf_counter()
        latencies_ms = await asyncio.gather(*(request(rows[number % len(rows)]) for number in range(COUNT)))
        duration_s = time.perf_counter() - began
        after = await _statistics(client, model)
    return Burst(
        latencies_ms,
        duration_s,
        rows=after.inference_count - before.inference_count,
        batches=after.execution_count - before.execution_count,
    )


async def _statistics(client: Any, model: str) -> Any:
    (statistics,) = (await client.get_inference_statistics(model)).model_stats
    return statistics


def show(burst: Burst, model: str, console: Console) -> None:
    """Print the rate, the mean batch size and the percentiles of the latency."""
    table = Table(title=f"{COUNT} concurrent requests to {model} (gRPC)", title_justify="left")
    p50, p90, p99 = np.percentile(burst.latencies_ms, [50, 90, 99])
    values = {
        "requests/s": f"{COUNT / burst.duration_s:.0f}",
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

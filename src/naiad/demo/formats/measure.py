"""Loads one model after the other, asks it over HTTP and gRPC, and measures."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http

from naiad.demo.clients import Array, Client
from naiad.demo.formats.catalog import Format
from naiad.demo.formats.classifier import Digits
from naiad.demo.server import Running

_ROWS = 32
_SINGLE_REQUESTS = 200
_CONCURRENCY = 16
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of the table."""

    correct: int
    """Pictures whose digit is the right one."""
    agreeing: int
    """Pictures with the same digit as the library itself answers, over HTTP and over gRPC."""
    max_difference: float
    p50_ms: float
    """Of requests with one picture over HTTP, one after the other."""
    rate: float
    """Requests a second with one picture over gRPC, 16 at once."""
    load_s: float
    memory_mib: float | None
    """Growth of the server's memory by the load and the requests; None where the system does not say."""


def measure(form: Format, running: Running, digits: Digits, expected: Array, duration_s: float) -> Measurement:
    """Load a model and ask it for all pictures. Raises InferenceServerException."""
    before = resident_bytes(running.process.pid)
    began = time.perf_counter()
    with http.InferenceServerClient(running.http_url, network_timeout=600, connection_timeout=600) as control:
        control.load_model(form.model)
        (declared,) = control.get_model_metadata(form.model)["inputs"]
    load_s = time.perf_counter() - began
    pictures = digits.pictures.astype(np.float64 if declared["datatype"] == "FP64" else np.float32)
    found = [_ask_all(protocol, url, form.model, declared["name"], pictures) for protocol, url in running.urls()]
    p50_ms = _single_latency_ms(running, form.model, declared["name"], pictures)
    rate = asyncio.run(_rate(running.grpc_url, form.model, declared, pictures, duration_s))
    after = resident_bytes(running.process.pid)
    labels = [answer.argmax(1) for answer in found]
    return Measurement(
        correct=int((labels[0] == digits.labels).sum()),
        agreeing=int(np.all([each == expected.argmax(1) for each in labels], axis=0).sum()),
        max_difference=max(float(np.abs(answer - expected).max()) for answer in found),
        p50_ms=p50_ms,
        rate=rate,
        load_s=load_s,
        memory_mib=None if before is None or after is None else (after - before) / _MIB,
    )


def _ask_all(protocol: str, url: str, model: str, name: str, pictures: Array) -> Array:
    client = Client(protocol, url)
    (output,) = client.outputs(model)
    parts = []
    for start in range(0, len(pictures), _ROWS):
        get, _ = client.infer(model, {name: pictures[start : start + _ROWS]})
        parts.append(get(output))
    client.close()
    return np.concatenate(parts)


def _single_latency_ms(running: Running, model: str, name: str, pictures: Array) -> float:
    client = Client("HTTP", running.http_url)
    latencies = [
        client.infer(model, {name: pictures[number % len(pictures)][None]})[1] for number in range(_SINGLE_REQUESTS)
    ]
    client.close()
    return float(np.median(latencies))


async def _rate(url: str, model: str, declared: dict[str, Any], pictures: Array, duration_s: float) -> float:
    async with grpc_aio.InferenceServerClient(url) as client:
        end = time.perf_counter() + duration_s

        async def ask() -> int:
            tensor = grpc_aio.InferInput(declared["name"], [1, 64], declared["datatype"])
            count = 0
            while time.perf_counter() < end:
                tensor.set_data_from_numpy(pictures[count % len(pictures)][None])
                await client.infer(model, [tensor])
                count += 1
            return count

        counts = await asyncio.gather(*(ask() for _ in range(_CONCURRENCY)))
    return sum(counts) / duration_s


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of a process, None where there is no /proc."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return int(pages) * 4096

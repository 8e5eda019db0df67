"""`naiad demo formats`: loads one format after the other, asks it over HTTP and gRPC, and measures."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tritonclient.utils import InferenceServerException

from naiad.tools.demo.clients import Array, DemoClient
from naiad.tools.demo.demo_progress import waiting
from naiad.tools.demo.demo_server import DemoSettings, Running, serving
from naiad.tools.demo.formats.classifier import Digits, train
from naiad.tools.demo.formats.format_catalog import FORMATS, DemoFormat, answers, build
from naiad.tools.process.usage import resident_mib

RATE_S = 1.0
_WIDE_COLUMNS = 120
_FIGURES = ("correct", "agree", "max diff", "p50 ms", "req/s", "load s", "MiB")
_ROWS = 32
_SINGLE_REQUESTS = 200
_CONCURRENCY = 16


@dataclass(frozen=True, slots=True)
class FormatMeasurement:
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


def run(settings: DemoSettings, console: Console) -> int:
    """Run the demonstration; return the exit code: 1 if an answer differs from that of the framework."""
    with waiting(console, "training the classifier and writing its formats"):
        digits = train()
        formats = build(settings.repository, digits)
        expected = answers(digits, formats)
    console.print(f"A network of {sum(w.size + b.size for w, b in digits.layers):,} weights, and forests.")
    found: dict[str, FormatMeasurement] = {}
    explicit = ("--model-control-mode=explicit",)
    with (
        serving(settings.repository, settings, console, formats[0].model, explicit) as running,
        waiting(console, "loading and asking one format after the other"),
    ):
        for each in formats:
            try:
                found[each.model] = measure(each, running, digits, expected[each.model], RATE_S)
            except InferenceServerException as error:
                console.print(f"{each.name}: {error}", style="red", markup=False, highlight=False)
        console.print(table_of(found, len(digits.labels), console.width))
    return 0 if [each.agreeing for each in found.values()] == [len(digits.labels)] * len(formats) else 1


def table_of(found: dict[str, FormatMeasurement], count: int, columns: int) -> Table:
    """Return the table; below `_WIDE_COLUMNS` columns it is without lines and versions, so that no cell is cut."""
    is_wide = columns >= _WIDE_COLUMNS
    table = Table(title=f"{count} pictures of digits, each asked over HTTP and gRPC", title_justify="left")
    if not is_wide:
        table.box, table.pad_edge, table.collapse_padding = None, False, True
    texts = ("format", "backend", "with") if is_wide else ("format", "backend")
    for heading in texts:
        table.add_column(heading, overflow="fold")
    for heading in _FIGURES:
        table.add_column(heading, justify="right", no_wrap=True)
    kind = FORMATS[0].kind
    for each in FORMATS:
        if each.kind != kind:
            kind = each.kind
            table.add_section()
        row = found.get(each.model)
        names = (each.name, each.backend, *([each.version] if is_wide and not each.missing else []))
        if row is None:
            table.add_row(*names[: len(texts) - 1], escape(each.missing) or "failed")
            continue
        memory = "" if row.memory_mib is None else f"{row.memory_mib:.0f}"
        table.add_row(
            *names, f"{row.correct}/{count}", f"{row.agreeing}/{count}",
            f"{row.max_difference:.0e}", f"{row.p50_ms:.2f}", f"{row.rate:.0f}", f"{row.load_s:.1f}", memory,
        )  # fmt: skip
    return table


def measure(
    form: DemoFormat, running: Running, digits: Digits, expected: Array, duration_s: float
) -> FormatMeasurement:
    """Load a model and ask it for all pictures. Raises InferenceServerException."""
    before_mib = resident_mib(running.pid)
    began = time.perf_counter()
    with http.InferenceServerClient(running.http_url, network_timeout=600, connection_timeout=600) as control:
        control.load_model(form.model)
        (declared,) = control.get_model_metadata(form.model)["inputs"]
    load_s = time.perf_counter() - began
    pictures = digits.pictures.astype(np.float64 if declared["datatype"] == "FP64" else np.float32)
    found = [_ask_all(protocol, url, form.model, declared["name"], pictures) for protocol, url in running.urls()]
    p50_ms = _single_latency_ms(running, form.model, declared["name"], pictures)
    rate = asyncio.run(_rate(running.grpc_url, form.model, declared, pictures, duration_s))
    after_mib = resident_mib(running.pid)
    labels = [answer.argmax(1) for answer in found]
    return FormatMeasurement(
        correct=int((labels[0] == digits.labels).sum()),
        agreeing=int(np.all([each == expected.argmax(1) for each in labels], axis=0).sum()),
        max_difference=max(float(np.abs(answer - expected).max()) for answer in found),
        p50_ms=p50_ms,
        rate=rate,
        load_s=load_s,
        memory_mib=after_mib - before_mib if before_mib else None,
    )


def _ask_all(protocol: str, url: str, model: str, name: str, pictures: Array) -> Array:
    client = DemoClient(protocol, url)
    (output,) = client.outputs(model)
    parts = []
    for start in range(0, len(pictures), _ROWS):
        get, _ = client.infer(model, {name: pictures[start : start + _ROWS]})
        parts.append(get(output))
    client.close()
    return np.concatenate(parts)


def _single_latency_ms(running: Running, model: str, name: str, pictures: Array) -> float:
    client = DemoClient("HTTP", running.http_url)
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

"""BERT-base and ResNet-50: inferences per second of a server, and of a bare loop of PyTorch in the same minute.

Loop and server take turns of about a second, first the one, then the other; the one that has no turn is idle. What is
compared is the ratio of each pair, so that a machine that is slow for a while is slow for both. The goal for the
server is 95 % of the loop with the same batch.
"""

import contextlib
import json
import os
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu import networks
from bench.gpu.obedient import Obedient
from bench.gpu.room import FAILED, NOT_PROVEN, NOT_RUN, OK, Room, Served
from bench.gpu.serving import config, write_model
from naiad.backend.cuda.cuda import load_runtime
from naiad.core.tensor import Array

GOAL = 0.95
PRECISIONS = {
    "fp32": ("float32", "highest"),
    "tf32": ("float32", "high"),
    "fp16": ("float16", "high"),
    "bf16": ("bfloat16", "high"),
}
"""dtype and precision of matrix products. tf32 is a setting of the process: fp32 is measured last."""
_LEAST_PAIRS = 4
_MOST_PAIRS = 6
_TURN_S = 0.65
_CASE_S = 8.5
"""Limit of the pairs of a case."""
_LAST_S = 9.0
"""With less time left no further case is begun."""
_ORDER_S = 60.0


_MORE = {
    "dynamic": "dynamic_batching { }",
    "isolated": 'parameters { key: "isolation" value { string_value: "process" } }',
}
"""What the words of a suffix add to a configuration."""


@dataclass(frozen=True)
class Case:
    """A load of the server, and the batch of the loop that it is compared with."""

    network: str
    """Network and precision, as in `bert_bf16`."""
    rows: int
    clients: int = 2
    loop_rows: int = 0
    """0 for `rows`."""
    suffix: str = ""
    """Of the model."""
    way: str = "http"
    label: str = ""

    @property
    def name(self) -> str:
        """As rows name it."""
        return f"{self.network} batch {self.rows}{self.label}"


@dataclass
class Sizes:
    """The tensors of the networks."""

    room: Room
    length: int = field(init=False)
    width: int = field(init=False)
    side: int = field(init=False)
    classes: int = field(init=False)

    def __post_init__(self) -> None:
        size = self.room.size
        self.length, self.width, self.side, self.classes = size(128, 16), size(768, 32), size(224, 32), size(1000, 10)

    def given(self, network: str) -> tuple[str, str, tuple[int, ...]]:
        """Return name, datatype and dims of the input."""
        if network.startswith("bert"):
            return "input_ids", "INT32", (self.length,)
        return "image", "FP32", (3, self.side, self.side)

    def taken(self, network: str) -> int:
        """Return the length of a row of the output."""
        return self.width if network.startswith("bert") else self.classes


def measure(room: Room) -> None:
    """Measure the cases in the order of their worth."""
    repository = room.work / "models"
    sizes = Sizes(room)
    _write(room, repository, sizes)
    loop = Obedient("bench.gpu.bare_loop", room.work / "loop.log")
    generator = Obedient("bench.gpu.generator", room.work / "generator.log")
    try:
        with room.serve(repository, "--http-max-input-size=268435456") as served:
            _load(room, served, loop)
            for case in _cases(room):
                if room.left_s < _LAST_S and not room.is_dry_run:
                    room.row(case.name, NOT_RUN, "no time left")
                    continue
                with room.check(case.name):
                    _pairs(room, served, case, sizes, loop, generator)
    finally:
        loop.close()
        generator.close()


def _load(room: Room, served: Served, loop: Obedient) -> None:
    """Load all networks but fp32, whose loading sets the precision of the process, in loop and server at once."""
    cases = [case for case in _cases(room) if not case.network.endswith("fp32")]

    def load_loop() -> None:
        for network in dict.fromkeys(case.network for case in cases):
            # An error comes again when it is measured.
            with contextlib.suppress(RuntimeError, TimeoutError):
                loop(_ORDER_S, source=str(room.work / f"{network}.txt"), device=room.device)

    with room.check("networks are loaded"):
        thread = threading.Thread(target=load_loop)
        thread.start()
        try:
            for model in dict.fromkeys(case.network + case.suffix for case in cases):
                served.load(model)
        finally:
            thread.join()


def _cases(room: Room) -> list[Case]:
    if room.is_dry_run:
        return [
            Case("bert_bf16", 4),
            Case("bert_bf16", 1, 8, 4, "_dynamic", label=" dynamic, 8 clients"),
            Case("resnet_fp16", 2, way="system", label=" system shm"),
        ]
    return [
        Case("bert_bf16", 64),
        Case("resnet_fp16", 32, way="cuda", label=" cuda shm"),
        Case("bert_bf16", 1, 128, 64, "_dynamic", label=" dynamic, 128 clients"),
        Case("resnet_fp16", 32, way="system", label=" system shm"),
        Case("bert_bf16", 16),
        Case("bert_bf16", 1),
        Case("bert_bf16", 1, 128, 64, "_dynamic_isolated", label=" dynamic, 128 clients, isolated"),
        Case("resnet_fp16", 32, label=" http"),
        Case("bert_fp16", 64),
        Case("bert_bf16", 16, 4, suffix="_x2", label=" 2 instances"),
        Case("bert_tf32", 64),
        Case("bert_bf16", 16, 8, suffix="_x4", label=" 4 instances"),
        Case("bert_fp32", 16),
    ]


def _source(room: Room, network: str) -> str:
    kind, precision = network.split("_")
    dtype, matmul = PRECISIONS[precision]
    make = networks.bert if kind == "bert" else networks.resnet
    return make(tiny=room.is_dry_run, dtype=dtype, matmul=matmul)


def _write(room: Room, repository: Path, sizes: Sizes) -> None:
    for case in _cases(room):
        name, datatype, dims = sizes.given(case.network)
        tensors = ({name: (datatype, dims)}, {"OUTPUT__0": ("FP32", (sizes.taken(case.network),))})
        count = {"_x2": 2, "_x4": 4}.get(case.suffix, 1)
        more = "\n".join(_MORE[word] for word in case.suffix.split("_") if word in _MORE)
        text = config("pytorch", room.kind, *tensors, rows=64, count=count, more=more)
        source = _source(room, case.network)
        write_model(repository, case.network + case.suffix, text, {"model.py": source})
        (room.work / f"{case.network}.txt").write_text(source)


def _pairs(room: Room, served: Served, case: Case, sizes: Sizes, loop: Obedient, generator: Obedient) -> None:
    """Let loop and server take turns, and judge the ratios."""
    name, _, dims = sizes.given(case.network)
    model = case.network + case.suffix
    if case.network.endswith("fp32"):
        served.load(model)
    turn_s = room.size(_TURN_S, 0.3)
    asked: dict[str, Any] = {
        "source": str(room.work / f"{case.network}.txt"),
        "matmul": PRECISIONS[case.network.split("_")[1]][1],
        "rows": case.loop_rows or case.rows,
        "shape": dims,
        "is_tokens": name == "input_ids",
        "device": room.device,
    }
    with _request(room, served, case, sizes) as (body, headers):
        sent: dict[str, Any] = {
            "port": served.running.http_port,
            "path": f"/v2/models/{model}/infer",
            "body": str(body),
            "headers": headers,
            "clients": case.clients,
        }
        loop(_ORDER_S, **asked, seconds=room.size(0.3, 0.1))
        generator(_ORDER_S, **sent, seconds=room.size(0.5, 0.1))
        ratios: list[float] = []
        loops: list[float] = []
        servers: list[dict[str, Any]] = []
        before, until = _statistics(served, model), time.monotonic() + min(_CASE_S, room.left_s - 3)
        while len(ratios) < room.size(_MOST_PAIRS, _LEAST_PAIRS) and (not ratios or time.monotonic() < until):
            # Each begins every second pair: a machine that becomes slower would favour the first.
            turns = ("loop", "server") if len(ratios) % 2 == 0 else ("server", "loop")
            for turn in turns:
                if turn == "loop":
                    loops.append(loop(_ORDER_S, **asked, seconds=turn_s)["per_s"])
                else:
                    servers.append(generator(_ORDER_S, **sent, seconds=turn_s))
            ratios.append(servers[-1]["requests"] * case.rows / servers[-1]["seconds"] / loops[-1])
        after = _statistics(served, model)
    verdict, note = (OK, "") if room.is_dry_run else judged(ratios)
    room.row(
        case.name,
        verdict,
        note,
        of_loop=round(statistics.median(ratios), 3),
        low=round(min(ratios), 3),
        high=round(max(ratios), 3),
        pairs=len(ratios),
        loop_per_s=round(statistics.median(loops), 1),
        server_per_s=round(statistics.median(s["requests"] * case.rows / s["seconds"] for s in servers), 1),
        p50_ms=round(statistics.median(s["p50_ms"] for s in servers), 2),
        generator_cpu=max(s["cpu_share"] for s in servers),
        **_parts(before, after),
    )


def judged(ratios: Sequence[float]) -> tuple[str, str]:
    """Return the verdict about the ratios of pairs, and why it is not ok.

    Their range is an interval for their median: the chance that the median of six is outside is 3 %.
    """
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    if low >= GOAL:
        return OK, ""
    if len(ratios) < _LEAST_PAIRS:
        return NOT_PROVEN, f"{len(ratios)} pairs are too few"
    if high < GOAL:
        return FAILED, f"all pairs are under {GOAL:.0%}"
    if middle >= GOAL or high - low <= 0.2:
        return OK, ""
    return NOT_PROVEN, f"the pairs disagree: {low:.2f} to {high:.2f}"


def _statistics(served: Served, model: str) -> Mapping[str, Any]:
    import urllib.request

    url = f"http://127.0.0.1:{served.running.http_port}/v2/models/{model}/stats"
    with urllib.request.urlopen(url, timeout=20) as answer:
        found: Mapping[str, Any] = json.load(answer)["model_stats"][0]
    return found


def _parts(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Return where the time of a batch goes in the server."""
    batches = after["execution_count"] - before["execution_count"]
    requests = after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"]

    def ms(part: str) -> float:
        spent = after["inference_stats"][part]["ns"] - before["inference_stats"][part]["ns"]
        found: float = round(spent / 1e6 / max(1, requests), 2)
        return found

    rows = after["inference_count"] - before["inference_count"]
    return {
        "rows_per_batch": round(rows / max(1, batches), 1),
        "queue_ms": ms("queue"),
        "input_ms": ms("compute_input"),
        "infer_ms": ms("compute_infer"),
        "output_ms": ms("compute_output"),
    }


# --- requests -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _request(room: Room, served: Served, case: Case, sizes: Sizes) -> Iterator[tuple[Path, dict[str, str]]]:
    """Give the file with the body of a request, and its headers."""
    name, datatype, dims = sizes.given(case.network)
    shape = (case.rows, *dims)
    random = np.random.default_rng(1)
    is_tokens = datatype == "INT32"
    values = random.integers(0, 500, shape, np.int32) if is_tokens else random.standard_normal(shape, np.float32)
    out_bytes = 4 * case.rows * sizes.taken(case.network)
    given: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(shape)}
    path = room.work / "request.bin"
    if case.way == "http":
        given["parameters"] = {"binary_data_size": values.nbytes}
        header = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
        path.write_bytes(header + values.tobytes())
        yield path, {"Inference-Header-Content-Length": str(len(header))}
        return
    region = f"bench_gpu_{os.getpid()}"
    with _REGIONS[case.way](served, region, values, out_bytes) as start:
        given["parameters"] = {"shared_memory_region": region, "shared_memory_byte_size": values.nbytes}
        place = {
            "shared_memory_region": region,
            "shared_memory_byte_size": out_bytes,
            "shared_memory_offset": start,
        }
        body = {"inputs": [given], "outputs": [{"name": "OUTPUT__0", "parameters": place}]}
        path.write_text(json.dumps(body))
        yield path, {"Content-Type": "application/json"}


@contextlib.contextmanager
def _in_cuda(served: Served, region: str, values: Array, out_bytes: int) -> Iterator[int]:
    """Register memory of the GPU with an input; give the offset for the output."""
    runtime = load_runtime()
    runtime.set_device(0)
    start = -(-values.nbytes // 4096) * 4096
    size = start + out_bytes
    address = runtime.allocate(size)
    try:
        runtime.write(address, values.tobytes(), 0)
        served.call(served.client.register_cuda_shared_memory(region, runtime.export(address), 0, size))
        try:
            yield start
        finally:
            served.call(served.client.unregister_cuda_shared_memory(region))
    finally:
        runtime.free(address)


@contextlib.contextmanager
def _in_system(served: Served, region: str, values: Array, out_bytes: int) -> Iterator[int]:
    """Register memory of the host with an input; give the offset for the output."""
    start = -(-values.nbytes // 4096) * 4096
    path = Path(f"/dev/shm/{region}")
    path.write_bytes(values.tobytes() + bytes(start - values.nbytes + out_bytes))
    try:
        served.call(served.client.register_system_shared_memory(region, f"/{region}", start + out_bytes))
        try:
            yield start
        finally:
            served.call(served.client.unregister_system_shared_memory(region))
    finally:
        path.unlink()


_REGIONS = {"cuda": _in_cuda, "system": _in_system}

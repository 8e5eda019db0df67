"""BERT-base and ResNet-50: inferences per second of a bare loop of PyTorch, and of a server with the same code.

The loop takes numpy arrays and returns numpy arrays, one batch after the other, as a server has to. `on_device` is
the loop with inputs that are on the GPU already. The goal for the server is 95 % of the loop with the same batch.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu import networks
from bench.gpu.room import NOT_RUN, Room, Served
from bench.gpu.serving import config, perf, write_model
from naiad.core.tensor import Array

GOAL = 0.95
PRECISIONS = {
    "fp32": ("float32", "highest"),
    "tf32": ("float32", "high"),
    "fp16": ("float16", "high"),
    "bf16": ("bfloat16", "high"),
}
"""dtype and precision of matrix products. tf32 is a setting of the process: fp32 has a server of its own."""
_LENGTH = 128
_LAST_S = 14.0
"""With less time left no further measurement is begun."""


@dataclass(frozen=True)
class Load:
    """One measurement of the server."""

    model: str
    rows: int
    concurrency: int
    compared_rows: int
    """Batch of the loop that it is compared with."""
    flags: tuple[str, ...] = ()
    label: str = ""


def measure(room: Room) -> None:
    """Measure the loops, then the servers: first fp16 and bf16, which users deploy."""
    repository = room.work / "models"
    _write(room, repository)
    loops: dict[tuple[str, int], float] = {}
    for precision in room.size(("bf16", "fp16", "tf32", "fp32"), ("bf16",)):
        with room.check(f"loop bert {precision}"):
            _loop_bert(room, precision, loops)
    with room.check("loop resnet50 fp16"):
        _loop_resnet(room, loops)
    _release(room)
    with room.serve(repository, name="reduced") as served:
        for load in _reduced_loads(room):
            _serve(room, served, load, loops)
    if room.is_rehearsal:
        return
    with room.serve(repository, name="fp32") as served:
        for rows in (1, 16, 64):
            _serve(room, served, Load("bert_fp32", rows, 2, rows), loops)


def _reduced_loads(room: Room) -> list[Load]:
    """Return the loads in the order of their worth."""
    batches = room.size((1, 16, 64), (1,))
    loads = [Load("bert_bf16", rows, 2, rows) for rows in batches]
    if room.is_rehearsal:
        return [*loads, Load("bert_bf16_dynamic", 1, 8, 4, label=" dynamic")]
    loads += [Load("bert_bf16_dynamic", 1, clients, 64, label=" dynamic") for clients in (64, 128)]
    loads += [
        Load("resnet_fp16", 32, 2, 32, ("--shared-memory", kind), f" {kind} shm") for kind in ("cuda", "system")
    ]
    loads += [
        Load("bert_bf16_x2", 16, 4, 16, label=" 2 instances"),
        Load("bert_bf16_x4", 16, 8, 16, label=" 4 instances"),
    ]
    loads += [Load("bert_fp16", rows, 2, rows) for rows in batches]
    loads += [Load("bert_tf32", rows, 2, rows) for rows in batches]
    return [*loads, Load("bert_bf16", 4, 2, 4), Load("resnet_fp16", 32, 2, 32)]


def _write(room: Room, repository: Path) -> None:
    sizes = {"": 1, "_x2": 2, "_x4": 4}
    width = room.size(768, 32)
    tensors = ({"input_ids": ("INT32", (room.size(_LENGTH, 16),))}, {"OUTPUT__0": ("FP32", (width,))})
    for precision, (dtype, matmul) in PRECISIONS.items():
        source = networks.bert(tiny=room.is_rehearsal, dtype=dtype, matmul=matmul)
        for suffix, count in sizes.items():
            text = config("pytorch", room.kind, *tensors, rows=64, count=count)
            write_model(repository, f"bert_{precision}{suffix}", text, {"model.py": source})
        text = config("pytorch", room.kind, *tensors, rows=64, more="dynamic_batching { }")
        write_model(repository, f"bert_{precision}_dynamic", text, {"model.py": source})
    side = room.size(224, 32)
    source = networks.resnet(tiny=room.is_rehearsal, dtype="float16", matmul="high")
    classes = room.size(1000, 10)
    text = config(
        "pytorch", room.kind, {"image": ("FP32", (3, side, side))}, {"OUTPUT__0": ("FP32", (classes,))}, rows=64
    )
    write_model(repository, "resnet_fp16", text, {"model.py": source})


def _serve(room: Room, served: Served, load: Load, loops: dict[tuple[str, int], float]) -> None:
    name = f"server {load.model} batch {load.rows}{load.label}"
    if room.left_s < _LAST_S and not room.is_rehearsal:
        room.row(name, NOT_RUN, "no time left")
        return
    with room.check(name):
        served.load(load.model)
        flags = ["--input-bound", "input_ids:500"] if load.model.startswith("bert") else []
        found = perf(served.running, load.model, *flags, *load.flags, rows=load.rows, concurrency=load.concurrency)
        base = load.model.removesuffix("_x2").removesuffix("_x4").removesuffix("_dynamic")
        loop = loops.get((base, load.compared_rows))
        share = round(found["inferences_per_s"] / loop, 3) if loop else None
        is_met = room.is_rehearsal or share is None or share >= GOAL
        room.judge(name, is_met, "" if is_met else f"under {GOAL:.0%} of the loop", of_loop=share, **found)


# --- loops ----------------------------------------------------------------------------------------------------------


def _loop_bert(room: Room, precision: str, loops: dict[tuple[str, int], float]) -> None:
    dtype, matmul = PRECISIONS[precision]
    source = networks.bert(tiny=room.is_rehearsal, dtype=dtype, matmul=matmul)
    module = networks.module_of(source, room.work, f"bert_{precision}").to(room.device)
    random = np.random.default_rng(1)
    for rows in room.size((1, 4, 16, 64), (1, 4)):
        tokens = random.integers(0, 500, (rows, room.size(_LENGTH, 16)), np.int32)
        _loop(room, f"bert_{precision}", module, tokens, loops)


def _loop_resnet(room: Room, loops: dict[tuple[str, int], float]) -> None:
    source = networks.resnet(tiny=room.is_rehearsal, dtype="float16", matmul="high")
    module = networks.module_of(source, room.work, "resnet_fp16").to(room.device)
    side = room.size(224, 32)
    images = np.random.default_rng(1).standard_normal((room.size(32, 2), 3, side, side), np.float32)
    _loop(room, "resnet_fp16", module, images, loops)


def _loop(room: Room, name: str, module: Any, batch: Array, loops: dict[tuple[str, int], float]) -> None:
    import torch

    def from_host() -> None:
        module(torch.from_numpy(batch).to(room.device)).cpu().numpy()

    resident = torch.from_numpy(batch).to(room.device)
    seconds = room.size(1.0, 0.1)
    with torch.inference_mode():
        per_s = _rate(from_host, seconds) * len(batch)
        on_device = _rate(lambda: module(resident), seconds / 2, _waiting(room)) * len(batch)
    loops[name, len(batch)] = per_s
    room.row(
        f"loop {name} batch {len(batch)}", "ok", inferences_per_s=round(per_s, 1), on_device_per_s=round(on_device, 1)
    )


def _waiting(room: Room) -> Any:
    import torch

    return torch.cuda.synchronize if room.has_gpu else None


def _rate(call: Any, seconds: float, wait: Any = None) -> float:
    """Return calls per second, after some for warming up."""
    for _ in range(3):
        call()
    if wait is not None:
        wait()
    began, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - began < seconds:
        call()
        count += 1
    if wait is not None:
        wait()
    return count / (time.perf_counter() - began)


def _release(room: Room) -> None:
    """Leave the GPU to the server."""
    if room.has_gpu:
        import gc

        import torch

        gc.collect()
        torch.cuda.empty_cache()

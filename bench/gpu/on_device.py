"""An ensemble of two models of PyTorch and one of JAX: bytes between host and GPU, as CUPTI counts them.

The server is in this process, so that the profiler of PyTorch sees all copies of the process, also JAX's. The
same models called one by one are the counter-example: their tensors go through the host.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.correctness import XLA, difference
from bench.gpu.room import NOT_RUN, Room
from bench.gpu.serving import config, write_model
from naiad.core.tensor import Array
from naiad.server.embedded import EmbeddedServer

_REQUESTS = 10
_SMALL_BYTES = 64 << 10
"""A request: arguments of kernels, scalars."""

_PRE = """
import torch

class Model(torch.nn.Module):
    def forward(self, raw):
        return (raw.float() / 255 - 0.45) / 0.22
"""
_NET = """
import torch

torch.set_float32_matmul_precision("highest")
torch.backends.cudnn.allow_tf32 = False

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 64, 7, stride=2, padding=3)

    def forward(self, image):
        return torch.relu(self.conv(image)).mean(dim=(2, 3))
"""


def measure(room: Room) -> None:
    """Write the models, run the ensemble and its steps, and count."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    side, rows = room.size(224, 16), 8
    head = np.random.default_rng(6).standard_normal((64, 1000), np.float32)
    repository = _write(room, room.work / "models", side, head)
    raw = np.random.default_rng(7).integers(0, 256, (rows, 3, side, side), np.uint8)
    asyncio.run(_compare(room, repository, raw, head))


def _write(room: Room, repository: Path, side: int, head: Array) -> Path:
    import jax
    from jax import export

    image = ("FP32", (3, side, side))
    pre = config("pytorch", room.kind, {"raw": ("UINT8", (3, side, side))}, {"OUTPUT__0": image}, rows=8)
    write_model(repository, "pre", pre, {"model.py": _PRE})
    net = config("pytorch", room.kind, {"image": image}, {"OUTPUT__0": ("FP32", (64,))}, rows=8)
    write_model(repository, "net", net, {"model.py": _NET})
    shape = jax.ShapeDtypeStruct(export.symbolic_shape("b, 64"), np.float32)
    platforms = ("cuda", "cpu") if room.has_gpu else ("cpu",)
    content = bytes(export.export(jax.jit(lambda x: {"Y": x @ head}), platforms=platforms)(shape).serialize())
    text = config("jax", room.kind, {"input_0": ("FP32", (64,))}, {"Y": ("FP32", (1000,))}, rows=8)
    write_model(repository, "head", text, {"model.jaxexport": content})
    steps = _step("pre", "raw", "RAW", "OUTPUT__0", "a") + ", " + _step("net", "image", "a", "OUTPUT__0", "b")
    steps += ", " + _step("head", "input_0", "b", "Y", "CLASSES")
    more = f"ensemble_scheduling {{ step [ {steps} ] }}"
    chain = config(
        "ensemble", room.kind, {"RAW": ("UINT8", (3, side, side))}, {"CLASSES": ("FP32", (1000,))}, rows=8, more=more
    )
    write_model(repository, "chain", chain)
    return repository


def _step(model: str, source: str, taken: str, target: str, made: str) -> str:
    maps = f'input_map {{ key: "{source}" value: "{taken}" }} output_map {{ key: "{target}" value: "{made}" }}'
    return f'{{ model_name: "{model}" model_version: -1 {maps} }}'


async def _compare(room: Room, repository: Path, raw: Array, head: Array) -> None:
    server = EmbeddedServer(str(repository))
    await server.start()

    async def whole() -> Array:
        return (await server.infer("chain", {"RAW": raw}))["CLASSES"]

    async def by_steps() -> Array:
        image = (await server.infer("pre", {"raw": raw}))["OUTPUT__0"]
        features = (await server.infer("net", {"image": image}))["OUTPUT__0"]
        return (await server.infer("head", {"input_0": features}))["Y"]

    try:
        found, alone = await whole(), await by_steps()
        off = difference(found, alone)
        room.judge("answers of ensemble and steps are equal", off <= XLA, difference=off)
        if not room.has_gpu:
            room.row("bytes between host and GPU", NOT_RUN, "no GPU: nothing is copied")
            return
        given, taken = raw.nbytes, found.nbytes
        to_gpu, to_host = await _counted(room, whole, "ensemble")
        is_met = given <= to_gpu <= given + _SMALL_BYTES and taken <= to_host <= taken + _SMALL_BYTES
        figures: dict[str, Any] = {"given": given, "to_gpu": to_gpu, "taken": taken, "to_host": to_host}
        room.judge("bytes of a request of the ensemble", is_met, **figures)
        to_gpu, to_host = await _counted(room, by_steps, "steps")
        room.judge(
            "bytes of the same by steps are more", to_gpu > given + _SMALL_BYTES, to_gpu=to_gpu, to_host=to_host
        )
    finally:
        await server.close()


async def _counted(room: Room, call: Callable[[], Awaitable[Any]], name: str) -> tuple[int, int]:
    """Return the bytes that a call copies to the GPU and to the host, as means of some calls."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(_REQUESTS):
            await call()
        torch.cuda.synchronize()
    path = room.work / f"{name}.trace.json"
    profile.export_chrome_trace(str(path))
    to_gpu = to_host = 0
    kinds: dict[str, int] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        text = str(event.get("name", ""))
        if text.startswith("Memcpy"):
            size = int(event.get("args", {}).get("bytes", 0))
            kinds[text] = kinds.get(text, 0) + size
            to_gpu += size if "HtoD" in text else 0
            to_host += size if "DtoH" in text else 0
    room.say(f"{name}: copies {kinds}")
    if not kinds:
        raise RuntimeError("the profiler has recorded no copy at all: CUPTI does not work here")
    return to_gpu // _REQUESTS, to_host // _REQUESTS

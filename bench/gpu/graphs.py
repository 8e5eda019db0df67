"""Models with `optimization { cuda { graphs: true } }`: answers equal the framework's, and memory comes back."""

import asyncio
import os
import time
from typing import Any

import numpy as np

from bench.gpu import networks
from bench.gpu.correctness import EXACT, difference
from bench.gpu.machine import gpus
from bench.gpu.room import NotRun, Room, Served
from bench.gpu.serving import config, post, write_model
from naiad.core.tensor import Array

_GRAPHS = "optimization { cuda { graphs: true } }"
_ROUNDS = 4
"""Of each shape: one without a graph, one that records, and replays."""
_SLACK_BYTES = 200 << 20
_SETTLE_S = 10.0
_READS = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * (2 if x.max().item() > 0 else 3)
"""
"""Waits for a value from the GPU, which a graph cannot."""


def measure(room: Room) -> None:
    """Serve a BERT by two instances, and a model that cannot be recorded."""
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    repository, source = room.work / "models", networks.bert(tiny=room.is_dry_run)
    tensors = ({"input_ids": ("INT64", (-1,))}, {"OUTPUT__0": ("FP32", (room.size(768, 32),))})
    text = config("pytorch", room.kind, *tensors, rows=8, count=2, more=_GRAPHS)
    write_model(repository, "bert", text, {"model.py": source})
    one = ({"x": ("FP32", (1,))}, {"OUTPUT__0": ("FP32", (1,))})
    write_model(repository, "reads", config("pytorch", room.kind, *one, rows=4, more=_GRAPHS), {"model.py": _READS})
    module = networks.module_of(source, room.work, "bert").to(room.device)
    with room.serve(repository, NVIDIA_TF32_OVERRIDE="0") as served:
        with room.check("a model that reads from the GPU"):
            served.load("reads")
            values = [
                float(served.infer("reads", {"x": np.full((1, 1), v, np.float32)})["OUTPUT__0"][0, 0])
                for v in (1, -1, 2, -2)
            ]
            room.judge("a model that reads from the GPU", values == [2, -3, 4, -6], found=str(values))
        before = _used_bytes(room)
        with room.check("answers"):
            served.load("bert")
            _answers(room, served, module)
        with room.check("memory after unload"):
            _unload(room, served, before)


def _answers(room: Room, served: Served, module: Any) -> None:
    """Ask with several shapes, and new values each time, first one by one, then all at the same time."""
    random = np.random.default_rng(11)
    shapes = [(rows, length) for rows in (1, 2, 4) for length in room.size((128, 32), (8,))]
    asked = [random.integers(0, 500, shape) for _ in range(_ROUNDS) for shape in shapes]
    wanted = [_answer(room, module, tokens) for tokens in asked]
    alone = [served.infer("bert", {"input_ids": tokens})["OUTPUT__0"] for tokens in asked]
    worst = max(difference(np.asarray(f), w) for f, w in zip(alone, wanted, strict=True))
    room.judge("answers one by one", worst <= EXACT, difference=worst, requests=len(asked), shapes=len(shapes))

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(served.client.infer("bert", {"input_ids": tokens}) for tokens in asked * 3))

    together = [dict(answer)["OUTPUT__0"] for answer in served.call(ask_all())]
    worst = max(difference(np.asarray(f), w) for f, w in zip(together, wanted * 3, strict=True))
    room.judge("answers at the same time", worst <= EXACT, difference=worst, requests=len(together))


def _answer(room: Room, module: Any, tokens: Array) -> Array:
    import torch

    with torch.inference_mode():
        answer: Array = module(torch.from_numpy(tokens).to(room.device)).cpu().numpy()
    return answer


def _used_bytes(room: Room) -> int:
    if not room.has_gpu:
        return 0
    gpu = gpus()[0]
    return int(gpu["total_bytes"] - gpu["free_bytes"])


def _unload(room: Room, served: Served, before: int) -> None:
    if not room.has_gpu:
        raise NotRun("no GPU")
    loaded = _used_bytes(room)
    post(served.running.http_port, "/v2/repository/models/bert/unload", {})
    end_s = time.monotonic() + _SETTLE_S
    while (after := _used_bytes(room)) > before + _SLACK_BYTES and time.monotonic() < end_s:
        time.sleep(0.2)
    figures: dict[str, Any] = {"before_mib": before >> 20, "loaded_mib": loaded >> 20, "after_mib": after >> 20}
    room.judge("memory after unload", after <= before + _SLACK_BYTES, **figures)

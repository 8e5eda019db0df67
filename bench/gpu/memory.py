"""Memory of the GPU comes back after unload and after a worker's death; out-of-memory leaves other models serving.

With `--rehearse` the memory is that of the server's processes.
"""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.machine import gpus
from bench.gpu.room import Room, Served
from bench.gpu.serving import config, post, write_model
from bench.process_tree import memory
from naiad.core.errors import InferError

MIB = 1 << 20
_SLACK_SHARE = 0.15
"""Of what was loaded may stay: contexts, libraries, pools of the frameworks."""
_SETTLE_S = 15.0

BLOCK = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("block", torch.ones({mib} << 20, dtype=torch.uint8))

    def forward(self, x):
        return x + self.block[:1].float()
"""
_GREEDY = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = torch.empty({mib} << 20, dtype=torch.uint8, device="{device}")

    def forward(self, x):
        return x
"""
_HUNGRY = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        block = torch.empty(int(x.max()) << 20, dtype=torch.uint8, device=x.device)
        return x + 0 * block[:1].float()
"""
_WORKER = """
import os

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.block = torch.ones({mib} << 20, dtype=torch.uint8, device="{device}")

    def execute(self, requests):
        pid = np.array([[os.getpid()]], np.int64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PID", pid)]) for _ in requests]
"""
_TOO_MUCH_MIB = 1 << 24
"""16 TiB."""


def measure(room: Room) -> None:
    """Write the models and run the checks one after the other on one server."""
    mib = room.size(4096, 256)
    repository = room.work / "models"
    _write(room, repository, mib)
    with room.serve(repository) as served:
        served.load("small")
        _ask(served, "small")
        with room.check("unload"):
            _unload(room, served, mib)
        with room.check("a worker's death"):
            _death(room, served, mib)
        with room.check("out of memory at load"):
            _at_load(room, served)
        with room.check("out of memory in a request"):
            _in_request(room, served)
        with room.check("a load after out of memory"):
            served.load("block")
            room.judge("a load after out of memory", _ask(served, "block") == 1.0 + 1.0)


def _write(room: Room, repository: Path, mib: int) -> None:
    tensors = ({"x": ("FP32", (1,))}, {"OUTPUT__0": ("FP32", (1,))})
    sources = {
        "small": BLOCK.format(mib=1),
        "block": BLOCK.format(mib=mib),
        "greedy": _GREEDY.format(mib=_TOO_MUCH_MIB, device=room.device),
        "hungry": _HUNGRY,
    }
    for name, source in sources.items():
        write_model(repository, name, config("pytorch", room.kind, *tensors, rows=4), {"model.py": source})
    text = config("python", room.kind, {"x": ("FP32", (1,))}, {"PID": ("INT64", (1,))}, rows=4)
    write_model(repository, "worker", text, {"model.py": _WORKER.format(mib=mib, device=room.device)})


def _ask(served: Served, model: str, value: float = 1.0) -> float:
    (found,) = served.infer(model, {"x": np.full((1, 1), value, np.float32)}).values()
    return float(found.ravel()[0])


def _used_mib(room: Room, served: Served) -> float:
    if not room.has_gpu:
        return memory(served.running.process.pid).pss / MIB
    gpu = gpus()[0]
    return float(gpu["total_bytes"] - gpu["free_bytes"]) / MIB


def _settled(room: Room, served: Served, limit_mib: float) -> float:
    """Return what is used once it is not above the limit, or after some seconds."""
    end_s = time.monotonic() + min(_SETTLE_S, room.left_s / 3)
    while (used := _used_mib(room, served)) > limit_mib and time.monotonic() < end_s:
        time.sleep(0.2)
    return used


def _unload(room: Room, served: Served, mib: int) -> None:
    before = _used_mib(room, served)
    for number in (1, 2):
        served.load("block")
        _ask(served, "block")
        loaded = _used_mib(room, served)
        post(served.running.http_port, "/v2/repository/models/block/unload", {})
        after = _settled(room, served, before + _SLACK_SHARE * mib)
        is_met = loaded - before > (1 - _SLACK_SHARE) * mib and after - before <= _SLACK_SHARE * mib
        figures: dict[str, Any] = {
            "block_mib": mib,
            "before_mib": round(before),
            "loaded_mib": round(loaded),
            "after_mib": round(after),
        }
        room.judge(f"unload {number}", is_met, **figures)


def _death(room: Room, served: Served, mib: int) -> None:
    before = _used_mib(room, served)
    served.load("worker")
    first = int(_ask(served, "worker"))
    loaded = _used_mib(room, served)
    os.kill(first, signal.SIGKILL)
    second, began = first, time.monotonic()
    while second == first and time.monotonic() - began < 40:
        try:
            second = int(_ask(served, "worker"))
        except InferError as error:
            room.say(f"the worker restarts: {error.message[:100]}")
            time.sleep(0.5)
    restart_s = time.monotonic() - began
    restarted = _settled(room, served, loaded + _SLACK_SHARE * mib)
    post(served.running.http_port, "/v2/repository/models/worker/unload", {})
    after = _settled(room, served, before + _SLACK_SHARE * mib)
    is_met = second != first and restarted - loaded <= _SLACK_SHARE * mib and after - before <= _SLACK_SHARE * mib
    figures: dict[str, Any] = {
        "before_mib": round(before),
        "loaded_mib": round(loaded),
        "restarted_mib": round(restarted),
        "after_mib": round(after),
    }
    room.judge("a worker's death", is_met, restart_s=round(restart_s, 1), **figures)


def _at_load(room: Room, served: Served) -> None:
    try:
        served.load("greedy")
    except RuntimeError as error:
        text = str(error)
    else:
        text = ""
    is_served = _ask(served, "small") == 1.0 + 1.0
    room.judge("out of memory at load", "memory" in text and is_served, text, others_served=is_served)


def _in_request(room: Room, served: Served) -> None:
    """One model runs out of memory again and again while another one answers."""
    served.load("hungry")
    failures: list[str] = []
    done = threading.Event()
    answers = 0

    def others() -> None:
        nonlocal answers
        body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}
        while not done.is_set():
            try:
                found = post(served.running.http_port, "/v2/models/small/infer", body)
                answers += found["outputs"][0]["data"] == [2.0]
            except (RuntimeError, OSError) as error:
                failures.append(str(error))

    thread = threading.Thread(target=others)
    thread.start()
    texts = []
    try:
        for _ in range(5):
            try:
                _ask(served, "hungry", _TOO_MUCH_MIB)
            except InferError as error:
                texts.append(error.message)
        time.sleep(0.5)
    finally:
        done.set()
        thread.join()
    is_well = _ask(served, "hungry", 1.0) == 1.0
    is_met = len(texts) == 5 and all("memory" in text for text in texts) and not failures and answers > 0 and is_well
    room.judge(
        "out of memory in a request",
        is_met,
        (texts or failures or [""])[0],
        answers_of_others=answers,
        failures=len(failures),
    )

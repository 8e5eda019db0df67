"""Models on demand stay in the budget of their GPU: six models, room for two, requests in turn.

With `--rehearse` the budget is that of the host.
"""

import http.client
import os
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.gpu.machine import gpus
from bench.gpu.memory import BLOCK
from bench.gpu.room import Room, Served
from bench.gpu.serving import config, write_model

MIB = 1 << 20
_COUNT = 6
_ROUNDS = 2
_FITTING = 2.5
"""The budget, in sizes of a model."""
_SLACK_MIB = 1024
"""What CUDA and the libraries take of a GPU beside the models."""
_SETTLE_S = 2.0
"""An eviction has ended after this."""
_SHARE = 0.15
"""Of the budget: what is counted and what the GPU has may differ by this."""


def measure(room: Room) -> None:
    """Serve the models in the server's process."""
    mib = room.size(2048, 64)
    budget_mib = int(_FITTING * mib)
    names = [f"m{number}" for number in range(_COUNT)]
    text = config("pytorch", room.kind, {"x": ("FP32", (1,))}, {"OUTPUT__0": ("FP32", (1,))}, rows=4)
    for name in names:
        version = write_model(room.work / "models", name, text, {"model.py": BLOCK.format(mib=mib), "weights": b""})
        os.truncate(version / "weights", mib * MIB)  # a sparse file: what the model is expected to take
    flag = (
        f"--model-gpu-memory-budget=0={budget_mib}MiB" if room.has_gpu else f"--model-memory-budget={budget_mib}MiB"
    )
    flags = ["--model-load-policy=on-demand", "--load-model=*", "--model-min-residence-secs=0", flag]
    before_mib = _used_mib(room)
    with room.check("requests in turn"), room.serve(room.work / "models", *flags) as served:
        _ask_in_turn(room, served, names, budget_mib, before_mib)


def _ask_in_turn(room: Room, served: Served, names: Sequence[str], budget_mib: int, before_mib: float) -> None:
    gpu, counted = 0.0, 0.0
    for name in [*names] * _ROUNDS:
        found = served.infer(name, {"x": np.full((1, 1), 1, np.float32)})
        if float(found["OUTPUT__0"].ravel()[0]) != 1.0 + 1.0:
            raise AssertionError(f"{name} answers {found}")
        end_s = time.monotonic() + _SETTLE_S
        while (now := _metric(served, room) / MIB) > budget_mib and time.monotonic() < end_s:
            time.sleep(0.05)
        gpu, counted = max(gpu, _used_mib(room) - before_mib), max(counted, now)
    evicted = _value(served, "naiad_on_demand_evictions_total ")
    figures: dict[str, Any] = {
        "budget_mib": budget_mib,
        "counted_mib": round(counted),
        "gpu_mib": round(gpu),
        "evictions": evicted,
    }
    slack = _SHARE * budget_mib
    room.judge("what is counted stays in the budget", counted <= budget_mib + slack and evicted > 0, **figures)
    if room.has_gpu:
        fits = counted - slack <= gpu <= budget_mib + slack + _SLACK_MIB
        room.judge("the memory of the GPU stays in the budget", fits, **figures)


def _used_mib(room: Room) -> float:
    if not room.has_gpu:
        return 0.0
    gpu = gpus()[0]
    return float(gpu["total_bytes"] - gpu["free_bytes"]) / MIB


def _metric(served: Served, room: Room) -> float:
    name = 'naiad_on_demand_gpu_used_bytes{gpu="0"} ' if room.has_gpu else "naiad_on_demand_used_bytes "
    return _value(served, name)


def _value(served: Served, series: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", served.running.metrics_port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(rf"^{re.escape(series)}(\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else -1.0

"""A tiny ONNX model on the CPU, served by 1, 2, 4 and 8 processes: throughput, CPU per request, fairness.

The load generator has processes of its own on the same cores; `generator_cpu_share` says how busy they were. Fairness
is Jain's index over the requests that each of some equal connections got answered: 1 if all got the same.
"""

import http.client
import json
import multiprocessing
import os
import time
from typing import Any

from bench.gpu.room import FAILED, Room, Served
from bench.gpu.serving import perf
from bench.process_tree import CpuMeter

_CONNECTIONS = 12
_START_S = 20.0
_BODY = json.dumps(
    {
        "inputs": [
            {"name": name, "shape": [1, 16], "datatype": "FP32", "data": [1.0] * 16} for name in ("INPUT0", "INPUT1")
        ]
    }
)


def measure(room: Room) -> None:
    """Measure each number of processes."""
    from bench import models

    cores = len(os.sched_getaffinity(0))
    repository = room.work / "models"
    models.write_repository(repository, ["add_sub"])
    counts = [count for count in room.size((1, 2, 4, 8), (1, 2)) if count <= max(2, cores // 2)]
    base: dict[str, float] = {}
    for count in counts:
        with (
            room.check(f"{count} processes"),
            room.serve(repository, f"--processes={count}", name=f"processes-{count}") as served,
        ):
            served.load("add_sub")
            _throughput(room, served, count, cores, base)
            _fairness(room, served, count)


def _throughput(room: Room, served: Served, count: int, cores: int, base: dict[str, float]) -> None:
    generators = max(1, min(8, cores - count))
    for protocol in room.size(("grpc", "http"), ("grpc",)):
        meter = CpuMeter(served.running.process.pid)
        flags = ["--processes", str(generators), *(["http"] if protocol == "http" else [])]
        found = perf(served.running, "add_sub", *flags, concurrency=room.size(64, 8))
        cpu_us = meter.seconds() / max(1, found["requests"]) * 1e6
        per_s = found["inferences_per_s"]
        base.setdefault(protocol, per_s)
        # The meter also counts what was answered outside of the windows, so this is an upper bound.
        figures = {
            "speed_up": round(per_s / base[protocol], 2),
            "server_cpu_us_at_most": round(cpu_us, 1),
            "generators": generators,
        }
        room.row(f"{protocol} {count} processes", "ok", **found, **figures)


def _fairness(room: Room, served: Served, count: int) -> None:
    connections = room.size(max(2, min(_CONNECTIONS, len(os.sched_getaffinity(0)))), 2)
    start = multiprocessing.get_context("spawn")
    queue, barrier = start.Queue(), start.Barrier(connections)
    arguments = (served.running.http_port, room.size(2.0, 0.3), barrier, queue)
    clients = [start.Process(target=_count, args=arguments, daemon=True) for _ in range(connections)]
    for client in clients:
        client.start()
    found = [queue.get(timeout=_START_S) for _ in clients]
    if not all(found):
        room.row(f"fairness {count} processes", FAILED, "a connection got no answer", answers=str(found))
        return
    index = sum(found) ** 2 / (len(found) * sum(each**2 for each in found))
    least, most = min(found), max(found)
    room.judge(
        f"fairness {count} processes", index > room.size(0.8, 0.3), jain=round(index, 3), least=least, most=most
    )


def _count(port: int, seconds: float, barrier: Any, queue: Any) -> None:
    """Put the number of answers that one connection gets, one request after the other, while all connections ask."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    barrier.wait(_START_S)
    count, end_s = 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        connection.request("POST", "/v2/models/add_sub/infer", _BODY, {"Content-Type": "application/json"})
        answer: Any = connection.getresponse()
        answer.read()
        count += answer.status == http.HTTPStatus.OK
    connection.close()
    queue.put(count)

